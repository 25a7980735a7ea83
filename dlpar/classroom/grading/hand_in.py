"""What students hand in: of each notebook the answers, and nothing else.

A student may have changed, copied or deleted any cell and any mark in her notebook.  So nothing of it is used
but the text of her answers, which is put into the teacher's exercise.
"""

from __future__ import annotations

import copy
import json
import os
import pwd
import re
import stat
from pathlib import Path
from typing import Any

from dlpar.classroom.grading.exercise import Notebook, grade_id, role

STANDS = "{student}"
"""Stands for a student's name in a path."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
"""Of a student: it becomes a folder's."""

LARGEST = 50_000_000
"""Bytes of a notebook; results of a lab take a few millions."""

LONGEST = 100_000
"""Characters of an answer."""


class Unreadable(ValueError):
    """A notebook that is not there or is none, or is not the student's own; one sentence."""


def students(where: str) -> list[str]:
    """Who hands in.

    Parameters
    ----------
    where : str
        A folder with a folder for each student, or a path in which ``{student}`` stands for her name, such as
        ``/home/{student}/dlpar-labs``.

    Returns
    -------
    list of str
        Whoever has a folder there, in order.
    """
    before, mark, after = where.partition(STANDS)
    base = Path(before if mark else where)
    names = [path.name for path in base.iterdir() if NAME.fullmatch(path.name)] if base.is_dir() else []
    return sorted(name for name in names if Path(f"{base}/{name}{after}").is_dir())


def read(where: str, student: str, lab: str) -> list[Any]:
    """The cells of a student's notebook; follows no link, reads nobody else's file, and waits for no pipe.

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
    folder = where.replace(STANDS, student) if STANDS in where else f"{where}/{student}"
    path = Path(folder) / f"{lab}.ipynb"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
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
    """Whose a notebook may be: in a folder that the teacher has filled hers, in a student's own only the student's.

    Else a link to a lab of the teacher's would hand in her solution.
    """
    teacher = {os.getuid(), int(os.environ.get("SUDO_UID", os.getuid()))}
    try:
        own = {pwd.getpwnam(student).pw_uid}
    except KeyError:
        return teacher
    return own if STANDS in where else own | teacher


def answered(blank: Notebook, cells: list[Any]) -> tuple[Notebook, list[str]]:
    """The teacher's exercise with a student's answers in it.

    Parameters
    ----------
    blank : NotebookNode
        The exercise without solutions, with hidden tests.
    cells : list
        Of the student's notebook, as they were read.

    Returns
    -------
    (NotebookNode, list of str)
        What is missing, a sentence each; such a cell stays as it was released.
    """
    notebook, missing = copy.deepcopy(blank), []
    for cell in notebook.cells:
        if role(cell) != "answer":
            continue
        found = [text for one in cells if (text := _answer(one, grade_id(cell))) is not None]
        if len(found) != 1:
            missing.append(
                f"{len(found) or 'no'} cells of the notebook are marked {grade_id(cell)}; there must be one"
            )
        elif len(found[0]) > LONGEST:
            missing.append(f"the answer {grade_id(cell)} is longer than {LONGEST:,} characters")
        else:
            cell.source = found[0]
    return notebook, missing


def _answer(cell: Any, wanted: str) -> str | None:
    """Text of a cell if it is marked as the answer that is wanted."""
    try:
        if cell["cell_type"] != "code" or cell["metadata"]["nbgrader"]["grade_id"] != wanted:
            return None
        text = cell["source"]
        text = "".join(text) if isinstance(text, list) else text
        return text.encode("utf-8", errors="replace").decode() if isinstance(text, str) else None
    except (KeyError, TypeError):
        return None
