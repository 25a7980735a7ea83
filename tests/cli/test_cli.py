"""The program `dlpar`: what it prints, how it ends, and what it leaves behind."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import eventually

import dlpar
from dlpar import Experiment, Run
from dlpar.cli import flags, main
from dlpar.cli.running import Stops
from dlpar.config.paths import Scratch, runs_folder, runtime_folder
from dlpar.jobs.processes import parent_of

KEYS = [
    "run", "workers", "steps", "samples_per_s", "final_loss", "accuracy", "staleness", "lead", "bytes_sent",
    "seconds", "time_to_accuracy", "launch_s", "clock", "slip",
]  # fmt: skip

PROGRAM = [sys.executable, "-m", "dlpar.cli"]


def program(*words: str, **more) -> subprocess.CompletedProcess:
    """Run the real program to its end."""
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=60, **more)


@pytest.fixture(scope="module")
def finished() -> dict:
    """The summary that ``dlpar run --json`` printed."""
    done = program("run", "--workers", "2", "--steps", "20", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


# ---- run ------------------------------------------------------------------------


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


def test_an_experiment_comes_from_standard_input_too():
    done = program("run", "--experiment", "-", "--json", "--steps", "3", input='{"workers": 1, "lr": 0.5}')
    summary = json.loads(done.stdout)
    assert (summary["workers"], summary["steps"]) == (1, 3)
    assert Run(summary["run"]).experiment.lr == 0.5


def test_figures_that_are_not_finite_are_null(tmp_path):
    done = program("run", "--json", "--workers", "1", "--steps", "20", "--lr", "1000", "--batch", "64")
    assert "NaN" not in done.stdout and "Infinity" not in done.stdout
    assert json.loads(done.stdout)["final_loss"] is None


def test_a_failed_run_says_why_on_stderr_with_each_rank_s_traceback(tmp_path):
    done = program("run", "--workers", "2", "--data", "mnist", "--folder", str(tmp_path), "--json")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("dlpar run: rank 0 raised BadData: mnist: no train-images-idx3-ubyte")
    for rank in (0, 1):
        assert f"--- rank {rank} ---\nTraceback (most recent call last)" in done.stderr
    assert str(runs_folder()) in done.stderr.splitlines()[-1]


# ---- stopping -------------------------------------------------------------------


def newest() -> Run | None:
    """The newest run once its ranks train."""
    found = dlpar.runs()
    return found[0] if found and (found[0].path / "rank-1.jsonl").exists() else None


def job_folders() -> list[str]:
    """Those of all jobs, for sockets and in shared memory; they go with the job."""
    memory = Scratch("x").memory
    return [*map(str, runtime_folder().glob("job-*")), *map(str, memory.parent.glob(memory.name[:-1] + "*"))]


def left_of(run: Run, there: list[str] = ()) -> list[str]:
    """Processes of a job that has ended, and folders of any job but those that were there."""
    told = [path.read_text().splitlines() for path in run.path.glob("rank-*.jsonl")]
    headers = [
        json.loads(lines[0]) for lines in told if lines
    ]  # who was stopped at its very first line has told nothing
    alive = [str(record["pid"]) for record in headers if parent_of(record["pid"]) is not None]
    return alive + [folder for folder in job_folders() if folder not in there]


@pytest.mark.timed
@pytest.mark.parametrize(
    ("number", "status", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_a_signal_stops_the_job_within_two_seconds(number, status, name, finished):
    before = newest().id
    words = [*PROGRAM, "run", "--workers", "2", "--steps", "1000000", "--json"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run = eventually(lambda: (r := newest()) and r.id != before and r, 30, "ranks train")
    child.send_signal(number)
    began = time.monotonic()
    out, err = child.communicate(timeout=10)
    assert time.monotonic() - began < 2
    assert left_of(run) == []
    assert (child.returncode, out) == (status, "")
    assert err == f"dlpar run: stopped by {name}; what it did is kept in {run.path}\n"
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


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stops() as stops:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == stops._note
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_interrupts_at_once():
    with Stops() as stops:
        signal.raise_signal(signal.SIGINT)
        assert stops.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_runs_lists_what_there_is(finished, capsys):
    assert main(["runs"]) == 0
    table = capsys.readouterr().out
    assert finished["run"] in table and "mlp on digits, ring" in table and "done" in table
    assert main(["runs", "--json", "--limit", "1000"]) == 0
    row = next(r for r in json.loads(capsys.readouterr().out) if r["run"] == finished["run"])
    assert row["accuracy"] == finished["accuracy"] and row["status"] == "done" and row["workers"] == 2


def test_show_tells_all_about_a_run_and_how_to_repeat_it(finished, capsys, tmp_path):
    assert main(["show", finished["run"]]) == 0
    text = capsys.readouterr().out
    assert "all ranks finished" in text and "20 of 20" in text and "dlpar run --steps 20 --workers 2" in text
    assert main(["show", finished["run"], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {key: told[key] for key in KEYS} == finished
    assert told["status"] == "done" and told["errors"] == {} and Experiment(**told["experiment"]).workers == 2
    words = shlex.split(told["command"])
    assert words[:2] == ["dlpar", "run"] and words[2:] == flags.to_flags(Run(finished["run"]).experiment)


def test_show_exports(finished, capsys, tmp_path):
    tables, trace = tmp_path / "csv", tmp_path / "trace.json"
    assert main(["show", finished["run"], "--csv", str(tables), "--perfetto", str(trace)]) == 0
    assert len((tables / "steps.csv").read_text().splitlines()) == 1 + 2 * 20
    assert json.loads(trace.read_text())["traceEvents"]
    assert "written: " in capsys.readouterr().out


def test_a_run_whose_hostfile_is_gone_can_still_be_read(finished, capsys, tmp_path):
    hostfile = tmp_path / "hosts"
    hostfile.touch()
    folder = make_run("29990101-000000-hosts", Experiment(cluster={"hostfile": str(hostfile)}), "done")
    hostfile.unlink()
    assert main(["show", folder.name]) == 0
    assert f"--hostfile {hostfile}" in capsys.readouterr().out


def make_run(name: str, experiment: Experiment, status: str | None) -> Path:
    """A run folder as a finished job leaves it, without records of steps."""
    folder = runs_folder() / name
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text(experiment.to_json())
    if status:
        end = {"k": "end", "at": 1.0, "status": status, "reason": "a reason", "rank": None}
        (folder / "job.jsonl").write_text(json.dumps(end) + "\n")
        figures = dict.fromkeys(KEYS) | {
            "run": name,
            "steps": 1,
            "accuracy": 0.5,
            "final_loss": 0.25,
            "samples_per_s": 1234.5,
            "seconds": {"compute": 1, "comm": 1, "wait": 1},
            "staleness": {"max": 0},
            "time_to_accuracy": {},
            "lead": {"max": 0, "bound": 0},
        }
        (folder / "summary.json").write_text(json.dumps(figures))
    return folder


@pytest.mark.timed
def test_a_thousand_runs_are_listed_in_a_moment(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    experiment = Experiment()
    for number in range(1000):
        make_run(f"20260101-{number:06d}", experiment, "done")
    began = time.monotonic()
    assert main(["runs", "--limit", "1000"]) == 0
    assert time.monotonic() - began < 2
    assert capsys.readouterr().out.count("1,230") == 1000
    assert main(["runs", "--limit", "5"]) == 0
    assert "and 995 older ones: dlpar runs --limit 1000" in capsys.readouterr().out


def test_runs_that_are_lost_or_damaged_are_listed_as_such(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    make_run("20260101-1", Experiment(), None)
    (make_run("20260101-2", Experiment(), "done") / "experiment.json").write_text("{")
    (make_run("20260101-3", Experiment(), "failed") / "summary.json").write_text("[]")
    assert main(["runs", "--json"]) == 0
    found = {row["run"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert found == {"20260101-3": "unreadable", "20260101-2": "unreadable", "20260101-1": "lost"}
    assert main(["show", "20260101-1"]) == 0
    assert "was the machine switched off?" in capsys.readouterr().out
    assert main(["show", "20260101-2"]) == 2
    assert "which this version cannot read (experiment: not valid JSON" in capsys.readouterr().err


def test_no_runs_yet(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "No runs yet: `dlpar run` makes one.\n"
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_reader_that_leaves_early_is_no_error(finished):
    command = f"{shlex.join(PROGRAM)} show {finished['run']} --json | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.stdout == "{" and done.stderr == ""
