"""Where answers cannot be shut in, nobody is graded, and one sentence says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from classroom.grading.handed_in import small_master
from dlpar import cli
from dlpar.classroom.grading.box import Box, CannotGrade

ROOT_ON_LINUX = pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="needs root on Linux")


@ROOT_ON_LINUX
@pytest.mark.parametrize("account, why", [("nobody-here", "useradd --system"), ("root", "must not be root")])
def test_an_account_that_is_not_there_or_may_everything_is_refused(account: str, why: str) -> None:
    with pytest.raises(CannotGrade, match=why):
        Box(account)


def test_without_root_it_is_refused_and_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(
        CannotGrade, match=r"needs .*--not-isolated grades without: for answers you have read"
    ):
        Box("nobody")
    Box(None)


@ROOT_ON_LINUX
def test_a_judge_that_finds_itself_elsewhere_than_in_the_box_grades_nobody() -> None:
    box = Box("nobody")
    inside = {"account": 65534, "networks": ["lo"], "writable": [], "visible": []}
    with pytest.raises(CannotGrade, match="networks"):
        box._check(inside | {"networks": ["lo", "eth0"]})
    with pytest.raises(CannotGrade, match="account 0"):
        box._check(inside | {"account": 0})
    with pytest.raises(CannotGrade, match="writable"):
        box._check(inside | {"writable": ["/dev/shm"]})
    with pytest.raises(CannotGrade, match="visible"):
        box._check(inside | {"visible": ["/proc"]})


def test_a_judge_that_does_not_start_is_nobody_s_fault_and_grades_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Box, "command", lambda self: [sys.executable, "-c", "raise SystemExit('no torch')"])
    with pytest.raises(CannotGrade, match="the judge did not start: no torch"):
        Box(None).judge({"given": "", "lent": "", "answer": "", "names": [], "check": ""})


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
    tops = {Path(path).parts[1] for path in (sys.prefix, sys.base_prefix, __file__, "/sys", "/judge")}
    assert said == f"solved: {sorted(tops - {'usr'})} {['/tmp/'] if 'tmp' in tops else []}"


FORKS = """
import json, os, sys, time
secret, memory = json.load(sys.stdin)["secret"], b"x" * 2**26
for child in range(5):
    if os.fork() == 0:
        time.sleep(60)
for facts in ({}, {"solved": True, "said": ""}):
    os.write(1, json.dumps({"secret": secret, **facts}).encode() + b"\\n")
    time.sleep(0.6)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_shared_memory_counts_once_and_whoever_came_of_something_else_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Box, "command", lambda self: [sys.executable, "-c", FORKS])
    bystander = subprocess.Popen(["sh", "-c", "sleep 0.3; sleep 60 & wait"], start_new_session=True)
    try:
        trial = {"given": "", "lent": "", "answer": "", "names": [], "check": ""}
        assert Box(None, memory=0.2).judge(trial) == {"solved": True, "said": ""}
        assert bystander.poll() is None
    finally:
        os.killpg(bystander.pid, signal.SIGKILL)
        bystander.wait(10)


def test_bad_requests_are_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    small_master(tmp_path)
    (tmp_path / "empty").mkdir()
    labs = ["--labs", str(tmp_path)]
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
        (["release", str(tmp_path), *labs], "allowed is any but that of the masters"),
        (["release", str(tmp_path / "inside"), *labs], "allowed is any but that of the masters"),
    ):
        assert cli.main(words) == 2
        complaint = capsys.readouterr().err
        assert said in complaint and complaint.count("\n") == 1
