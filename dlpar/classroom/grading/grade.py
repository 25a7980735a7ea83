"""Grading of exercises: judge answers in parallel, and store points and feedback in nbgrader's course.

A student may have changed, copied or deleted any cell and any mark in her notebook.  So only the text of her
answer is read from the notebook, and put into the teacher's exercise.  The cells of the exercise carry
nbgrader's metadata.  A *solution* cell holds an answer.  A *grade* cell checks the answers above it and binds
the verdict to ``solved``.  Any other *locked* cell gives code that both may use.

nbgrader keeps the gradebook, adds points and writes feedback.  It runs nothing: in its course, verdicts are the
output of the checks.  A check earns all its points if the answer solves it, and otherwise none.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import pwd
import re
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from subprocess import CalledProcessError
from threading import Lock
from typing import Any

import nbformat
import pandas as pd
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from nbgrader.preprocessors import ClearSolutions
from nbgrader.utils import is_grade, is_locked, is_solution
from sqlalchemy.exc import SQLAlchemyError
from traitlets.config import Config

from dlpar.classroom.grading.box import Box, CannotGrade
from dlpar.config.paths import open_plain
from dlpar.course.release import CLEAR
from dlpar.jobs.processes import descendants, kill

warnings.filterwarnings("ignore", module="nbgrader")  # SQLAlchemy's warnings about its queries

IMPORTS = "imports"
"""Grade id of the cell that holds every import of the lab."""

STUDENT = "{student}"
"""Placeholder of a student's name in a path."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
"""Form of a student's name, which becomes the name of a folder."""

LARGEST = 50_000_000
"""Maximum bytes of a notebook. Results of a lab take a few million bytes."""

LONGEST = 100_000
"""Maximum characters of an answer."""

PARSING = Lock()
"""Threads parse in turn, because CPython 3.11 fails otherwise (its issue 106905)."""


Verdict = dict[str, Any]
"""``solved`` and ``said``, from :meth:`Box.judge`."""

ELSEWHERE = re.compile(r'<script src="https?://[^"]*">\s*</script>')
"""Scripts for formulas, which nbgrader's page would load from another machine."""


# ---- an exercise, and its answers ---------------------------------------------------


class Unreadable(Exception):
    """Error: a notebook is missing, damaged or not the student's own. The message is one sentence."""


def role(cell: NotebookNode) -> str | None:
    """Return ``"answer"``, ``"check"`` or ``"given"``, or None for a cell that is not part of an exercise."""
    marks = {"answer": is_solution, "check": is_grade, "given": is_locked}
    return next((name for name, is_marked in marks.items() if is_marked(cell)), None)


def part(notebook: NotebookNode, wanted: str) -> NotebookNode:
    """Return the only cell that has a role in an exercise."""
    (cell,) = [cell for cell in notebook.cells if role(cell) == wanted]
    return cell


def exercise(master: NotebookNode) -> NotebookNode | None:
    """Extract the exercise of a lab: imports, the text before each cell, given cells, the answer and its check.

    Parameters
    ----------
    master : NotebookNode
        A lab with solutions and hidden tests.

    Returns
    -------
    NotebookNode or None
        None if the lab has no exercise.
    """
    introduces = {id(cell) for cell, after in pairwise(master.cells) if role(after)}
    kept = [c for c in master.cells if role(c) or (c.cell_type == "markdown" and id(c) in introduces)]
    marks = dict(grade=False, grade_id=IMPORTS, locked=True, schema_version=3, solution=False, task=False)
    code = "\n".join(cell.source for cell in master.cells if cell.cell_type == "code")
    first = new_code_cell("\n".join(imports_of(code)), metadata={"nbgrader": marks}, id=IMPORTS)
    return new_notebook(metadata=master.metadata, cells=[first, *kept]) if kept else None


def imports_of(code: str) -> list[str]:
    """Return the top-level import statements in order."""
    with PARSING:
        return [ast.unparse(s) for s in ast.parse(code).body if isinstance(s, ast.Import | ast.ImportFrom)]


