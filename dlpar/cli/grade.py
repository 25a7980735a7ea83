"""``dlpar grade`` and ``dlpar release``: exercises handed out, and graded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

Labs = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="The masters; default: this checkout's labs.")
]


def release(
    into: Annotated[str, typer.Argument(metavar="FOLDER", help="Where students' labs go.")] = "release",
    labs: Labs = None,
) -> int:
    """Make the students' version of the labs, without solutions, hidden tests and results."""
    from dlpar.classroom.grading.release import release as make
    from dlpar.cli import BadRequest

    masters = _masters(labs)
    if Path(into).resolve().is_relative_to(masters.resolve()):
        raise BadRequest(f"FOLDER: got {into!r}, allowed is any but that of the masters and those in it")
    changed = make(masters, Path(into))
    print(f"{into}: {len(changed)} files changed" if changed else f"{into}: nothing new")
    return 0


def grade(
    where: Annotated[
        str,
        typer.Argument(
            metavar="SUBMISSIONS",
            help="A folder with a folder of notebooks for each student, or a path "
            "with {student} in it: '/home/{student}/dlpar-labs'.",
        ),
    ],
    course: Annotated[
        str,
        typer.Option(metavar="FOLDER", help="nbgrader's course: points, feedback; private, made if missing."),
    ] = "course",
    labs: Labs = None,
    lab: Annotated[
        str, typer.Option(metavar="NAMES", help="Labs to grade, with commas: 00,03; default: all.")
    ] = "",
    account: Annotated[
        str,
        typer.Option(metavar="NAME", help="Unix account, without rights, that answers run in; needs root."),
    ] = "dlpar-grader",
    not_isolated: Annotated[
        bool,
        typer.Option(
            "--not-isolated",
            metavar="",
            help="Run answers in your own account, with your files and network: "
            "only for answers you have read.",
        ),
    ] = False,
    seconds: Annotated[str, typer.Option(metavar="N", help="For one check, 1 to 600.")] = "60",
    memory: Annotated[str, typer.Option(metavar="N", help="GiB for one answer, 1 to 64.")] = "4",
    at_a_time: Annotated[
        str | None, typer.Option(metavar="N", help="Answers; default: one for each core.")
    ] = None,
) -> int:
    """Grade the exercises that students handed in.

    Answers are judged on simulated ranks, shut in an account of their own without network. What hangs, crashes
    or is missing earns nothing, and harms nobody else's. dlpar/classroom/grading/README.md says more.
    """
    from importlib.util import find_spec

    from dlpar.cli.complaints import number
    from dlpar.jobs.control_groups import cores

    limits = number("--seconds", seconds, 1, 600), number("--memory", memory, 1, 64)
    side_by_side = 1 if not_isolated else number("--at-a-time", at_a_time or str(cores()), 1, 64)
    masters = _chosen(_masters(labs), lab)
    if find_spec("nbgrader") is None:
        print(
            "dlpar grade: nbgrader is not installed; `pip install 'dlpar[grading]'` brings it",
            file=sys.stderr,
        )
        return 1
    from dlpar.classroom.grading.box import Box, CannotGrade
    from dlpar.classroom.grading.grade import CourseFailed

    try:
        box = Box(None if not_isolated else account, *limits)
        return _graded(where, Path(course), masters, box, side_by_side)
    except (CannotGrade, CourseFailed) as error:
        print(f"dlpar grade: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dlpar grade: stopped; what was graded stays in the gradebook", file=sys.stderr)
        return 130


def _graded(where: str, folder: Path, masters: list[Path], box, at_a_time: int) -> int:
    """Do it, a line for each answer."""
    from dlpar.classroom.grading.exercise import students
    from dlpar.classroom.grading.grade import Course, submissions
    from dlpar.classroom.grading.grade import grade as grade_all
    from dlpar.cli import BadRequest

    if not students(where):
        raise BadRequest(f"SUBMISSIONS: got {where!r}, allowed is a folder with a folder for each student")
    if box.account is None:
        print("NOT ISOLATED: answers run in your account, with your files and your network.", file=sys.stderr)
    course = Course(folder)
    found = submissions(where, course.take(masters))
    for one, verdicts in grade_all(course, found, box, at_a_time):
        said = " · ".join(verdict["said"].splitlines()[0] for verdict in verdicts.values())
        print(f"{one.student}  {one.lab.name}  {said}", flush=True)
    print(f"points: {course.write_grades()}; feedback: {course.folder / 'feedback'}")
    return 0


def _masters(labs: str | None) -> Path:
    from dlpar.classroom.grading.release import is_master, usual_labs
    from dlpar.cli import BadRequest

    folder = Path(labs) if labs else usual_labs()
    if not folder.is_dir() or not is_master(folder):
        raise BadRequest(f"--labs: got {str(folder)!r}, allowed is a folder of labs with their solutions")
    return folder


def _chosen(masters: Path, names: str) -> list[Path]:
    """Of the masters those that begin with one of the names."""
    from dlpar.cli import BadRequest

    found = sorted(masters.glob("*.ipynb"))
    wanted = tuple(name.strip() for name in names.split(",") if name.strip()) or ("",)
    for name in wanted:
        if not any(path.stem.startswith(name) for path in found):
            raise BadRequest(f"--lab: got {name!r}, allowed are {', '.join(path.stem for path in found)}")
    return [path for path in found if path.stem.startswith(wanted)]
