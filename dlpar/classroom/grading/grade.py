"""Grade what students handed in: judge answers side by side, and keep points and feedback in nbgrader's course.

nbgrader keeps the gradebook, counts points and writes feedback.  It runs nothing: where it would execute a
notebook, :class:`Judged` inserts the verdicts.  Whatever was not found solved is an error there, so 0 points.
"""

from __future__ import annotations

import copy
import csv
import os
import re
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader import preprocessors
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from sqlalchemy.exc import SAWarning
from traitlets import Dict
from traitlets.config import Config

from dlpar.classroom.grading import exercise
from dlpar.classroom.grading.box import Box
from dlpar.classroom.grading.exercise import grade_id, role
from dlpar.classroom.grading.release import STUB
from dlpar.jobs.processes import descendants, kill

warnings.filterwarnings("ignore", category=SAWarning, module="nbgrader")  # about its own queries

Verdicts = dict[str, dict[str, Any]]
"""``solved`` and ``said`` of each check, by its grade id."""

NOTEBOOK_SECONDS = 3
"""Time limit of all checks of a notebook together, as a multiple of the limit of one check."""

ELSEWHERE = re.compile(r'<script src="https?://[^"]*">\s*</script>')
"""Scripts that nbgrader's page would load from another machine, to set formulas."""

COLUMNS = ("student", "lab", "points", "of", "said")


class CourseFailed(RuntimeError):
    """nbgrader failed; its own words."""


class Judged(preprocessors.NbGraderPreprocessor):
    """Give every check the output that its verdict earns: nbgrader gives an error no points, anything else all."""

    verdicts = Dict(help="Verdicts by the check's grade id.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        for cell in nb.cells:
            if role(cell) == "check":
                verdict = self.verdicts.get(grade_id(cell), _not_solved("not yet: it was not judged"))
                said = verdict["said"]
                if verdict["solved"] is True:
                    output = nbformat.v4.new_output("stream", name="stdout", text=said)
                else:
                    lines = said.splitlines()
                    output = nbformat.v4.new_output("error", ename="NotSolved", evalue=said, traceback=lines)
                cell.outputs = [output]
        return nb, resources


def _not_solved(why: str) -> dict[str, Any]:
    return {"solved": False, "said": why}


@dataclass
class Lab:
    """An exercise in a course: with its solutions, and blank, both with their hidden tests."""

    name: str
    solved: NotebookNode
    blank: NotebookNode


class Course:
    """A folder with nbgrader's course, closed to others.

    Parameters
    ----------
    folder : Path
        Made if missing.  Below it: ``source``, ``release``, ``submitted``, ``autograded``, ``feedback``, each as
        nbgrader has it, ``gradebook.db`` and ``grades.csv``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(self.folder, 0o700)
        self.database = f"sqlite:///{self.folder / 'gradebook.db'}"

    def _api(self, verdicts: Verdicts | None = None) -> NbGraderAPI:
        config = Config()
        config.CourseDirectory.root = str(self.folder)
        config.CourseDirectory.db_url = self.database
        config.ClearSolutions.code_stub = {"python": STUB}
        config.HTMLExporter.sanitize_html = True
        config.Judged.verdicts = verdicts or {}
        config.Autograde.autograde_preprocessors = [Judged, preprocessors.SaveAutoGrades]
        return NbGraderAPI(config=config)

    def take(self, masters: list[Path]) -> list[Lab]:
        """Put the exercises of these masters into the course; labs without one are left out."""
        labs = []
        for master in masters:
            solved = exercise.exercise(nbformat.read(master, 4))
            if solved is not None:
                self._write("source", master.stem, master.stem, solved)
                _done(self._api().generate_assignment(master.stem), f"releasing {master.stem}")
                blank = copy.deepcopy(solved)
                preprocessors.ClearSolutions(code_stub={"python": STUB}).preprocess(blank, {})
                labs.append(Lab(master.stem, solved, blank))
        return labs

    def record(self, student: str, lab: str, notebook: NotebookNode, verdicts: Verdicts) -> None:
        """Write down a student's points and feedback for a lab; a check without a verdict earns nothing."""
        with Gradebook(self.database) as book, suppress(MissingEntry):
            for earlier in book.find_submission(lab, student).notebooks:
                for grade in earlier.grades:
                    grade.auto_score = 0  # points of an earlier answer must not outlive it
            book.db.commit()
        self._write("submitted", f"{student}/{lab}", lab, notebook)
        api = self._api(verdicts)
        _done(api.autograde(lab, student), f"grading {student}'s {lab}")
        _done(api.generate_feedback(lab, student), f"feedback for {student}'s {lab}")
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


def judged(where: str, student: str, lab: Lab, box: Box) -> tuple[NotebookNode, Verdicts]:
    """Judge a student's answers to a lab; nothing is run for an answer that is missing or as it was released.

    Returns
    -------
    (NotebookNode, dict)
        The exercise with the answers, and a verdict for each check.
    """
    try:
        notebook, faults = exercise.with_answers(lab.blank, exercise.handed_in(where, student, lab.name))
    except exercise.Unreadable as reason:
        notebook, faults = lab.blank, [str(reason)]
    verdicts: Verdicts = {}
    end = time.monotonic() + NOTEBOOK_SECONDS * box.seconds
    for check, trial in exercise.trials(notebook, lab.solved):
        left = end - time.monotonic()
        if faults:
            verdicts[check] = _not_solved(f"not handed in: {'; '.join(faults)}")
        elif _answers(notebook) == _answers(lab.blank):
            verdicts[check] = _not_solved("to do: the answer is as it was released")
        elif left <= 0:
            verdicts[check] = _not_solved("not yet: the checks before took the notebook's whole time")
        else:
            verdicts[check] = box.judge(trial, left)
    return notebook, verdicts


def _answers(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if role(cell) == "answer"]


def grade(
    course: Course, where: str, labs: list[Lab], box: Box, at_a_time: int
) -> Iterator[tuple[str, Lab, Verdicts]]:
    """Judge what was handed in, a few answers at a time, and record each when it is judged.

    Parameters
    ----------
    course : Course
    where : str
        Folders of the students, as for :func:`exercise.students`; every student gets a verdict for every lab.
    labs : list of Lab
    box : Box
    at_a_time : int
        Must be 1 where answers are not isolated: processes they leave behind could not be told apart.

    Yields
    ------
    (str, Lab, dict)
        A student, a lab and the verdicts.

    Raises
    ------
    CannotGrade
        If an answer cannot be judged for no fault of its own; what was recorded stays.
    CourseFailed
        If nbgrader fails.
    """
    pairs = [(student, lab) for student in exercise.students(where) for lab in labs]
    with ThreadPoolExecutor(at_a_time) as pool:
        waiting = [pool.submit(judged, where, student, lab, box) for student, lab in pairs]
        try:
            for (student, lab), future in zip(pairs, waiting):
                notebook, verdicts = future.result()
                course.record(student, lab.name, notebook, verdicts)
                yield student, lab, verdicts
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kill(descendants(os.getpid()))  # judges still at work
            raise
