"""This machine as a platform: measured once, kept, and used by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dlpar import Experiment
from dlpar.cli import main
from dlpar.theory import calibrate as calibrating
from dlpar.theory import predict, sizes
from dlpar.worlds.platforms import Link, platform

LINK = Link(8e-6, 6e9)
TIMES = [LINK.seconds(size) for size in calibrating.SIZES]
FLOPS, OVERHEAD, IN_TRAINING = 5e10, 3e-4, 2e9


def made_up_each(experiments, runs=1) -> list[float]:
    return [made_up(experiment) for experiment in experiments]


def made_up(experiment: Experiment) -> float:
    """Seconds of a step on a machine of these figures."""
    own = sizes(experiment)
    computing = OVERHEAD + own.flops * experiment.local_batch(0) / FLOPS
    if experiment.averaging.method == "local":
        return computing
    times = {"ring": 1, "ps": 3}[experiment.sync.scheme]
    return computing + 2 * LINK.latency + times * own.nbytes / IN_TRAINING


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A home of its own, on a machine of the figures above."""
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibrating, "spmd", lambda *_, **__: [(TIMES, 4032)])
    monkeypatch.setattr(calibrating, "step_seconds", made_up_each)
    monkeypatch.setattr(calibrating, "cores", lambda: 2)
    return tmp_path / "home"


def test_what_was_measured_is_kept_as_a_small_dated_file(home, capsys):
    assert main(["doctor", "--calibrate"]) == 0
    here = platform("here")
    assert here.device.flops == pytest.approx(FLOPS, rel=0.01)
    assert here.device.overhead == pytest.approx(OVERHEAD, rel=0.01)
    assert here.inside.latency == pytest.approx(LINK.latency, rel=0.01)
    assert here.inside.bandwidth == pytest.approx(IN_TRAINING, rel=0.02)
    assert (here.eager, here.nodes, here.ranks) == (4032, 1, 64) and here.link(same_node=False) == here.inside
    assert len((home / "here.json").read_text()) < 800
    assert "measured on 20" in here.source and "take turns" in here.source
    said = capsys.readouterr().out
    assert "8 µs, 2 GB/s" in said and "4,032 bytes" in said and "0.3 ms a step" in said


@pytest.mark.parametrize("workers, sync", [(1, "ring"), (2, "ring"), (2, "ps")])
def test_predictions_on_the_measured_machine_are_what_was_measured(home, workers, sync):
    calibrating.calibrate()
    experiment = Experiment(workers=workers, sync=sync, cluster={"world": "simulated", "platform": "here"})
    exchange = {} if workers > 1 else {"averaging": "local"}
    assert predict(experiment).seconds == pytest.approx(made_up(experiment.replace(**exchange)), rel=0.02)


def test_where_exchanges_are_lost_in_noise_the_link_is_that_of_plain_messages(home, monkeypatch):
    noisy = lambda e: (
        made_up(e) if e.averaging.method == "local" else 0.9 * made_up(e.replace(averaging="local"))
    )
    monkeypatch.setattr(
        calibrating, "step_seconds", lambda experiments, runs: [noisy(e) for e in experiments]
    )
    assert calibrating.calibrate().inside.bandwidth == pytest.approx(LINK.bandwidth, rel=0.01)


def test_on_one_core_only_plain_messages_are_looked_at(home, monkeypatch):
    monkeypatch.setattr(calibrating, "cores", lambda: 1)
    here = calibrating.calibrate()
    assert here.inside.bandwidth == pytest.approx(LINK.bandwidth, rel=0.01)
    assert here.device.flops == pytest.approx(FLOPS, rel=0.01) and "its 1 core " in here.source


def test_measuring_again_replaces_the_figures(home, monkeypatch):
    first = calibrating.calibrate()
    monkeypatch.setattr(
        calibrating, "step_seconds", lambda experiments, runs: [2 * made_up(e) for e in experiments]
    )
    second = calibrating.calibrate()
    assert second.device.flops == pytest.approx(first.device.flops / 2, rel=0.01)
    assert platform("here") == second


def test_where_ranks_cannot_run_one_line_says_so_and_nothing_is_kept(home):
    environment = {**os.environ, "DLPAR_MPIEXEC": "/nowhere/mpiexec"}
    command = [sys.executable, "-m", "dlpar.cli", "doctor", "--calibrate"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("dlpar doctor: DLPAR_MPIEXEC: got '/nowhere/")
    assert done.stderr.count("\n") == 1 and not (home / "here.json").exists()


@pytest.mark.slow
@pytest.mark.timed
def test_this_machine_can_be_measured_and_predicts_its_own_steps(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    monkeypatch.setattr(calibrating, "THOROUGH", 1)
    assert main(["doctor", "--calibrate", "--json"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert 1e-7 < here["inside"]["latency"] < 5e-3 and here["inside"]["bandwidth"] > 2e7
    assert 64 <= here["eager"] <= 1 << 20
    ring = Experiment(workers=2, steps=60, cluster={"threads": 1})
    predicted = predict(ring.replace(cluster={"world": "simulated", "platform": "here"}))
    assert 0.4 < calibrating.step_seconds([ring])[0] / predicted.seconds < 2.5
    assert list((tmp_path / "runs").glob("*")) == []  # measuring leaves no run behind


def test_steps_are_timed_where_messages_are_on_the_processors(home, monkeypatch):
    """With GPUs, a device of their pace would otherwise get the host's link."""
    timed = []
    monkeypatch.setattr(
        calibrating,
        "step_seconds",
        lambda experiments, runs: timed.extend(experiments) or made_up_each(experiments),
    )
    calibrating.calibrate()
    assert [experiment.cluster.device for experiment in timed] == ["cpu"] * 4
