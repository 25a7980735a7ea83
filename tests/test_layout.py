"""The package's layout: layers, budgets of code, and names that only their own files know.

``CONTRIBUTING.md`` says what the layers are for.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dlpar"

BUDGETS = {
    "(top)": 680, "data": 420, "comm": 310, "collectives": 310, "compression": 300, "sync": 1_800, "split": 1_700,
    "config": 1_030, "worlds": 2_930, "jobs": 2_810, "theory": 960, "systems": 1_200, "lab": 4_600, "course": 2_040,
    "classroom": 1_000, "cli": 1_510,
}  # fmt: skip
"""Lines of code of each room at most: neither blank, nor comment, nor docstring."""

FILES, AT_THE_TOP = 256, 22
SCHEME_FILES = 6
"""Files at most that name one scheme; a course may talk about all of them."""


def lines_of_code(text: str) -> int:
    """Count the lines of a module that are neither blank, nor comment, nor docstring."""
    strings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            strings |= set(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" for n, line in lines if n not in strings)


def modules() -> list[tuple[str, str]]:
    """(room, text) of every module."""
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    return [(p.parts[0] if len(p.parts) > 1 else "(top)", (PACKAGE / p).read_text()) for p in paths]


def test_lines_of_code_are_counted_without_docstrings_and_comments():
    assert (
        lines_of_code(
            '"""Says."""\n\nx = 1  # one\n# two\n\n\ndef f():\n    """Says\n    more."""\n    return x\n'
        )
        == 3
    )


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_to_its_budget(room):
    assert sum(lines_of_code(text) for name, text in modules() if name == room) <= BUDGETS[room]


def test_there_are_no_rooms_without_a_budget_and_not_too_many_files():
    rooms = Counter(name for name, _ in modules())
    assert set(rooms) == set(BUDGETS) and rooms.total() <= FILES
    assert len(rooms) - 1 + rooms["(top)"] <= AT_THE_TOP


@pytest.mark.parametrize("scheme", ["hogwild", "gossip", "mapreduce"])
def test_few_files_know_a_scheme_by_name(scheme):
    named = [room for room, text in modules() if re.search(rf"\b{scheme}\b", text, re.I)]
    assert sum(room not in ("course", "systems") for room in named) <= SCHEME_FILES


def test_imports_go_down_the_layers():
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0