def trial(blank: NotebookNode, answer: str) -> dict[str, Any]:
    """Return the input of :mod:`dlpar.classroom.grading.judge`.

    Parameters
    ----------
    blank : NotebookNode
        An exercise without its solution. It names the requested functions.
    answer : str
        A student's answer.

    Returns
    -------
    dict
        ``given``: code that runs before the check; ``lent``: code that runs before the answer; ``answer``,
        ``names`` and ``check``.  Lent code consists of given code, imports from outside dlpar, and imports of
        the exercise's own cells.
    """
    imports, *given = [cell.source for cell in blank.cells if role(cell) == "given"]
    asked, check = (part(blank, name).source for name in ("answer", "check"))
    names = re.findall(r"^def (\w+)", asked, re.MULTILINE)
    outside = [line for line in imports.splitlines() if not re.match(r"(from|import) dlpar\b", line)]
    lent = "\n".join([*outside, *given, *imports_of(asked)])
    return dict(given="\n".join([imports, *given]), lent=lent, answer=answer, names=names, check=check)


def students(where: str) -> list[str]:
    """List the students who have handed in notebooks.

    Parameters
    ----------
    where : str
        A folder with a folder for each student, or a path with ``{student}`` for the name, such as
        ``/home/{student}/dlpar-labs``.

    Returns
    -------
    list of str
        Names of all students with a folder, in order.

    Raises
    ------
    CannotGrade
        If a folder has a name that no student can have here: nobody is left out without a word.
    """
    before, _, after = (where if STUDENT in where else f"{where}/{STUDENT}").partition(STUDENT)
    names = [path.name for path in Path(before).glob("[!.]*") if Path(f"{path}{after}").is_dir()]
    if odd := [name for name in names if not NAME.fullmatch(name)]:
        allowed = "allowed are up to 64 ASCII letters, digits and _.@-, so rename the folder"
        raise CannotGrade(f"SUBMISSIONS: got a student {odd[0]!r}, {allowed}")
    return sorted(names)


def handed_in(where: str, student: str, lab: str) -> list[Any]:
    """Read the cells of a student's notebook. Links, other accounts' files and pipes are rejected.

    Parameters
    ----------
    where : str
        As for :func:`students`.
    student, lab : str
        Names of the student and of the lab, without ``.ipynb``.

    Raises
    ------
    Unreadable
        With the reason.
    """
    path = Path(where.replace(STUDENT, student) if STUDENT in where else f"{where}/{student}", f"{lab}.ipynb")
    try:
        with open_plain(path, os.O_NOFOLLOW) as file:
            if os.fstat(file.fileno()).st_uid not in _owners(where, student):
                raise Unreadable("the notebook is not the student's, yours or root's")
            return list(json.loads(file.read(LARGEST))["cells"])
    except OSError as error:
        there = [other.name for other in sorted(path.parent.glob("*.ipynb"))][:5] or "no notebook"
        why = "it is a link" if path.is_symlink() else error.strerror
        raise Unreadable(f"{lab}.ipynb cannot be opened ({why}); there is {there}") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise Unreadable(f"the notebook is damaged, or has more than {LARGEST // 1_000_000} MB") from None


def _owners(where: str, student: str) -> set[int]:
    """Return the accounts that may own a notebook.

    In a student's own folder only the student is allowed, because a link to the teacher's lab would hand in the
    teacher's solution.  In a folder of collected notebooks, the teacher is also allowed.
    """
    teacher = {os.getuid(), int(os.environ.get("SUDO_UID", os.getuid()))}
    with suppress(KeyError):
        own = {pwd.getpwnam(student).pw_uid}
        return own if STUDENT in where else own | teacher
    return teacher


