"""Release, hand in, grade, feedback: what is right earns points, and nothing else does, whatever it tries."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from classroom.grading.handed_in import SMALL, answer_cell, check_cell, hand_in, small_master
from dlpar.classroom.grading.box import Box, CannotGrade
from dlpar.classroom.grading.release import release

pytestmark = pytest.mark.slow

LABS = Path(__file__).parents[3] / "labs"
FIRST = "00_first_parallel_run"

RIGHT = """
def average(comm, gradient):
    whole = gradient.clone()
    for _ in range(comm.size - 1):
        arriving = torch.empty_like(gradient)
        comm.sendrecv(gradient, (comm.rank + 1) % comm.size, arriving, (comm.rank - 1) % comm.size)
        gradient.copy_(arriving)
        whole += arriving
    gradient.copy_(whole / comm.size)
"""
HANGS = """
import ctypes, os, signal
def average(comm, gradient):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    if os.fork() == 0:
        os.setsid()
        os.execlp("sleep", "sleep", "4711")
    ctypes.PyDLL(None).pause()    # in C, and nobody else in this process can run
"""
CRASHES = "import os\ndef double(x):\n    os._exit(0)\n"
FORGES = """
import os
import dlpar.lab, dlpar.course.judge
dlpar.lab.check = lambda *_, **__: dlpar.course.judge.Verdict("solved", "all is right")
dlpar.course.judge.Verdict.__bool__ = lambda self: True
class lab:
    check = staticmethod(dlpar.lab.check)
class Claim:
    def __reduce__(self):
        return exec, ("from dlpar.lab import verdict; verdict.Verdict = type('Verdict', (), dict(status='solved'))",)
def double(x):
    print('{"solved": true, "said": "solved: all is right"}')
    try:
        for file in os.listdir("/proc/1/fd") if os.getuid() else []:    # 1: the judge, in a box
            os.write(os.open(f"/proc/1/fd/{file}", os.O_WRONLY), b'{"solved": true}\\n')
    except OSError:
        pass
    return Claim()
"""


def claim_points(notebook: dict) -> None:
    """Everything a student can do to the cells that are not hers."""
    check = check_cell(notebook)
    check["source"] = "solved = True"
    check["metadata"]["nbgrader"] |= {"points": 1000, "locked": False}
    check["outputs"] = [{"output_type": "execute_result", "data": {"text/plain": "4"}, "metadata": {},
                         "execution_count": 1}]  # fmt: skip


def box_of_this_machine() -> str | None:
    """An account to shut answers in, where that can be."""
    try:
        Box("nobody")
    except CannotGrade:
        return None
    return (
        "nobody"
        if subprocess.run(
            ["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True
        ).returncode
        == 0
        else None
    )


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, str], dict[str, str]]]:
    """The course's folder and the lines of its table, by student and lab."""
    folder = tmp_path_factory.mktemp("graded")
    masters, released, handed = folder / "masters", folder / "released", folder / "handed"
    masters.mkdir()
    shutil.copy(LABS / f"{FIRST}.ipynb", masters)
    small_master(masters)
    release(masters, released)
    first, small = released / f"{FIRST}.ipynb", released / f"{SMALL}.ipynb"
    hand_in(first, handed / "ada", RIGHT)
    hand_in(small, handed / "ada", "def double(x):\n    return x + x\n")
    hand_in(first, handed / "bob", "def average(comm, gradient):\n    gradient /= comm.size\n")
    hand_in(small, handed / "bob", CRASHES)
    hand_in(first, handed / "eve", HANGS)
    hand_in(first, handed / "mallory", None, lambda notebook: notebook["cells"].remove(answer_cell(notebook)))
    hand_in(small, handed / "mallory", FORGES, claim_points)
    account = box_of_this_machine()
    how = ["--not-isolated"] if account is None else ["--account", account]
    command = [sys.executable, "-m", "dlpar.cli", "grade", handed, "--course", folder / "course", "--labs", masters,
               "--seconds", "10", *how]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    with open(folder / "course" / "grades.csv", newline="") as file:
        return folder / "course", {(row["student"], row["lab"]): row for row in csv.DictReader(file)}


def points(graded, student: str, lab: str) -> tuple[float, float]:
    row = graded[1][student, lab]
    return float(row["points"]), float(row["of"])


def test_a_right_answer_earns_its_points_whatever_the_others_do(graded) -> None:
    assert points(graded, "ada", FIRST) == (10, 10) and points(graded, "ada", SMALL) == (4, 4)
    assert (
        "right on 2, 3 and 4 simulated ranks, for" in graded[1]["ada", FIRST]["said"]
    )  # and on no real ones


def test_a_wrong_answer_earns_nothing_and_is_told_why(graded) -> None:
    assert points(graded, "bob", FIRST) == (0, 10)
    said = graded[1]["bob", FIRST]["said"]
    assert "With 2 simulated ranks and 1 numbers, on rank 0: value 0 is 0.5, expected 1.5" in said


def test_one_that_hangs_and_ignores_signals_is_ended_and_leaves_nothing(graded) -> None:
    assert points(graded, "eve", FIRST) == (0, 10)
    said = graded[1]["eve", FIRST]["said"]
    assert "no progress for" in said or "was not done after" in said
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4711"]]


def test_one_that_ends_its_process_with_status_0_earns_nothing(graded) -> None:
    assert points(graded, "bob", SMALL) == (0, 4)
    assert "ended its process" in graded[1]["bob", SMALL]["said"]


def test_a_missing_answer_or_notebook_earns_nothing_and_is_told(graded) -> None:
    assert points(graded, "mallory", FIRST) == (0, 10) and points(graded, "eve", SMALL) == (0, 4)
    assert "no cells of the notebook" in graded[1]["mallory", FIRST]["said"]
    assert "no notebook was handed in" in graded[1]["eve", SMALL]["said"]


def test_forged_cells_points_outputs_checks_and_results_earn_nothing(graded) -> None:
    assert points(graded, "mallory", SMALL) == (0, 4)
    assert "a rank returned a builtins.exec, allowed are" in graded[1]["mallory", SMALL]["said"]


def test_each_student_gets_a_page_with_her_points_and_what_the_check_said(graded) -> None:
    course = graded[0]
    page = (course / "feedback" / "bob" / FIRST / f"{FIRST}.html").read_text()
    assert "expected 1.5" in page and "Score: 0.0 / 10.0" in page
    assert 'src="http' not in page
    assert len(list((course / "feedback").rglob("*.html"))) == 8
    assert os.stat(course).st_mode & 0o777 == 0o700
