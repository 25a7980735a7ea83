"""Grade what students handed in: judge answers side by side, and keep points and feedback in nbgrader's course.

A student may have changed, copied or deleted any cell and any mark in her notebook.  So only the text of her answers
is read from it, and is put into the teacher's exercise.  Its cells carry nbgrader's metadata.  A *solution* cell holds
an answer.  A *grade* cell checks the answers above it and binds the verdict to ``solved``.  Any other *locked* cell
gives code that both may use.

nbgrader keeps the gradebook, adds points and writes feedback.  It runs nothing: in its course, the verdicts stand as
output of the checks.  A check earns all its points if it was found solved, and otherwise none.
"""

from __future__ import annotations

import ast
import copy
import csv
import json
import os
import pwd
import re
import stat
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from nbgrader.preprocessors import ClearSolutions
from sqlalchemy.exc import SAWarning
from traitlets.config import Config

from dlpar.classroom.grading.box import Box
from dlpar.classroom.grading.release import CLEAR
from dlpar.jobs.processes import descendants, kill

warnings.filterwarnings("ignore", category=SAWarning, module="nbgrader")  # about its own queries

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


Verdicts = dict[str, dict[str, Any]]
"""``solved`` and ``said`` of each check, by its grade id."""

NOTEBOOK_SECONDS = 3
"""Time limit of all checks of a notebook together, as a multiple of the limit of one check."""

ELSEWHERE = re.compile(r'<script src="https?://[^"]*">\s*</script>')
"""Scripts that nbgrader's page would load from another machine, to set formulas."""

COLUMNS = ("student", "lab", "points", "of", "said")


# ---- an exercise, and its answers ---------------------------------------------------


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


def trials(blank: NotebookNode, answered: NotebookNode) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the input of :mod:`dlpar.classroom.grading.judge` for each check.

    Parameters
    ----------
    blank : NotebookNode
        An exercise without solutions; its functions are those asked for.
    answered : NotebookNode
        The same with a student's answers.

    Yields
    ------
    (str, dict)
        Grade id of a check, and ``given``, ``answer``, ``names`` and ``check``.
    """
    given, answers, names = [], [], []
    for asked, cell in zip(blank.cells, answered.cells):
        if role(cell) == "given":
            given.append(cell.source)
        elif role(cell) == "answer":
            answers.append(cell.source)
            names += [one.name for one in ast.parse(asked.source).body if isinstance(one, ast.FunctionDef)]
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


# ---- verdicts and points ------------------------------------------------------------


class CourseFailed(RuntimeError):
    """nbgrader failed; its own words."""


def _not_solved(why: str) -> dict[str, Any]:
    return {"solved": False, "said": why}


class Course:
    """A folder with nbgrader's course, closed to others.

    Parameters
    ----------
    folder : Path
        Made if missing.  Below it: ``source``, ``release``, ``autograded``, ``feedback``, each as nbgrader has it,
        ``gradebook.db`` and ``grades.csv``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.database = f"sqlite:///{self.folder / 'gradebook.db'}"
        course = {"root": str(self.folder), "db_url": self.database}
        config = Config(CourseDirectory=course, ClearSolutions=CLEAR, HTMLExporter={"sanitize_html": True})
        self.nbgrader = NbGraderAPI(config=config)

    def take(self, masters: list[Path]) -> dict[str, NotebookNode]:
        """Put the exercises of these masters into the course.

        Returns
        -------
        dict
            By the lab's name, its exercise without solutions, with hidden tests; labs without one are left out.
        """
        labs = {}
        for master in masters:
            solved = exercise(nbformat.read(master, 4))
            if solved is not None:
                self._write("source", master.stem, master.stem, solved)
                _done(self.nbgrader.generate_assignment(master.stem), f"releasing {master.stem}")
                blank = copy.deepcopy(solved)
                labs[master.stem], _ = ClearSolutions(**CLEAR).preprocess(blank, {})
        return labs

    def record(self, student: str, lab: str, notebook: NotebookNode, verdicts: Verdicts) -> None:
        """Write down a student's points and feedback for a lab; a check without a verdict earns nothing."""
        with Gradebook(self.database) as book:
            book.update_or_create_student(student)
            book.update_or_create_submission(lab, student)
            for cell in notebook.cells:
                if role(cell) == "check":
                    verdict = verdicts.get(grade_id(cell), _not_solved("not yet: it was not judged"))
                    earned = book.find_grade(grade_id(cell), lab, lab, student)
                    earned.auto_score = earned.max_score if verdict["solved"] is True else 0
                    cell.outputs = [new_output("stream", name="stdout", text=verdict["said"])]
            book.db.commit()
        self._write("autograded", f"{student}/{lab}", lab, notebook)
        _done(self.nbgrader.generate_feedback(lab, student), f"feedback for {student}'s {lab}")
        page = self.folder / "feedback" / student / lab / f"{lab}.html"
        page.write_text(ELSEWHERE.sub("", page.read_text("utf-8")), "utf-8")

    def write_grades(self) -> Path:
        """Write ``grades.csv``, a line for each student and lab: points from the gradebook, and the verdicts."""
        with Gradebook(self.database) as book:
            submissions = [one for assignment in book.assignments for one in assignment.submissions]
            found = [(one.student.id, one.assignment.name, one.score, one.max_score) for one in submissions]
        path = self.folder / "grades.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(COLUMNS)
            table.writerows([*row, self._said(*row[:2])] for row in sorted(found))
        return path

    def _said(self, student: str, lab: str) -> str:
        path = self.folder / "autograded" / student / lab / f"{lab}.ipynb"
        cells = nbformat.read(path, 4).cells if path.exists() else []
        checks = [cell for cell in cells if role(cell) == "check"]
        return " · ".join(output.get("text") or output.evalue for cell in checks for output in cell.outputs)

    def _write(self, step: str, inside: str, name: str, notebook: NotebookNode) -> None:
        folder = self.folder / step / inside
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / f"{name}.ipynb")


