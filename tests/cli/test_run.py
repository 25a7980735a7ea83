"""`dlpar run`: its output, how it ends, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from conftest import eventually
from image_files import write_mnist

import dlpar
from cli.program import KEYS, PROGRAM, left_of, newest, program
from dlpar import Experiment, Run
from dlpar.config.paths import runs_folder


def test_run_prints_one_json_object_with_the_promised_keys(finished):
    assert list(finished) == KEYS
    assert finished["workers"] == 2 and finished["steps"] == 20 and finished["clock"] == "wall"
    assert set(finished["seconds"]) == {"compute", "comm", "wait"}
    assert set(finished["staleness"]) == {"mean", "p99", "max"} and set(finished["lead"]) == {"max", "bound"}
    assert finished == Run(finished["run"]).summary


@pytest.mark.timed
def test_the_defaults_learn_digits_in_ten_seconds(finished):
    """After another run, so that torch is not imported within the ten seconds."""
    began = time.monotonic()
    done = program("run", "--workers", "4", "--json")
    seconds = time.monotonic() - began
    assert json.loads(done.stdout)["accuracy"] >= 0.95
    assert seconds < 10


@pytest.mark.slow
def test_without_a_terminal_a_few_plain_lines_are_printed(finished, tmp_path):
    file = tmp_path / "experiment.json"
    file.write_text(Experiment(workers=3, steps=10, model={"width": 16}).to_json())
    done = program("run", "--experiment", str(file), "--workers", "2")
    assert done.returncode == 0 and "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("mlp on digits, 2 workers, ring, real world: run 2")
    assert any(line.startswith("step 10 of 10: loss ") for line in lines)
    run = Run(lines[0].rpartition(" ")[2])
    assert run.experiment == Experiment(workers=2, steps=10, model={"width": 16})
    assert lines[-1].split() == ["kept", "in", str(run.path)]


@pytest.mark.slow
def test_an_experiment_comes_from_standard_input_too():
    done = program("run", "--experiment", "-", "--json", "--steps", "3", input='{"workers": 1, "lr": 0.5}')
    summary = json.loads(done.stdout)
    assert (summary["workers"], summary["steps"]) == (1, 3)
    assert Run(summary["run"]).experiment.lr == 0.5


@pytest.mark.slow
def test_figures_that_are_not_finite_are_null(tmp_path):
    done = program("run", "--json", "--workers", "1", "--steps", "20", "--lr", "1000", "--batch", "64")
    assert "NaN" not in done.stdout and "Infinity" not in done.stdout
    assert json.loads(done.stdout)["final_loss"] is None


@pytest.mark.slow
def test_a_run_with_bad_data_says_so_in_a_sentence(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").touch()
    done = program("run", "--workers", "2", "--data", "mnist", "--folder", str(tmp_path), "--json")
    assert done.returncode == 1 and done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith("dlpar run: mnist: train-labels-idx1-ubyte (or .gz) is missing in ")


def test_a_failed_run_says_why_on_stderr_with_each_rank_s_traceback(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import dlpar.train\ndlpar.train.load = lambda *data: 1 / 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("DLPAR_PLUGINS", "broken")
    done = program("run", "--workers", "2", "--json")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("dlpar run: rank 0 raised ZeroDivisionError: division by zero")
    for rank in (0, 1):
        assert f"--- rank {rank} ---\nTraceback (most recent call last)" in done.stderr
    assert str(runs_folder()) in done.stderr.splitlines()[-1]


# ---- stopping -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.parametrize(
    ("number", "status", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_a_signal_stops_the_job_within_two_seconds(number, status, name, finished):
    before = {run.id for run in dlpar.runs()}
    words = [*PROGRAM, "run", "--workers", "2", "--steps", "1000000", "--json"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run = eventually(lambda: (r := newest()) and r.id not in before and r, 30, "ranks train")
    child.send_signal(number)
    began = time.monotonic()
    out, err = child.communicate(timeout=10)
    assert time.monotonic() - began < 2
    assert left_of(run) == []
    assert (child.returncode, out) == (status, "")
    assert err == f"dlpar run: stopped by {name}; its records are in {run.path}\n"
    assert run.status == "stopped"


@pytest.mark.timed
def test_ctrl_c_while_it_starts_leaves_nothing(finished):
    words = [*PROGRAM, "run", "--workers", "2", "--steps", "1000000"]
    count = len(dlpar.runs())
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: len(dlpar.runs()) > count, 30, "the run has a folder")
    child.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, err = child.communicate(timeout=10)
    assert time.monotonic() - began < 2 and child.returncode == 130 and "stopped by Ctrl-C" in err
    run = dlpar.runs()[0]
    assert run.status == "stopped" and left_of(run) == []


@pytest.mark.slow
def test_a_flag_without_effect_is_told_of_and_the_run_goes_on():
    done = program(
        "run", "--sync", "ps", "--staleness", "2", "--steps", "3", "--world", "simulated", "--json"
    )
    assert (done.returncode, json.loads(done.stdout)["steps"]) == (0, 3)
    assert done.stderr == "dlpar run: --staleness has no effect: it is meant with --consistency ssp\n"


@pytest.mark.slow
def test_a_run_finds_its_files_from_any_folder(tmp_path, monkeypatch):
    """An unrelated file of the same relative name changed a resumed run without a word."""
    for folder, platform in (("one", "cpu-10gbe"), ("other", "k80-1gbe")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.toml").write_text(f'extends = "{platform}"\n')
    asked = ["--platform", "./mine.toml", "--world", "simulated", "--workers", "2", "--steps", "30"]
    monkeypatch.chdir(tmp_path / "one")
    done = program("run", *asked, "--snapshot-every", "10", "--die", "1=0.5", "--json")
    assert done.returncode == 1
    monkeypatch.chdir(tmp_path / "other")
    assert program("resume").returncode == 0
    run = dlpar.runs()[0]
    assert run.experiment.cluster.platform == str(tmp_path / "one" / "mine.toml")
    pace = run.curve["samples_per_s"]
    assert pace[25] == pytest.approx(pace[5], rel=1e-6)


@pytest.mark.slow
def test_a_run_keeps_the_folder_that_the_environment_named(tmp_path, monkeypatch):
    """It would be resumed on the data of another one: mnist and its like have the same file names."""
    write_mnist(tmp_path)
    monkeypatch.setenv("DLPAR_DATA", str(tmp_path))
    done = program("run", "--workers", "1", "--data", "mnist", "--steps", "2", "--batch", "8", "--json")
    assert Run(json.loads(done.stdout)["run"]).experiment.data.folder == str(tmp_path)


@pytest.mark.slow
def test_a_second_signal_does_not_change_what_ended_the_run():
    command = subprocess.Popen(
        [*PROGRAM, "run", "--steps", "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    run = eventually(newest, 60, "a run")
    command.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    command.send_signal(signal.SIGTERM)
    _, said = command.communicate(timeout=30)
    assert command.returncode == 143 and "stopped by SIGTERM" in said and run
