"""Hand in, grade, feedback: a right answer earns points, and nothing else of a student's notebook does."""

from __future__ import annotations

import csv
import gc
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest
from conftest import eventually
from nbgrader.preprocessors import ClearSolutions

from classroom.grading.handed_in import SMALL, answer_cell, check_cell, hand_in, marks, small_master
from dlpar.classroom.grading.box import Box, CannotGrade
from dlpar.classroom.grading.grade import (
    Course,
    Unreadable,
    exercise,
    grade,
    handed_in,
    imports_of,
    judged,
    students,
    trial,
)
from dlpar.course.release import CLEAR, release

pytestmark = pytest.mark.timeout(300)  # many processes begin with torch: a busy machine takes minutes

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
    try:
        if os.fork() == 0:
            os.setsid()
            os.execlp("sleep", "sleep", "4711")
    except BlockingIOError:    # in a box
        pass
    ctypes.PyDLL(None).pause()    # in C, and nobody else in this process can run
"""
CRASHES = "import os\ndef double(x):\n    os._exit(0)\n"
FORGES = """
import os
try:
    import dlpar.lab, dlpar.course.judge
    dlpar.lab.check = lambda *_, **__: dlpar.course.judge.Verdict("solved", "all is right")
    dlpar.course.judge.Verdict.__bool__ = lambda self: True
except ImportError:    # in a box
    pass
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
    command = [sys.executable, "-m", "dlpar.cli", "grade", "handed", "--course", "course", "--labs", "masters",
               "--seconds", "20", *how]  # fmt: skip
    as_by_sudo = os.environ | {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    as_by_sudo["PYTHONPATH"] = str(LABS.parent)
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=as_by_sudo, cwd=folder)
    assert done.returncode == 0, done.stderr
    with open(folder / "course" / "grades.csv", newline="") as file:
        return folder / "course", {(row["student"], row["lab"]): row for row in csv.DictReader(file)}


def points(graded, student: str, lab: str) -> tuple[float, float]:
    row = graded[1][student, lab]
    return float(row["points"]), float(row["of"])


def test_a_damaged_gradebook_is_named_in_a_sentence(tmp_path) -> None:
    course = Course(tmp_path / "course")
    (course.folder / "gradebook.db").write_bytes(b"no database" * 100)
    with pytest.raises(CannotGrade, match=r"gradebook.db: nbgrader cannot use it \(file is not a database\)"):
        course.write_grades()


@pytest.mark.slow
def test_notebooks_named_by_a_relative_path_are_found_while_feedback_is_written(tmp_path, lab, monkeypatch):
    names, seen = ["ada", "bob", "eve"], []
    for number, name in enumerate(names):
        hand_in(lab, tmp_path / "handed" / name, f"return {number}")
    monkeypatch.chdir(tmp_path)
    course = Course(Path("course"))

    def judge(trial: dict) -> dict:
        seen.append(trial["answer"])
        if len(seen) == 2:  # while nbgrader works in its own folder, the third notebook is read
            eventually(lambda: Path.cwd() == course.folder, 20, "nbgrader has not changed the folder")
        return {"solved": True, "said": trial["answer"]}

    exercises = course.take([tmp_path / "masters" / lab.name])
    found = list(grade(course, "handed", exercises, SimpleNamespace(judge=judge), at_a_time=1))
    assert [(name, verdict["said"]) for name, _, verdict in found] == [
        (name, f"return {number}") for number, name in enumerate(names)
    ]


def test_a_folder_that_is_no_course_is_refused_and_stays_open_to_others(tmp_path) -> None:
    (tmp_path / "thesis.txt").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(
        CannotGrade, match="--course: got '.*', allowed is a course, or an empty or new folder"
    ):
        Course(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.getuid() != 0, reason="needs a folder of another account: root")
def test_a_course_of_another_account_goes_on_under_sudo(tmp_path) -> None:
    (tmp_path / "course" / "source").mkdir(parents=True)
    shutil.chown(tmp_path / "course", "nobody")
    assert Course(tmp_path / "course").folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_the_table_keeps_the_points_of_a_student_whose_pages_are_gone(graded, tmp_path) -> None:
    shutil.copytree(graded[0], tmp_path / "course")
    course = Course(tmp_path / "course")
    shutil.rmtree(course.folder / "autograded" / "ada")
    with open(course.write_grades(), newline="") as file:
        rows = {(row["student"], row["lab"]): row for row in csv.DictReader(file)}
    assert float(rows["ada", FIRST]["points"]) == 10 and rows["ada", FIRST]["said"] == ""
    assert rows["bob", FIRST] == graded[1]["bob", FIRST]