def _done(result: dict[str, Any], what: str) -> None:
    if not result["success"]:
        why = (result.get("error") or result.get("log") or "no reason given").strip()
        raise CourseFailed(f"{what}: nbgrader says {why.splitlines()[-1]}\n{why}")


def judged(
    where: str, student: str, lab: str, blank: NotebookNode, box: Box
) -> tuple[NotebookNode, Verdicts]:
    """Judge a student's answers to a lab; nothing is run for an answer that is missing or as it was released.

    Returns
    -------
    (NotebookNode, dict)
        The exercise with the answers, and a verdict for each check.
    """
    try:
        notebook, faults = with_answers(blank, handed_in(where, student, lab))
    except Unreadable as reason:
        notebook, faults = blank, [str(reason)]
    verdicts: Verdicts = {}
    end = time.monotonic() + NOTEBOOK_SECONDS * box.seconds
    for check, trial in trials(blank, notebook):
        left = end - time.monotonic()
        if faults:
            verdicts[check] = _not_solved(f"not handed in: {'; '.join(faults)}")
        elif _answers(notebook) == _answers(blank):
            verdicts[check] = _not_solved("to do: the answer is as it was released")
        elif left <= 0:
            verdicts[check] = _not_solved("not yet: the checks before took the notebook's whole time")
        else:
            verdicts[check] = box.judge(trial, left)
    return notebook, verdicts


def _answers(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if role(cell) == "answer"]


def grade(
    course: Course, where: str, labs: dict[str, NotebookNode], box: Box, at_a_time: int
) -> Iterator[tuple[str, str, Verdicts]]:
    """Judge what was handed in, a few answers at a time, and record each when it is judged.

    Parameters
    ----------
    course : Course
    where : str
        Folders of the students, as for :func:`students`; every student gets a verdict for every lab.
    labs : dict
        Exercises, from :meth:`Course.take`.
    box : Box
    at_a_time : int
        Must be 1 where answers are not isolated: processes they leave behind could not be told apart.

    Yields
    ------
    (str, str, dict)
        A student, a lab and the verdicts.

    Raises
    ------
    CannotGrade
        If an answer cannot be judged for no fault of its own; what was recorded stays.
    CourseFailed
        If nbgrader fails.
    """
    pairs = [(student, lab) for student in students(where) for lab in labs]
    with ThreadPoolExecutor(at_a_time) as pool:
        waiting = [pool.submit(judged, where, student, lab, labs[lab], box) for student, lab in pairs]
        try:
            for (student, lab), future in zip(pairs, waiting):
                notebook, verdicts = future.result()
                course.record(student, lab, notebook, verdicts)
                yield student, lab, verdicts
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kill(descendants(os.getpid()))  # judges still at work
            raise
