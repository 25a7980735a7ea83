"""``dlpar release`` and ``dlpar grade``: hand out exercises, and grade them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dlpar.classroom.grading.release import is_master, usual_labs
from dlpar.classroom.grading.release import release as make
from dlpar.cli import BadRequest, Failed
from dlpar.jobs.control_groups import cores


def release(into: Annotated[Path, typer.Argument()] = Path("release"), labs: Path | None = None) -> int:
    """Make the students' version of the labs.

    It has no solutions, hidden tests and results.

    Parameters
    ----------
    into : FOLDER
        Where students' labs go.
    labs : FOLDER
        The masters; default: this checkout's labs.
    """
    masters = _masters(labs)
    if into.resolve().is_relative_to(masters.resolve()):
        raise BadRequest(f"FOLDER: got '{into}', allowed is any but that of the masters and those in it")
    changed = make(masters, into)
    print(f"{into}: {len(changed)} files changed" if changed else f"{into}: nothing new")
    return 0


def grade(
    where: Annotated[str, typer.Argument()],
    course: Path = Path("course"),
    labs: Path | None = None,
    lab: str = "",
    account: str = "dlpar-grader",
    not_isolated: bool = False,
    seconds: Annotated[int, typer.Option(min=1, max=600)] = 60,
    memory: Annotated[int, typer.Option(min=1, max=64)] = 4,
    at_a_time: Annotated[int | None, typer.Option(min=1, max=64)] = None,
) -> int:
    """Grade the exercises that students handed in.

    Answers are judged on simulated ranks, shut in an account of their own without network. An answer that hangs,
    crashes or is missing earns nothing, and harms no other. Ctrl-C stops it; graded answers stay in the gradebook.
    dlpar/classroom/grading/README.md says more.

    Parameters
    ----------
    where : SUBMISSIONS
        A folder with a folder of notebooks for each student, or a path with {student} in it:
        '/home/{student}/dlpar-labs'.
    course : FOLDER
        nbgrader's course: points, feedback; private, made if missing.
    labs : FOLDER
        The masters; default: this checkout's labs.
    lab : NAMES
        Labs to grade, with commas: 00,03; default: all.
    account : NAME
        Unix account, without rights, that answers run in; needs root.
    not_isolated : flag
        Run answers in your own account, with your files and network: only for answers you have read.
    seconds : N
        For one check.
    memory : N
        GiB for one answer.
    at_a_time : N
        Answers; default: one for each core.
    """
    masters = _chosen(_masters(labs), lab)
    if find_spec("nbgrader") is None:
        raise Failed("nbgrader is not installed; `pip install 'dlpar[grading]'` brings it")
    from dlpar.classroom.grading.box import Box  # these need nbgrader
    from dlpar.classroom.grading.exercise import students
    from dlpar.classroom.grading.grade import Course
    from dlpar.classroom.grading.grade import grade as grade_all

    box = Box(None if not_isolated else account, seconds, memory)
    if not students(where):
        allowed = "a folder with a folder for each student"
        raise BadRequest(f"SUBMISSIONS: got {where!r}, allowed is {allowed}")
    if not_isolated:
        print("NOT ISOLATED: answers run in your account, with your files and network.", file=sys.stderr)
    book = Course(course)
    side_by_side = 1 if not_isolated else at_a_time or min(cores(), 64)
    for student, one, verdicts in grade_all(book, where, book.take(masters), box, side_by_side):
        said = " · ".join(verdict["said"].splitlines()[0] for verdict in verdicts.values())
        print(f"{student}  {one.name}  {said}", flush=True)
    print(f"points: {book.write_grades()}; feedback: {book.folder / 'feedback'}")
    return 0


def _masters(labs: Path | None) -> Path:
    folder = labs or usual_labs()
    if not folder.is_dir() or not is_master(folder):
        raise BadRequest(f"--labs: got '{folder}', allowed is a folder of labs with their solutions")
    return folder


def _chosen(masters: Path, names: str) -> list[Path]:
    """The masters that begin with one of the names."""
    found = sorted(masters.glob("*.ipynb"))
    wanted = tuple(name.strip() for name in names.split(",") if name.strip()) or ("",)
    for name in wanted:
        if not any(path.stem.startswith(name) for path in found):
            raise BadRequest(f"--lab: got {name!r}, allowed are {', '.join(path.stem for path in found)}")
    return [path for path in found if path.stem.startswith(wanted)]
