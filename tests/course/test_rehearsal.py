"""``dlpar rehearse``: every preset has its trial, a line says how it went, and nothing is left when it is stopped."""

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
from cli.test_cli import PROGRAM, job_folders, left_of
from conftest import eventually

from dlpar import Experiment, Run
from dlpar.cli import machine, main
from dlpar.cli.rehearse import slow
from dlpar.config.paths import runs_folder
from dlpar.course import presets
from dlpar.course.rehearsal import Result, Trial, rehearse, trials
from dlpar.course.rehearsal.stage import apart
from dlpar.jobs.launch import JobFailed

WITH_OTHERS = {"cores", "in_turn", "platform_file", "digits_as_mnist", "clusters"}
"""Functions of the presets that no lab runs by themselves: what others are made with."""


def test_every_preset_of_every_lab_has_a_trial_and_says_what_it_refutes():
    tried = {each.preset: each for each in trials()}
    known = {name for name in presets.__all__ if callable(getattr(presets, name))}
    assert set(tried) == known - WITH_OTHERS
    for name, each in tried.items():
        assert f"Lab {each.lab}" in (getattr(presets, name).__doc__ or "") or name == "this_machine"
        assert each.belief and "\n" not in each.belief
    assert [each.lab for each in trials()] == sorted(each.lab for each in trials())
    assert {each.lab for each in trials(["03", "00"])} == {"00", "03"}


def trained(stage):
    run = stage.run(Experiment(workers=2, steps=3, evaluate_every=0, cluster="simulated"))
    assert run is stage.run(run.experiment), "the same experiment is run once"
    return run.status == "done", "3 steps"


def true(stage):
    return True, "2 is 2"


def not_true(stage):
    return False, "2 is not 3"


def mistaken(stage):
    return stage.no_such_thing


def failing(stage):
    raise JobFailed("rank 1 died\nits traceback")


def endless(stage):
    stage.run(Experiment(workers=2, steps=10**6, cluster="simulated"))


def test_whatever_happens_in_one_trial_is_a_sentence_and_the_next_is_tried():
    attempts = (not_true, mistaken, failing, endless, true)
    found = list(rehearse([Trial("00", f.__name__, "a belief", f) for f in attempts], limit=2))
    assert [(each.held, each.said) for each in found] == [
        (False, "2 is not 3"),
        (False, "AttributeError: 'Stage' object has no attribute 'no_such_thing'"),
        (False, "the job failed: rank 1 died"),
        (False, "given up after 2 s"),
        (True, "2 is 2"),
    ]
    assert [each.world for each in found] == [*["computed"] * 3, "simulated", "computed"]
    assert 2 <= found[3].seconds < 8


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr(machine, "notes", lambda: [machine.Note(machine.COSTS, "memory", "0.9 GB free")])


@pytest.mark.parametrize(
    "attempt, status, last",
    [
        (trained, 0, "1 of 1 presets show what their labs say."),
        (not_true, 1, "0 of 1 presets show what their labs say."),
    ],
)
def test_the_status_says_whether_all_held(monkeypatch, quiet, capsys, attempt, status, last):
    monkeypatch.setattr(
        "dlpar.course.rehearsal.trials", lambda labs: [Trial("00", "it", "a belief", attempt)]
    )
    assert main(["rehearse", "00"]) == status
    first, line, *_, end = capsys.readouterr().out.splitlines()
    assert first == "costs   memory: 0.9 GB free" and "00 it" in line and "a belief: " in line and end == last
    assert main(["rehearse", "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert (
        told["failed"] == status
        and told["presets"][0]["preset"] == "it"
        and told["machine"][0]["level"] == "costs"
    )


def test_what_is_missing_or_slow_is_said(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (99.0, 0, 0))
    said = {note.subject: note for note in (*machine.parts(), *machine.load())}
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
    assert main(["rehearse", "11"]) == 2
    assert "LAB: got '11', allowed is any of 00, 01, " in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_it_and_leaves_no_process():
    before, there = (
        set(runs_folder().glob("*")),
        job_folders(),
    )  # tests before this one may have killed a supervisor

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