def answer_in(cells: list[Any], wanted: str) -> str:
    """Return the text of the only code cell that is marked as the answer with grade id `wanted`.

    Parameters
    ----------
    cells : list
        Cells of a student's notebook, as they were read.
    wanted : str
        nbgrader's name of the answer.

    Raises
    ------
    Unreadable
        If there is no such cell or more than one, or if its text is too long.
    """
    found = []
    for cell in cells:
        match cell:
            case {"cell_type": "code", "metadata": {"nbgrader": {"grade_id": key}}, "source": str() | list()}:
                if key == wanted:
                    found.append("".join(map(str, cell["source"])).encode(errors="replace").decode())
    if len(found) != 1:
        raise Unreadable(f"{len(found) or 'no'} cells of the notebook are marked {wanted}; there must be one")
    if len(found[0]) > LONGEST:
        raise Unreadable(f"the answer {wanted} is longer than {LONGEST:,} characters")
    return found[0]


# ---- verdicts and points ------------------------------------------------------------


class Course:
    """Folder with nbgrader's course, closed to others.

    Parameters
    ----------
    folder : Path
        Created if missing.  It holds ``source``, ``release``, ``autograded`` and ``feedback`` in nbgrader's
        format, ``gradebook.db`` and ``grades.csv``.

    Raises
    ------
    CannotGrade
        If the folder holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        if folder.is_dir() and os.listdir(folder) and not (folder / "source").is_dir():
            raise CannotGrade(f"--course: got '{folder}', allowed is a course, or an empty or new folder")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        course = {"root": str(self.folder), "db_url": f"sqlite:///{self.folder / 'gradebook.db'}"}
        config = Config(CourseDirectory=course, ClearSolutions=CLEAR, HTMLExporter={"sanitize_html": True})
        self.nbgrader = NbGraderAPI(config=config)
        # nbgrader calls alembic by its name, but sudo removes this environment from the PATH.
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

    @contextmanager
    def _gradebook(self) -> Iterator[Gradebook]:
        """Open the gradebook. Raises :class:`CannotGrade` if it is damaged or cannot be written."""
        try:
            with self.nbgrader.gradebook as book:
                yield book
        except (SQLAlchemyError, CalledProcessError) as error:
            why = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise CannotGrade(f"{self.folder / 'gradebook.db'}: nbgrader cannot use it ({why})") from None

    def take(self, masters: list[Path]) -> dict[str, NotebookNode]:
        """Add the exercises of these masters to the course.

        Returns
        -------
        dict
            Exercises by the lab's name, without solutions but with hidden tests. Labs without an exercise are
            omitted.

        Raises
        ------
        CannotGrade
            If a lab cannot be read, an exercise does not have one answer and one check, or nbgrader fails.
        """
        labs = {}
        for master in masters:
            try:
                solved = exercise(nbformat.read(master, 4))
            except (ValueError, TypeError, AttributeError, SyntaxError, nbformat.ValidationError) as error:
                why = str(error).splitlines()[0]
                raise CannotGrade(f"{master}: not a lab that can be read ({why})") from None
            if solved is None:
                continue
            roles = [role(cell) for cell in solved.cells]
            if (roles.count("answer"), roles.count("check")) != (1, 1):
                raise CannotGrade(f"{master}: an exercise has one answer cell and one check cell")
            self._write("source", master.stem, master.stem, solved)
            _done(self.nbgrader.generate_assignment(master.stem), f"releasing {master.stem}")
            labs[master.stem], _ = ClearSolutions(**CLEAR).preprocess(solved, {})
        return labs

    def record(self, student: str, lab: str, notebook: NotebookNode, verdict: Verdict) -> None:
        """Store a student's points and feedback for a lab."""
        check = part(notebook, "check")
        check.outputs = [new_output("stream", name="stdout", text=verdict["said"])]
        self._write("autograded", f"{student}/{lab}", lab, notebook)
        with self._gradebook() as book:
            book.update_or_create_student(student)
            book.update_or_create_submission(lab, student)
            earned = book.find_grade(check.metadata.nbgrader.grade_id, lab, lab, student)
            earned.auto_score = earned.max_score if verdict["solved"] is True else 0
            book.db.commit()
        _done(self.nbgrader.generate_feedback(lab, student), f"feedback for {student}'s {lab}")
        page = self.folder / "feedback" / student / lab / f"{lab}.html"
        page.write_text(ELSEWHERE.sub("", page.read_text("utf-8")), "utf-8")

    def write_grades(self) -> Path:
        """Write ``grades.csv`` with one line for each student and lab: the points and the verdicts."""
        with self._gradebook() as book:
            submissions = [one for assignment in book.assignments for one in assignment.submissions]
            found = [(one.student.id, one.assignment.name, one.score, one.max_score) for one in submissions]
        path, pages = self.folder / "grades.csv", self.folder / "autograded"
        # The page of a student who has left may be gone.
        said = lambda page: part(nbformat.read(page, 4), "check").outputs[0].text if page.exists() else ""
        rows = [(*row, said(pages / row[0] / row[1] / f"{row[1]}.ipynb")) for row in sorted(found)]
        pd.DataFrame(rows, columns=["student", "lab", "points", "of", "said"]).to_csv(path, index=False)
        return path

    def _write(self, step: str, inside: str, name: str, notebook: NotebookNode) -> None:
        folder = self.folder / step / inside
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / f"{name}.ipynb")


