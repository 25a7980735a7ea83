"""The exercise of a lab: which of its cells are answers, which check them, and what both need.

Cells carry nbgrader's metadata.  A *solution* cell holds an answer, a *grade* cell checks what was answered
above it and binds the verdict to ``solved``, and another *locked* cell gives what both may use.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

import nbformat

Notebook = nbformat.NotebookNode

IMPORTS = "imports"
"""Grade id of the cell that holds every import of the lab."""


def role(cell: Notebook) -> str | None:
    """``"answer"``, ``"check"``, ``"given"``, or None for a cell that is no part of an exercise."""
    marks = cell.metadata.get("nbgrader", {})
    for name, key in (("answer", "solution"), ("check", "grade"), ("given", "locked")):
        if marks.get(key):
            return name
    return None


def grade_id(cell: Notebook) -> str:
    """What nbgrader calls a cell of an exercise."""
    return cell.metadata.nbgrader.grade_id


def exercise(master: Notebook) -> Notebook | None:
    """The exercise alone: the lab's imports, the text before each answer, given cells, answers and checks.

    Parameters
    ----------
    master : NotebookNode
        A lab with solutions and hidden tests.

    Returns
    -------
    NotebookNode or None
        None if the lab has no exercise.
    """
    kept, text = [], None
    for cell in master.cells:
        if cell.cell_type == "markdown":
            text = cell
        elif role(cell):
            kept += [one for one in (text, cell) if one is not None]
            text = None
    if not kept:
        return None
    marks = dict(grade=False, grade_id=IMPORTS, locked=True, schema_version=3, solution=False, task=False)
    imports = nbformat.v4.new_code_cell("\n".join(_imports(master)), metadata={"nbgrader": marks}, id=IMPORTS)
    alone = copy.deepcopy(master)
    alone.cells = [imports, *copy.deepcopy(kept)]
    return alone


def _imports(notebook: Notebook) -> Iterator[str]:
    """Import statements at the top level of its cells, in order."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for statement in ast.parse(cell.source).body:
                if isinstance(statement, (ast.Import, ast.ImportFrom)):
                    yield ast.unparse(statement)


def functions(source: str) -> list[str]:
    """Names of the functions that a cell defines."""
    return [one.name for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)]


def trials(graded: Notebook, asked: Notebook) -> Iterator[tuple[str, dict[str, Any]]]:
    """What has to be judged, as :mod:`dlpar.classroom.grading.judge` wants it.

    Parameters
    ----------
    graded : NotebookNode
        An exercise with a student's answers, its checks with their hidden tests.
    asked : NotebookNode
        The same with the solutions, which tells what functions are asked for.

    Yields
    ------
    (str, dict)
        Grade id of a check, and what the judge needs for it.
    """
    wanted = {grade_id(cell): functions(cell.source) for cell in asked.cells if role(cell) == "answer"}
    given, answers, names = [], [], []
    for cell in graded.cells:
        part = role(cell)
        if part == "given":
            given.append(cell.source)
        elif part == "answer":
            answers.append(cell.source)
            names += wanted[grade_id(cell)]
        elif part == "check":
            yield (
                grade_id(cell),
                dict(
                    given="\n\n".join(given),
                    answer="\n\n".join(answers),
                    names=list(names),
                    check=cell.source,
                ),
            )