@pytest.mark.slow
def test_a_right_answer_earns_its_points_whatever_the_others_do(graded) -> None:
    assert points(graded, "ada", FIRST) == (10, 10) and points(graded, "ada", SMALL) == (4, 4)
    # And on no real ones.
    assert "right on 2, 3 and 4 simulated ranks, for" in graded[1]["ada", FIRST]["said"]


@pytest.mark.slow
def test_a_wrong_answer_earns_nothing_and_is_told_why(graded) -> None:
    assert points(graded, "bob", FIRST) == (0, 10)
    said = graded[1]["bob", FIRST]["said"]
    assert re.search(
        r"With 2 simulated ranks and length 1, on rank 0: value 0 is [\d.]+, expected \d{3}", said
    )


@pytest.mark.slow
def test_one_that_hangs_and_ignores_signals_is_ended_and_leaves_nothing(graded) -> None:
    assert points(graded, "eve", FIRST) == (0, 10)
    said = graded[1]["eve", FIRST]["said"]
    assert "no progress for" in said or "was not done after" in said
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4711"]]


@pytest.mark.slow
def test_one_that_ends_its_process_with_status_0_earns_nothing(graded) -> None:
    assert points(graded, "bob", SMALL) == (0, 4)
    assert "ended its process" in graded[1]["bob", SMALL]["said"]


@pytest.mark.slow
def test_a_missing_answer_or_notebook_earns_nothing_and_is_told(graded) -> None:
    assert points(graded, "mallory", FIRST) == (0, 10) and points(graded, "eve", SMALL) == (0, 4)
    assert "no cells of the notebook" in graded[1]["mallory", FIRST]["said"]
    eve = f"{SMALL}.ipynb cannot be opened (No such file or directory); there is ['{FIRST}.ipynb']"
    assert eve in graded[1]["eve", SMALL]["said"]


@pytest.mark.slow
def test_forged_cells_points_outputs_checks_and_results_earn_nothing(graded) -> None:
    assert points(graded, "mallory", SMALL) == (0, 4)
    assert "a rank returned something other than data; allowed are" in graded[1]["mallory", SMALL]["said"]


@pytest.mark.slow
def test_each_student_gets_a_page_with_her_points_and_what_the_check_said(graded) -> None:
    course = graded[0]
    page = (course / "feedback" / "bob" / FIRST / f"{FIRST}.html").read_text()
    assert "With 2 simulated ranks and length 1" in page and "Score: 0.0 / 10.0" in page
    assert 'src="http' not in page
    assert len(list((course / "feedback").rglob("*.html"))) == 8
    assert os.stat(course).st_mode & 0o777 == 0o700