def _done(result: dict[str, Any], what: str) -> None:
    if not result["success"]:
        why = (result.get("error") or result.get("log") or "no reason given").strip()
        raise CannotGrade(f"{what}: nbgrader says {why.splitlines()[-1]}")


def judged(where: str, student: str, lab: str, blank: NotebookNode, box: Box) -> tuple[NotebookNode, Verdict]:
    """Judge a student's answer to a lab. A missing or unchanged answer is not run.

    After updates of the lab, new versions may lie beside her own copy. The newest solved answer counts, or else
    the newest answer.

    Returns
    -------
    (NotebookNode, dict)
        The exercise with the answer, and the verdict.
    """
    notebook = copy.deepcopy(blank)
    answer = part(notebook, "answer")
    number, found, verdicts = answer.metadata.nbgrader.grade_id, list[str](), {}
    for updates in (4, 3, 2, 1, 0):  # each update may have added a copy named (new)
        try:
            found.append(answer_in(handed_in(where, student, lab + " (new)" * updates), number))
        except Unreadable as reason:
            why = f"not handed in: {reason}"
    tried = [text for text in dict.fromkeys(found) if text != answer.source]
    for text in tried:
        verdicts[text] = box.judge(trial(blank, text))
        if verdicts[text]["solved"]:
            break
    if not tried:
        said = "to do: the answer is unchanged since its release" if found else why
        return notebook, {"solved": False, "said": said}
    answer.source = text if verdicts[text]["solved"] else tried[0]
    return notebook, verdicts[answer.source]


def grade(
    course: Course, where: str, labs: dict[str, NotebookNode], box: Box, at_a_time: int
) -> Iterator[tuple[str, str, Verdict]]:
    """Judge submissions, a few answers at a time, and record each verdict immediately.

    Parameters
    ----------
    course : Course
    where : str
        Folders of the students, as for :func:`students`. Every student gets a verdict for every lab.
    labs : dict
        Exercises, from :meth:`Course.take`.
    box : Box
    at_a_time : int
        Number of answers judged at the same time. It is 1 if answers are not isolated, because left-over
        processes cannot be distinguished.

    Yields
    ------
    (str, str, dict)
        A student, a lab and the verdict.

    Raises
    ------
    CannotGrade
        If an answer cannot be judged for a reason outside the answer, or nbgrader fails. Recorded verdicts
        stay.
    """
    where = os.path.abspath(where)  # nbgrader changes the working directory for a while
    pairs = [(student, lab) for student in students(where) for lab in labs]
    with ThreadPoolExecutor(at_a_time) as pool:
        verdicts = pool.map(lambda pair: judged(where, *pair, labs[pair[1]], box), pairs)
        try:
            for (student, lab), (notebook, verdict) in zip(pairs, verdicts):
                course.record(student, lab, notebook, verdict)
                yield student, lab, verdict
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kill(descendants(os.getpid()))  # judges still running
            raise
