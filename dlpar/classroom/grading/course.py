"""A course of nbgrader's: exercises, what was handed in, points and feedback.

nbgrader keeps the gradebook, counts points and writes feedback.  It runs nothing: where it would execute a
notebook, :class:`Judged` puts in what the judge found, and what was not found solved is an error, so 0 points.
"""

from __future__ import annotations

import copy
import csv
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    ClearSolutions,
    NbGraderPreprocessor,
    SaveAutoGrades,
)
from sqlalchemy.exc import SAWarning
from traitlets import Dict
from traitlets.config import Config

from dlpar.classroom.grading.exercise import Notebook, exercise, grade_id, role
from dlpar.classroom.grading.release import STUB

warnings.filterwarnings(
    "ignore", category=SAWarning, module="nbgrader"
)  # of its own queries; nothing to be done

Verdicts = dict[str, dict[str, Any]]
"""By the grade id of a check: ``solved`` and ``said``."""

ELSEWHERE = re.compile(r'<script src="https?://[^"]*">\s*</script>')
"""What nbgrader's page would load from another machine, to set formulas: without it they stay as typed."""

COLUMNS = ("student", "lab", "points", "of", "said")


class CourseFailed(RuntimeError):
    """nbgrader could not do its part; its own words."""


class Judged(NbGraderPreprocessor):
    """Gives every check the output that its verdict earns."""

    verdicts = Dict(help="What the judge found, by student and lab, then by the check's grade id.").tag(
        config=True
    )

    def preprocess(self, nb: Notebook, resources: Any) -> tuple[Notebook, Any]:
        of = resources["nbgrader"]
        found = self.verdicts.get(f"{of['student']}/{of['notebook']}", {})
        for cell in nb.cells:
            if role(cell) == "check":
                verdict = found.get(grade_id(cell), {"solved": False, "said": "not yet: it was not judged"})
                cell.outputs = [_output(verdict)]
        return nb, resources


def _output(verdict: dict[str, Any]) -> Notebook:
    """nbgrader gives an error no points, and anything else all of them."""
    said = verdict["said"]
    if verdict["solved"] is True:
        return nbformat.v4.new_output("stream", name="stdout", text=said)
    return nbformat.v4.new_output("error", ename="NotSolved", evalue=said, traceback=said.splitlines())


@dataclass
class Lab:
    """An exercise in a course: with its solutions, and blank, both with their hidden tests."""

    name: str
    solved: Notebook
    blank: Notebook


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

    def _api(self, **of: Any) -> NbGraderAPI:
        config = Config(of)
        config.CourseDirectory.root = str(self.folder)
        config.CourseDirectory.db_url = self.database
        config.ClearSolutions.code_stub = {"python": STUB}
        config.HTMLExporter.sanitize_html = True
        config.Autograde.autograde_preprocessors = [
            Judged,
            SaveAutoGrades,
            AssignLatePenalties,
            CheckCellMetadata,
        ]
        return NbGraderAPI(config=config)

    def take(self, master: Path) -> Lab | None:
        """Put the exercise of a master into the course; None if it has none."""
        solved = exercise(nbformat.read(master, 4))
        if solved is None:
            return None
        name = master.stem
        self._write("source", name, name, solved)
        _done(self._api().generate_assignment(name), f"releasing {name}")
        blank = copy.deepcopy(solved)
        ClearSolutions(code_stub={"python": STUB}).preprocess(blank, {})
        return Lab(name, solved, blank)

    def grade(self, student: str, lab: Lab, notebook: Notebook, verdicts: Verdicts) -> None:
        """Write down a student's points for a lab, and her feedback.

        Parameters
        ----------
        student : str
        lab : Lab
        notebook : NotebookNode
            The exercise with her answers.
        verdicts : dict
            A check without one earns nothing.
        """
        self._nothing_yet(student, lab.name)
        self._write("submitted", f"{student}/{lab.name}", lab.name, notebook)
        api = self._api(Judged={"verdicts": {f"{student}/{lab.name}": verdicts}})
        _done(api.autograde(lab.name, student), f"grading {student}'s {lab.name}")
        _done(api.generate_feedback(lab.name, student), f"feedback for {student}'s {lab.name}")
        page = self.feedback(student, lab.name)
        page.write_text(ELSEWHERE.sub("", page.read_text("utf-8")), "utf-8")

    def _nothing_yet(self, student: str, lab: str) -> None:
        """Points of an earlier answer must not outlive it."""
        with Gradebook(self.database) as book:
            try:
                submission = book.find_submission(lab, student)
            except MissingEntry:
                return
            for notebook in submission.notebooks:
                for grade in notebook.grades:
                    grade.auto_score = 0
            book.db.commit()

    def rows(self) -> Iterator[tuple[str, str, float, float, str]]:
        """Student, lab, points, of how many, and what the judge said, from the gradebook."""
        with Gradebook(self.database) as book:
            found = sorted(
                (one.student.id, one.assignment.name, one.score, one.max_score)
                for assignment in book.assignments
                for one in assignment.submissions
            )
        for student, lab, score, most in found:
            yield student, lab, score, most, self._said(student, lab)

    def _said(self, student: str, lab: str) -> str:
        path = self.folder / "autograded" / student / lab / f"{lab}.ipynb"
        if not path.exists():
            return ""
        checks = [cell for cell in nbformat.read(path, 4).cells if role(cell) == "check"]
        return " · ".join(output.get("text") or output.evalue for cell in checks for output in cell.outputs)

    def write_grades(self) -> Path:
        """``grades.csv``: a line for each student and lab."""
        path = self.folder / "grades.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(COLUMNS)
            table.writerows(self.rows())
        return path

    def feedback(self, student: str, lab: str) -> Path:
        """A page for the student."""
        return self.folder / "feedback" / student / lab / f"{lab}.html"

    def _write(self, step: str, inside: str, name: str, notebook: Notebook) -> None:
        folder = self.folder / step / inside
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / f"{name}.ipynb")


def _done(result: dict[str, Any], what: str) -> None:
    if not result["success"]:
        why = (result.get("error") or result.get("log") or "no reason given").strip()
        raise CourseFailed(f"{what}: nbgrader says {why.splitlines()[-1]}\n{why}")
