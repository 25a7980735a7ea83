"""``dlpar rehearse``: every preset has its row, a line tells how it went, and nothing is left when it is stopped."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from cli.program import PROGRAM, job_folders, left_of
from conftest import eventually

from dlpar import Experiment, Run
from dlpar.cli import main
from dlpar.cli import rehearse as machine
from dlpar.cli.doctor import Finding
from dlpar.cli.rehearse import slow
from dlpar.config.paths import runs_folder
from dlpar.course.rehearse import LabRuns, Result, Row, apart, rehearse
from dlpar.jobs.launch import JobFailed


def experiment() -> Experiment:
    return Experiment(workers=2, steps=3, evaluate_every=0, cluster="simulated")


def trained(run):
    return run.status == "done", "3 steps"


def true(_):
    return True, "2 is 2"


def not_true(_):
    return False, "2 is not 3"


def mistaken(runs):
    return runs.no_such_thing


def failing(_):
    raise JobFailed("rank 1 died\nits traceback")


def nothing() -> list[Experiment]:
    return []


def endless() -> Experiment:
    return Experiment(workers=2, steps=10**6, cluster="simulated")


def test_the_same_experiment_is_run_once_and_runs_have_the_form_of_the_experiments():
    lab_runs = LabRuns()
    run = lab_runs.run(experiment())
    assert lab_runs.run({"a": experiment(), "b": [experiment()]}) == {"a": run, "b": [run]}
    assert set(lab_runs.worlds) == {"simulated"}


def test_whatever_happens_in_one_row_is_a_sentence_and_the_next_is_tried():
    presets = {not_true: nothing, mistaken: nothing, failing: nothing, trained: endless, true: nothing}
    rows = [("00", Row(preset, "a belief", shows)) for shows, preset in presets.items()]
    found = list(rehearse(rows, limit=2))
    assert [(each.held, each.said) for each in found] == [
        (False, "2 is not 3"),
        (False, "AttributeError: 'list' object has no attribute 'no_such_thing'"),
        (False, "the job failed: rank 1 died"),
        (False, "given up after 2 s"),
        (True, "2 is 2"),
    ]
    assert [each.world for each in found] == [*["computed"] * 3, "simulated", "computed"]
    assert 2 <= found[3].seconds < 8


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr(machine, "machine_lacks", lambda: [Finding(machine.COSTS, "memory", "0.9 GB free")])


@pytest.mark.parametrize(
    "shows, status, last",
    [
        (trained, 0, "1 of 1 presets show what their labs say."),
        (not_true, 1, "0 of 1 presets show what their labs say."),
    ],
)
def test_the_status_says_whether_all_held(monkeypatch, quiet, capsys, shows, status, last):
    monkeypatch.setattr("dlpar.course.labs.rows", lambda labs: [("00", Row(experiment, "a belief", shows))])
    assert main(["rehearse", "00"]) == status
    first, line, *_, end = capsys.readouterr().out.splitlines()
    assert first == "costs   memory: 0.9 GB free" and "00 experiment" in line and "a belief: " in line
    assert end == last
    assert main(["rehearse", "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert told["failed"] == status and told["presets"][0]["preset"] == "experiment"
    assert told["machine"][0]["level"] == "costs"


def test_what_is_missing_or_slow_is_said(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (99.0, 0, 0))
    monkeypatch.setattr(machine, "look", lambda: None)
    monkeypatch.setattr(machine, "diagnose", lambda _: [])
    said = {note.subject: note for note in machine.machine_lacks()}
    assert set(said) == {"notebook", "hub", "browser", "load"} and said["notebook"].level == machine.BROKEN
    assert slow([Result("06", "it", "", "real", 30.0, True, "")] * 2)[0].startswith("lab 06 took 60 s here")


def run_of(*losses):
    return SimpleNamespace(curve=pd.DataFrame({"loss": losses}))


def test_runs_are_apart_where_a_loss_differs_is_none_or_is_missing():
    right = run_of(4.0, 2.0, 1.0)
    assert apart(right, right) == 0 and apart(right, right, run_of(4.0, 2.5, 1.0)) == 0.25
    for other in (run_of(4.0, float("nan"), 1.0), run_of(4.0, 2.0)):
        assert math.isnan(apart(right, right, other)) and math.isnan(apart(right, other, right))


def test_an_unknown_lab_is_refused(capsys):
    assert main(["rehearse", "99"]) == 2
    assert "LAB: got '99', allowed is any of 00, 01, " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timed
def test_ctrl_c_ends_it_and_leaves_no_process():
    # Tests before this one may have killed a supervisor.
    before, there = set(runs_folder().glob("*")), job_folders()

    def at_work() -> list[Path]:
        return [folder for folder in set(runs_folder().glob("*")) - before if list(folder.glob("rank-*"))]

    process = subprocess.Popen([*PROGRAM, "rehearse", "05"], stdout=-1, stderr=-1, text=True)
    try:
        job = Run(str(eventually(at_work, 30, "a job")[0]))
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT and said == "dlpar rehearse: stopped by Ctrl-C\n"
    assert time.monotonic() - began < 5
    assert job.status == "stopped"
    eventually(lambda: left_of(job, there) == [], 5, "its supervisor has cleared up and gone")
