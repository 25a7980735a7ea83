"""Where answers cannot be shut in, nobody is graded, and one sentence says why."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import psutil
import pytest
from conftest import eventually
from nbformat.v4 import new_notebook

from classroom.grading.handed_in import small_master
from dlpar import cli
from dlpar.classroom.grading import LENT, box, cells
from dlpar.classroom.grading.box import Box, CannotGrade
from dlpar.course.release import DELIVERED

ROOT_ON_LINUX = pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="needs root on Linux")


@ROOT_ON_LINUX
@pytest.mark.parametrize("account, why", [("nobody-here", "useradd --system"), ("root", "must not be root")])
def test_an_account_that_is_not_there_or_may_everything_is_refused(account: str, why: str) -> None:
    with pytest.raises(CannotGrade, match=why):
        Box(account)


def test_without_root_it_is_refused_and_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(CannotGrade, match=r"needs .*--not-isolated is for answers you know"):
        Box("nobody")
    Box(None)


EMPTY = {"given": "", "lent": "", "answer": "", "names": [], "check": ""}


@ROOT_ON_LINUX
@pytest.mark.slow
def test_a_judge_that_finds_a_hole_in_the_box_grades_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        box, "SHUT_IN", box.SHUT_IN.replace("mount -n -o remount,ro box .", "chmod 777 . dev")
    )
    with pytest.raises(CannotGrade, match=r"answers are not isolated: they would reach /, .*/dev, to write"):
        Box("nobody").judge(EMPTY)


def test_a_cell_names_every_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "access", lambda path, mode: path == "/dev")
    monkeypatch.setattr(os, "listdir", lambda path: ["1"] if path == "/proc" else [])
    found = cells._holes()
    assert found == ["the network eth0", "/dev, to write there", "what is in /proc", "all that root may"]


def test_a_judge_that_does_not_start_is_nobody_s_fault_and_grades_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Box, "command", lambda self: [sys.executable, "-c", "raise SystemExit('no torch')"])
    with pytest.raises(CannotGrade, match="the judge did not start: no torch"):
        Box(None).judge(EMPTY)


LISTS_FILES = """
import os
def f():
    return sorted(os.listdir("/")), [p for p in PLACES if os.path.exists(p)]
"""


@pytest.mark.slow
@ROOT_ON_LINUX
def test_a_box_holds_no_labs_no_homes_no_submissions_and_no_dlpar(tmp_path: Path) -> None:
    checkout = Path(__file__).parents[3]
    places = [str(checkout / name) for name in ("labs", "tests", ".git", "dlpar/course")]
    places += [
        "/tmp/",
        str(tmp_path),
        "/home",
        "/root/.ssh",
        "/root/.bashrc",
        "/var",
        "/proc/self",
        "/dev/shm",
    ]
    check = """
from dlpar.course.judge import Verdict
found, seen = f()
solved = Verdict("solved", f"{sorted(set(found) - {'bin', 'lib', 'lib64', 'etc', 'dev', 'proc', 'usr'})} {seen}")
"""
    answer = f"PLACES = {places!r}\n{LISTS_FILES}"
    trial = {"given": "", "lent": "", "answer": answer, "names": ["f"], "check": check}
    said = Box("nobody").judge(trial)["said"]
    tops = {Path(path).parts[1] for path in (sys.prefix, sys.base_prefix, __file__, "/sys")}
    assert said == f"solved: {sorted(tops - {'usr'})} {['/tmp/'] if 'tmp' in tops else []}"


GROWS = """
import os, threading
def f():
    found = []
    for attempt in (os.fork, threading.Thread(target=print).start, lambda: b"x" * 2**31):
        try:
            attempt()
        except (OSError, RuntimeError, MemoryError) as error:
            found.append(type(error).__name__)
    return found