# ---- what is taken from a student's notebook ------------------------------------------


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A released lab."""
    (tmp_path / "masters").mkdir()
    small_master(tmp_path / "masters")
    release(tmp_path / "masters", tmp_path / "released")
    return tmp_path / "released" / f"{SMALL}.ipynb"


def test_students_are_those_with_a_folder_in_one_place_or_by_a_path_with_their_name(tmp_path: Path) -> None:
    for name in ("ada/labs", "bob/labs", "cleo", ".hidden/labs"):
        (tmp_path / name).mkdir(parents=True)
    assert students(str(tmp_path)) == ["ada", "bob", "cleo"]
    assert students(f"{tmp_path}/{{student}}/labs") == ["ada", "bob"]
    assert students(f"{tmp_path}/nowhere") == []
    (tmp_path / "Ada Lovelace").mkdir()
    assert students(f"{tmp_path}/{{student}}/labs") == ["ada", "bob"]
    with pytest.raises(
        CannotGrade, match=r"got a student 'Ada Lovelace', allowed are up to 64 ASCII letters"
    ):
        students(str(tmp_path))


@pytest.mark.parametrize("older, newer, wanted", [
    ("pass", None, "pass"), ("pass", "return 7", "return 7"), (None, "return 7", "return 7"), (None, None, None),
])  # fmt: skip
def test_after_an_update_an_answer_in_the_new_version_counts(tmp_path: Path, lab: Path, older, newer, wanted):
    hand_in(lab, tmp_path / "home/ada", older)
    if newer:
        hand_in(lab, tmp_path / "new", newer)
        (tmp_path / "new" / lab.name).rename(tmp_path / "home/ada" / f"{lab.stem} (new).ipynb")
    blank = exercise(nbformat.read(lab, as_version=4))
    box = SimpleNamespace(judge=lambda trial: {"solved": True, "said": trial["answer"]})
    _, verdict = judged(str(tmp_path / "home"), "ada", SMALL, blank, box)
    assert verdict["said"] == wanted if wanted else "unchanged since its release" in verdict["said"]


@pytest.mark.parametrize(
    "copies", [(None, "return 7"), ("old stub", None, "return 7"), ("old stub", "wrong", "return 7")]
)
def test_after_updates_the_newest_solved_answer_counts(tmp_path: Path, lab: Path, copies) -> None:
    """`copies`: of each copy, from the newest to her own, the body of the answer."""
    for number, body in enumerate(reversed(copies)):
        hand_in(lab, tmp_path / "new", body)
        (tmp_path / "home/ada").mkdir(parents=True, exist_ok=True)
        (tmp_path / "new" / lab.name).rename(tmp_path / "home/ada" / f"{lab.stem}{' (new)' * number}.ipynb")
    blank = exercise(nbformat.read(lab, as_version=4))
    box = SimpleNamespace(
        judge=lambda trial: {"solved": trial["answer"] == "return 7", "said": trial["answer"]}
    )
    notebook, verdict = judged(str(tmp_path / "home"), "ada", SMALL, blank, box)
    assert verdict == {"solved": True, "said": "return 7"}
    assert any(cell.source == "return 7" for cell in notebook.cells)


def test_a_path_with_a_name_in_it_reads_the_same_notebook(tmp_path: Path, lab: Path) -> None:
    hand_in(lab, tmp_path / "home" / "ada" / "labs", "pass")
    cells = handed_in(f"{tmp_path}/home/{{student}}/labs", "ada", SMALL)
    assert answer_cell({"cells": cells})["source"] == "pass"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"cells": 7}', "[" * 100_000])
def test_a_damaged_notebook_is_told(tmp_path: Path, damage: str) -> None:
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / f"{SMALL}.ipynb").write_text(damage)
    with pytest.raises(Unreadable, match="damaged"):
        handed_in(str(tmp_path), "ada", SMALL)


def test_links_and_pipes_are_not_opened(tmp_path: Path, lab: Path) -> None:
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "link.ipynb").symlink_to(lab)
    os.mkfifo(tmp_path / "ada" / "pipe.ipynb")
    for name, why in (
        ("link", "it is a link"),
        ("pipe", "not a regular file"),
        ("none", r"none.ipynb cannot be opened \(No such.*link.ipynb"),
    ):
        with pytest.raises(Unreadable, match=why):
            handed_in(str(tmp_path), "ada", name)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a file of another account: root")
def test_a_notebook_in_a_student_s_own_folder_must_be_the_student_s(tmp_path: Path, lab: Path) -> None:
    hand_in(lab, tmp_path / "nobody" / "labs", "pass")  # root's, in the folder of the account nobody
    with pytest.raises(Unreadable, match="not the student.s, yours or root.s"):
        handed_in(f"{tmp_path}/{{student}}/labs", "nobody", SMALL)
    assert handed_in(str(tmp_path / "nobody"), "labs", SMALL)  # a teacher's own folder


@pytest.mark.skipif(os.getuid() != 0, reason="needs a file of another account: root")
def test_under_sudo_the_notebooks_a_teacher_has_collected_are_read(
    tmp_path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(lab, tmp_path / "ada", "pass")
    os.chown(tmp_path / "ada" / f"{SMALL}.ipynb", 1000, 1000)
    monkeypatch.delenv("SUDO_UID", raising=False)
    with pytest.raises(Unreadable, match="not the student.s, yours or root.s"):
        handed_in(str(tmp_path), "ada", SMALL)
    monkeypatch.setenv("SUDO_UID", "1000")
    assert answer_cell({"cells": handed_in(str(tmp_path), "ada", SMALL)})["source"] == "pass"


def test_an_answer_counts_only_where_it_is_marked_once_and_nothing_else_is_taken(
    tmp_path: Path, lab: Path
) -> None:
    master = exercise(nbformat.read(tmp_path / "masters" / f"{SMALL}.ipynb", 4))
    tried = []

    class NoBox:
        def judge(self, trial: dict) -> dict:
            tried.append(trial)
            return {"solved": True, "said": "right"}

    def found(change) -> tuple[list[str], str]:
        hand_in(lab, tmp_path / "in" / "ada", "mine", change)
        notebook, verdict = judged(str(tmp_path / "in"), "ada", SMALL, master, NoBox())
        assert len(notebook.cells) == len(master.cells)
        return [cell.source for cell in notebook.cells], verdict["said"]

    right, said = found(lambda nb: nb["cells"].reverse())
    assert "mine" in right and said == "right"
    check = master.cells[-1].source  # with its hidden test
    assert right[-1] == check and [(one["answer"], one["check"]) for one in tried] == [("mine", check)]
    twice, said = found(lambda nb: nb["cells"].append(dict(answer_cell(nb))))
    assert "mine" not in twice
    assert said == "not handed in: 2 cells of the notebook are marked double; there must be one"
    strange, said = found(lambda nb: answer_cell(nb).update(source={"mine": 1}))
    assert said.startswith("not handed in: no cells") and "mine" not in strange
    assert len(tried) == 1


def test_a_master_that_is_no_notebook_is_named_in_a_sentence(tmp_path: Path) -> None:
    for content in ("{", '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": 7}'):
        (tmp_path / "00.ipynb").write_text(content)
        with pytest.raises(CannotGrade, match=r"00.ipynb: not a lab that can be read \([^\n]+\)$"):
            Course(tmp_path / "course").take([tmp_path / "00.ipynb"])


def test_an_answer_is_lent_what_its_own_cell_imports_of_dlpar_and_nothing_else_of_it() -> None:
    lent = {}
    for lab in ("03_ring_allreduce", "07b_zero"):
        blank, _ = ClearSolutions(**CLEAR).preprocess(exercise(nbformat.read(LABS / f"{lab}.ipynb", 4)), {})
        lent[lab] = trial(blank, "")["lent"].splitlines()
        assert "import torch" in lent[lab] and "dlpar.theory" not in " ".join(lent[lab])
    assert not [line for line in lent["03_ring_allreduce"] if "dlpar" in line]
    assert "from dlpar.collectives import ring_allgather, ring_reduce_scatter" in lent["07b_zero"]


def test_threads_that_grade_read_exercises_while_garbage_is_collected() -> None:
    # CPython 3.11 fails if a thread's turn ends within ast.parse, which a collection of garbage can cause.
    class Garbage:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            time.sleep(0)

    code = "\n".join(f"import os as os{n}\nx{n} = [{n}, [{n}], ({n} + {n}) * {n}]" for n in range(300))
    usual = gc.get_threshold()
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(4) as pool:
            read = pool.map(lambda _: (Garbage(), len(imports_of(code)))[1], range(200))
            assert set(read) == {300}
    finally:
        gc.set_threshold(*usual)


def test_a_lab_with_two_checks_is_refused(tmp_path: Path) -> None:
    master = small_master(tmp_path)
    notebook = nbformat.read(master, 4)
    again = {"id": "again", "metadata": marks("again", grade=True, points=1)}
    notebook.cells.append(nbformat.from_dict(notebook.cells[-1] | again))
    nbformat.write(notebook, master)
    with pytest.raises(CannotGrade, match="one answer cell and one check cell"):
        Course(tmp_path / "course").take([master])


def test_an_answer_as_it_was_released_is_to_do_and_nothing_is_run(tmp_path: Path, lab: Path) -> None:
    blank = nbformat.read(lab, 4)
    hand_in(lab, tmp_path / "in" / "ada", None)
    _, verdict = judged(str(tmp_path / "in"), "ada", SMALL, blank, Box(None))
    assert verdict == {"solved": False, "said": "to do: the answer is unchanged since its release"}
