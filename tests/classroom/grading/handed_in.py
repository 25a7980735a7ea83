"""Notebooks as students hand them in, and a small lab of one function to grade beside a real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

SMALL = "01_double"


def marks(grade_id: str, **set_to: object) -> dict:
    """nbgrader's metadata of a cell."""
    usual = dict(grade=False, locked=False, solution=False, task=False, schema_version=3, grade_id=grade_id)
    return {"nbgrader": usual | set_to}


def small_master(folder: Path) -> Path:
    """A lab with one function that needs no ranks."""
    cells = [
        new_code_cell("from dlpar import lab"),
        new_markdown_cell("## Build: double it"),
        new_code_cell(
            "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION",
            metadata=marks("double", solution=True),
        ),
        new_code_cell(
            "solved = lab.check(double, [((1,), 2)])\n### BEGIN HIDDEN TESTS\n"
            "assert lab.check(double, [((7,), 14)])\n### END HIDDEN TESTS\nsolved",
            metadata=marks("check-double", grade=True, locked=True, points=4),
        ),
    ]
    notebook = new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    path = folder / f"{SMALL}.ipynb"
    nbformat.write(notebook, path)
    return path


def answer_cell(notebook: dict) -> dict:
    """The cell for an answer."""
    return next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("solution"))


def check_cell(notebook: dict) -> dict:
    """The cell that is graded."""
    return next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade"))


def hand_in(
    released: Path, folder: Path, answer: str | None, change: Callable[[dict], None] = lambda nb: None
) -> None:
    """Copy a released lab to a student's folder with her answer, or none, in it."""
    folder.mkdir(parents=True, exist_ok=True)
    notebook = json.loads(released.read_text())
    if answer is not None:
        answer_cell(notebook)["source"] = answer
    change(notebook)
    (folder / released.name).write_text(json.dumps(notebook))