"""
SAYS = "from dlpar.course.judge import Verdict\nsolved = Verdict('solved', str(f()))"


@ROOT_ON_LINUX
@pytest.mark.slow
def test_an_answer_in_a_box_adds_no_process_and_no_thread_and_its_memory_is_bounded() -> None:
    said = Box("nobody", memory=1.5).judge(EMPTY | {"answer": GROWS, "names": ["f"], "check": SAYS})["said"]
    assert said == "solved: ['BlockingIOError', 'RuntimeError', 'MemoryError']"


@pytest.mark.slow
@ROOT_ON_LINUX
def test_a_box_whose_time_is_over_is_ended_with_all_that_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box, "START", 6.0)
    hangs = EMPTY | {"lent": "# of test_box", "check": "import time\nwhile True:\n    time.sleep(1)"}

    def left() -> list[psutil.Process]:
        found = psutil.process_iter(["environ"])
        return [one for one in found if (one.info["environ"] or {}).get(LENT) == "# of test_box"]

    with ThreadPoolExecutor(1) as beside:
        judged = beside.submit(Box("nobody", seconds=1.0).judge, hangs)
        eventually(left, 6, "the box runs")
    assert "was not done after 7 s" in judged.result()["said"]
    eventually(lambda: not left(), 10, f"all processes of the box are gone: {left()}")


LEAVES = """
import os, time
def f():
    if os.fork() == 0:
        os.setsid()
        os.execlp("sleep", "sleep", "4714")
    time.sleep(SECONDS)
"""
SLEEP = ["sleep", "4714"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(("seconds", "start", "why"), [(1, 120, "solved: None"), (600, 0, "not done after")])
@pytest.mark.slow
def test_where_nothing_is_isolated_an_answer_leaves_nothing_and_bystanders_live(
    seconds: int, start: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "START", start)
    bystander = subprocess.Popen(["sleep", "4713"])
    try:
        answer = f"SECONDS = {seconds}\n{LEAVES}"
        trial = EMPTY | {"answer": answer, "names": ["f"], "check": SAYS}
        sleeps = lambda: any(one.info["cmdline"] == SLEEP for one in psutil.process_iter(["cmdline"]))
        with ThreadPoolExecutor(1) as beside:
            judged = beside.submit(Box(None, seconds=10).judge, trial)
            eventually(sleeps, 10, "the answer has left a process")
        assert why in judged.result()["said"]
        eventually(lambda: not sleeps(), 10, "gone")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait(10)


def test_bad_requests_are_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    nbformat.write(new_notebook(), small_master(tmp_path).with_name("index.ipynb"))
    (tmp_path / "empty").mkdir()
    labs, outside, copy = ["--labs", str(tmp_path)], f"{tmp_path}-outside", Path(f"{tmp_path}-copy")
    copy.mkdir()
    (copy / DELIVERED).write_text("{}")  # a student's
    for words, said in (
        (["grade", str(tmp_path / "empty"), "--not-isolated", *labs], "SUBMISSIONS: got"),
        (
            ["grade", "x", "--labs", str(tmp_path / "empty")],
            "allowed is a folder of labs with their solutions",
        ),
        (["grade", "x", "--lab", "99", *labs], "--lab: got '99', allowed are 01_double"),
        (
            ["grade", "x", "--seconds", "0", *labs],
            "--seconds: got 0, allowed is a whole number from 1 to 600",
        ),
        (["release", str(tmp_path), *labs], "FOLDER: got"),
        (["release", str(tmp_path / "inside"), *labs], "allowed is one outside masters, releases and copies"),
        (["release", outside, "--own", str(tmp_path / "inside"), *labs], "--own: got"),
        (["release", outside, "--own", outside, *labs], "--own: got"),
        (["release", str(copy), *labs], "releases and copies"),
        (["release", "", *labs], "got '' after 'release', allowed is non-empty text"),
        (["grade", outside, "--course", "", *labs], "got '' after '--course', allowed is non-empty text"),
        (["grade", str(tmp_path), "--not-isolated", *labs], "SUBMISSIONS: got"),
        (
            [
                "grade",
                f"{tmp_path}/{{student}}",
                "--not-isolated",
                "--lab",
                "index",
                "--course",
                outside,
                *labs,
            ],
            "--lab: got 'index', allowed is a lab with an exercise",
        ),
    ):
        assert cli.main(words) == 2
        complaint = capsys.readouterr().err
        assert said in complaint and complaint.count("\n") == 1 + ("NOT ISOLATED" in complaint)
    assert not os.path.exists(outside) or not os.listdir(outside)
