"""The exercise of a lab: its cells, and the answers that a student's notebook holds.

Cells carry nbgrader's metadata.  A *solution* cell holds an answer.  A *grade* cell checks the answers above it
and binds the verdict to ``solved``.  Any other *locked* cell gives code that both may use.

A student may have changed, copied or deleted any cell and any mark in her notebook.  So only the text of her
answers is read from it, and is put into the teacher's exercise.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import pwd
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

IMPORTS = "imports"
"""Grade id of the cell that holds every import of the lab."""

STUDENT = "{student}"
"""Placeholder of a student's name in a path."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
"""Form of a student's name, which becomes the name of a folder."""

LARGEST = 50_000_000
"""Bytes of a notebook; results of a lab take a few millions."""

LONGEST = 100_000
"""Characters of an answer."""


class Unreadable(ValueError):
    """A notebook that is missing, damaged or not the student's own; one sentence."""


def role(cell: NotebookNode) -> str | None:
    """Return ``"answer"``, ``"check"`` or ``"given"``; None for a cell that is not part of an exercise."""
    marks = cell.metadata.get("nbgrader", {})
    for name, key in (("answer", "solution"), ("check", "grade"), ("given", "locked")):
        if marks.get(key):
            return name
    return None


def grade_id(cell: NotebookNode) -> str:
    """Return nbgrader's name of a cell of an exercise."""
    return cell.metadata.nbgrader.grade_id


def exercise(master: NotebookNode) -> NotebookNode | None:
    """Cut the exercise out of a lab: all imports, the text before each answer, given cells, answers and checks.

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
    imports = new_code_cell("\n".join(_imports(master)), metadata={"nbgrader": marks}, id=IMPORTS)
    alone = copy.deepcopy(master)
    alone.cells = [imports, *copy.deepcopy(kept)]
    return alone


def _imports(notebook: NotebookNode) -> Iterator[str]:
    """Yield the import statements at the top level of its cells, in order."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for statement in ast.parse(cell.source).body:
                if isinstance(statement, (ast.Import, ast.ImportFrom)):
                    yield ast.unparse(statement)


def trials(answered: NotebookNode, solved: NotebookNode) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the input of :mod:`dlpar.classroom.grading.judge` for each check.

    Parameters
    ----------
    answered : NotebookNode
        An exercise with a student's answers, its checks with their hidden tests.
    solved : NotebookNode
        The same with the solutions, whose functions are those asked for.

    Yields
    ------
    (str, dict)
        Grade id of a check, and ``given``, ``answer``, ``names`` and ``check``.
    """
    asked = {grade_id(cell): ast.parse(cell.source).body for cell in solved.cells if role(cell) == "answer"}
    given, answers, names = [], [], []
    for cell in answered.cells:
        if role(cell) == "given":
            given.append(cell.source)
        elif role(cell) == "answer":
            answers.append(cell.source)
            names += [one.name for one in asked[grade_id(cell)] if isinstance(one, ast.FunctionDef)]
        elif role(cell) == "check":
            trial = dict(given="\n\n".join(given), answer="\n\n".join(answers), names=[*names])
            yield grade_id(cell), trial | {"check": cell.source}


def students(where: str) -> list[str]:
    """List the students who hand in.

    Parameters
    ----------
    where : str
        A folder with a folder for each student, or a path with ``{student}`` for the name, such as
        ``/home/{student}/dlpar-labs``.

    Returns
    -------
    list of str
        Names of all that have a folder there, in order.
    """
    before, _, after = (where if STUDENT in where else f"{where}/{STUDENT}").partition(STUDENT)
    names = [path.name for path in Path(before).glob("*") if NAME.fullmatch(path.name)]
    return sorted(name for name in names if Path(f"{before}{name}{after}").is_dir())


def handed_in(where: str, student: str, lab: str) -> list[Any]:
    """Read the cells of a student's notebook; follow no link, open no other account's file, wait for no pipe.

    Parameters
    ----------
    where : str
        As for :func:`students`.
    student, lab : str
        Names; the lab's without ``.ipynb``.

    Raises
    ------
    Unreadable
        With the reason.
    """
    folder = where.replace(STUDENT, student) if STUDENT in where else f"{where}/{student}"
    try:
        handle = os.open(f"{folder}/{lab}.ipynb", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise Unreadable("no notebook was handed in") from None
    except OSError as error:
        raise Unreadable(f"the notebook cannot be opened ({error.strerror})") from None
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > LARGEST:
            raise Unreadable(f"the notebook is no file of at most {LARGEST // 1_000_000} MB")
        if facts.st_uid not in _owners(where, student):
            raise Unreadable("the notebook belongs to somebody else")
        content = file.read(LARGEST + 1)
    try:
        cells = json.loads(content)["cells"]
    except (ValueError, KeyError, TypeError, RecursionError):
        cells = None
    if not isinstance(cells, list):
        raise Unreadable("the notebook is damaged")
    return cells


def _owners(where: str, student: str) -> set[int]:
    """Return the accounts a notebook may belong to.

    In a student's own folder this is the student alone: a link to a lab of the teacher's would hand in the
    teacher's solution.  In a folder of collected notebooks it is also the teacher.
    """
    teacher = {os.getuid(), int(os.environ.get("SUDO_UID", os.getuid()))}
    try:
        own = {pwd.getpwnam(student).pw_uid}
    except KeyError:
        return teacher
    return own if STUDENT in where else own | teacher


def with_answers(blank: NotebookNode, cells: list[Any]) -> tuple[NotebookNode, list[str]]:
    """Put a student's answers into the teacher's exercise.

    Parameters
    ----------
    blank : NotebookNode
        The exercise without solutions, with hidden tests.
    cells : list
        Cells of the student's notebook, as they were read.

    Returns
    -------
    (NotebookNode, list of str)
        The second has a sentence for each missing answer; such a cell stays as it was released.
    """
    notebook, missing = copy.deepcopy(blank), []
    for cell in notebook.cells:
        if role(cell) != "answer":
            continue
        found = [text for one in cells if (text := _answer(one, grade_id(cell))) is not None]
        if len(found) != 1:
            number = len(found) or "no"
            missing.append(f"{number} cells of the notebook are marked {grade_id(cell)}; there must be one")
        elif len(found[0]) > LONGEST:
            missing.append(f"the answer {grade_id(cell)} is longer than {LONGEST:,} characters")
        else:
            cell.source = found[0]
    return notebook, missing


def _answer(cell: Any, wanted: str) -> str | None:
    """Return the text of a cell if it is marked as the answer that is wanted."""
    try:
        if cell["cell_type"] != "code" or cell["metadata"]["nbgrader"]["grade_id"] != wanted:
            return None
        text = cell["source"]
        text = "".join(text) if isinstance(text, list) else text
        return text.encode("utf-8", errors="replace").decode() if isinstance(text, str) else None
    except (KeyError, TypeError):
        return None
