"""The labs' tables: every preset has one row, which names a belief, and notebooks find it by its name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dlpar.course import labs
from dlpar.course.curriculum import labs as curriculum
from dlpar.lab import presets
from dlpar.worlds.platforms import platform

ROOT = Path(__file__).parents[2]


def test_every_row_has_a_preset_of_its_own_that_says_what_it_is_and_a_belief_in_one_line():
    names = [row.name for _, row in labs.rows()]
    assert len(names) == len(set(names)) == 74
    for _, row in labs.rows():
        assert getattr(presets, row.name) is row.preset and row.preset.__doc__
        assert row.belief and "\n" not in row.belief


def test_every_public_function_of_a_lab_that_returns_experiments_has_a_row():
    tried = {row.name for _, row in labs.rows()}
    for lab, table in labs.TABLES.items():
        module = vars(__import__(table[0].preset.__module__, fromlist=["*"]))
        own = {
            name
            for name, each in module.items()
            if callable(each) and getattr(each, "__module__", "") == module["__name__"] and name[0] != "_"
        }
        assert own - tried <= {"in_turn", "sizes_only", "computing_s", "digits_as_mnist"}, lab


def test_rows_of_chosen_labs_come_in_the_order_of_the_labs():
    assert [lab for lab, _ in labs.rows()] == sorted(lab for lab, _ in labs.rows())
    assert {lab for lab, _ in labs.rows(["03", "00"])} == {"00", "03"}
    assert list(labs.TABLES) == list(curriculum())
    with pytest.raises(ValueError, match="got '11', allowed is any of 00, 01, "):
        labs.rows(["11"])


def test_labs_and_slides_call_presets_that_exist():
    called: dict[str, set[str]] = {}
    for path in (*ROOT.glob("labs/*.ipynb"), *ROOT.glob("slides/*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                found = re.findall(r"\bpresets\.(\w+)", "".join(cell["source"]))
                called.setdefault(path.stem[:2], set()).update(found)
    for each in set().union(*called.values()):
        assert hasattr(presets, each), each
    for lab, row in labs.rows():
        assert row.name in called[lab], f"lab {lab} does not run {row.name}"


@pytest.mark.parametrize(
    "file", sorted((ROOT / "dlpar/course/platforms").glob("*.toml")), ids=lambda f: f.stem
)
def test_platforms_of_the_labs_can_be_read(file):
    assert platform(str(file)).nodes >= 1 and file.read_text().startswith("# Lab ")
