"""Grades what students handed in: reads answers, judges them side by side, writes points and feedback."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dlpar.classroom.grading import hand_in
from dlpar.classroom.grading.box import Box
from dlpar.classroom.grading.course import Course, Lab, Verdicts
from dlpar.classroom.grading.exercise import Notebook, grade_id, role, trials
from dlpar.jobs.processes import descendants, kill

NOTEBOOK_SECONDS = 3
"""A notebook's judges may take together so many times the seconds of one check."""


@dataclass
class Submission:
    """One student's answers to one lab; `faults` says what cannot be judged, and earns nothing."""

    student: str
    lab: Lab
    notebook: Notebook
    faults: list[str]


def submissions(where: str, labs: list[Lab]) -> list[Submission]:
    """Of every student of :func:`dlpar.classroom.grading.hand_in.students`, one for each lab, handed in or not."""
    found = []
    for student in hand_in.students(where):
        for lab in labs:
            try:
                notebook, faults = hand_in.answered(lab.blank, hand_in.read(where, student, lab.name))
            except hand_in.Unreadable as reason:
                notebook, faults = lab.blank, [str(reason)]
            found.append(Submission(student, lab, notebook, faults))
    return found


def judged(one: Submission, box: Box) -> Verdicts:
    """What the judge says of each check; nothing is run for what was not answered."""
    verdicts: Verdicts = {}
    end = time.monotonic() + NOTEBOOK_SECONDS * box.seconds
    for check, trial in trials(one.notebook, one.lab.solved):
        left = end - time.monotonic()
        if one.faults:
            verdicts[check] = {"solved": False, "said": f"not handed in: {'; '.join(one.faults)}"}
        elif not _written(one):
            verdicts[check] = {"solved": False, "said": "to do: the answer is as it was released"}
        elif left <= 0:
            verdicts[check] = {
                "solved": False,
                "said": "not yet: the checks before took the notebook's whole time",
            }
        else:
            verdicts[check] = box.judge(trial, left)
    return verdicts


def _written(one: Submission) -> bool:
    """Whether any answer differs from what was released."""
    released = {grade_id(cell): cell.source for cell in one.lab.blank.cells if role(cell) == "answer"}
    return any(
        role(cell) == "answer" and cell.source != released[grade_id(cell)] for cell in one.notebook.cells
    )


def grade(
    course: Course, found: list[Submission], box: Box, at_a_time: int
) -> Iterator[tuple[Submission, Verdicts]]:
    """Judge submissions, a few at a time, and write each down when it is judged.

    Parameters
    ----------
    course : Course
    found : list of Submission
    box : Box
    at_a_time : int
        1 where answers are not shut in: what they leave behind could not be told apart.

    Raises
    ------
    CannotGrade
        If an answer cannot be judged at all, which is nobody's fault; what was written stays.
    CourseFailed
        If nbgrader fails.
    """
    with ThreadPoolExecutor(at_a_time) as pool:
        waiting = [pool.submit(judged, one, box) for one in found]
        try:
            for one, future in zip(found, waiting):
                verdicts = future.result()
                course.grade(one.student, one.lab, one.notebook, verdicts)
                yield one, verdicts
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kill(descendants(os.getpid()))  # judges still at work
            raise


def take(course: Course, masters: list[Path]) -> list[Lab]:
    """The exercises of these masters, put into the course; labs without one are left out."""
    return [lab for path in masters if (lab := course.take(path)) is not None]
