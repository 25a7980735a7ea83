"""`dlpar sweep`: flags with several values, its table, its figure, and how it ends."""

import csv
import json
import re
import signal
import subprocess
import sys

import pytest
from lab.fake_job import FakeJob, fake_jobs

import dlpar
from dlpar import Experiment
from dlpar.cli import main
from dlpar.cli import sweep as typed
from dlpar.cli.sweep import Asked
from dlpar.config.schema import BadExperiment
from dlpar.lab import sweep

# ---- flags with several values ------------------------------------------------------


def values(asked: list[Asked]) -> list[tuple]:
    return [tuple(one.values.values()) for one in asked]


def test_a_flag_takes_several_values_and_numbers_of_workers_vary_fastest():
    asked = typed.read({"workers": ["2,4"], "sync_scheme": ["ring", "ps"], "steps": ["3"]})
    assert values(asked) == [("ring", "2"), ("ring", "4"), ("ps", "2"), ("ps", "4")]
    assert asked[3].experiment == Experiment(workers=4, sync="ps", steps=3)


def test_a_flag_of_one_scheme_is_left_out_where_the_others_run():
    asked = typed.read({"sync_scheme": ["ring,ps"], "sync_consistency": ["bsp,asp"]})
    assert values(asked) == [("ring", None), ("ps", "bsp"), ("ps", "asp")]
    with pytest.raises(BadExperiment, match="--consistency: got asp, allowed with --sync ps, not ring"):
        typed.read({"sync_scheme": ["ring"], "sync_consistency": ["asp"]})


def test_values_with_commas_are_told_apart_by_semicolons_or_repeated():
    for words in (["0=2.0,1=1.5;3=4"], ["0=2.0,1=1.5", "3=4"]):
        asked = typed.read({"delays_straggler": words})
        assert [one.experiment.delays.straggler for one in asked] == [{0: 2.0, 1: 1.5}, {3: 4.0}]


def test_cuts_and_orders_of_a_split_are_told_apart_by_semicolons():
    split = {"split_kind": ["pipeline"], "workers": ["2"], "split_partition": ["2,1;1,2"]}
    assert [one.experiment.split.partition for one in typed.read(split)] == ["2,1", "1,2"]
    split = {"split_kind": ["tensor"], "workers": ["2"], "split_order": ["tensor,data"]}
    assert [one.experiment.split.order for one in typed.read(split)] == ["tensor,data"]


def test_a_switch_given_both_ways_is_swept_and_a_value_given_twice_runs_once():
    asked = typed.read({"sync_overlap": [True, False], "workers": ["2,2", "2"]})
    assert [one.experiment.sync.overlap for one in asked] == [True, False]
    assert values(asked) == [("on",), ("off",)]


def test_a_file_gives_what_no_flag_does():
    asked = typed.read({"workers": ["2,3"]}, {"steps": 7, "sync": "ps"})
    assert {(one.experiment.steps, one.experiment.sync.scheme) for one in asked} == {(7, "ps")}


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["--workers", "2,0,many"],
            ["--workers: got 0, allowed .* (workers 0)", "--workers: got 'many', .* (workers many)"],
        ),
        (["--sync", "ring,gosip"], ["--sync: got 'gosip', allowed is one of ring.* (sync gosip)"]),
        (
            ["--batch", "8", "--workers", "4,16", "--sync", "ring,ps"],
            [r"--batch: got 8, .*at least 16.* (sync ring workers 16; sync ps workers 16)"],
        ),
        (
            ["--workers", "2,128"],
            ["--workers: got 128, allowed in the real world is at most 64 (workers 128)"],
        ),
        (
            ["--seed", ",".join(map(str, range(1001)))],
            ["--seed: got 1,001 combinations, allowed are at most 1,000"],
        ),
        (["--jobs", "0"], ["--jobs: got 0, allowed is a whole number from 1 to 256"]),
        (["--worker", "2"], ["--worker: there is no such option; nearest are --workers"]),
        (["--platform", "p100", "--world", "simulated"], ["--platform: got 'p100', allowed is one of here"]),
        (["--data", "mnist", "--folder", "/nowhere"], ["--folder: got '/nowhere'"]),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs_one_line_each(words, lines, capsys, monkeypatch):
    monkeypatch.setattr(sweep, "launch", lambda experiment: pytest.fail("something ran"))
    monkeypatch.delenv("DLPAR_DATA", raising=False)
    assert main(["sweep", *words]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(lines)
    for line, expected in zip(said, lines):
        pattern = re.escape("dlpar sweep: ") + expected.replace("(", r"\(").replace(")", r"\)")
        assert re.match(pattern, line), line


# ---- the program ------------------------------------------------------------------


@pytest.fixture
def jobs(monkeypatch):
    return fake_jobs(monkeypatch)


@pytest.mark.slow
def test_a_small_simulated_sweep_from_the_command_line(tmp_path):
    table, page = tmp_path / "table.csv", tmp_path / "figure.html"
    words = ["--workers", "2,4", "--sync", "ring,ps", "--world", "simulated", "--platform", "p100-25gbe",
             "--stand-in-for", "resnet50", "--messages", "sizes", "--batch", "32", "--scaling", "weak",
             "--steps", "3"]  # fmt: skip
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "dlpar.cli",
            "sweep",
            *words,
            "--json",
            "--csv",
            str(table),
            "--figure",
            str(page),
        ],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    assert [(row["sync"], row["workers"]) for row in rows] == [
        ("ring", "2"),
        ("ring", "4"),
        ("ps", "2"),
        ("ps", "4"),
    ]
    assert all(row["clock"] == "virtual" and row["status"] == "done" for row in rows)
    for row in rows[:2]:  # the closed form of a ring is exact
        assert row["step_s"] == pytest.approx(row["predicted_step_s"], rel=1e-3)
    assert rows[1]["speedup"] == pytest.approx(rows[1]["samples_per_s"] / rows[0]["samples_per_s"])
    assert rows[1]["efficiency"] == pytest.approx(rows[1]["speedup"] / 2)
    with open(table, newline="") as file:
        kept = list(csv.DictReader(file))
    assert [float(row["samples_per_s"]) for row in kept] == pytest.approx(
        [row["samples_per_s"] for row in rows]
    )
    text = page.read_text()
    assert "ring, simulated" in text and "ps bsp, predicted" in text and "<table" in text
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text), "the page fetches nothing"


@pytest.mark.slow
def test_ctrl_c_stops_all_and_prints_what_is_done():
    words = ["--world", "simulated", "--messages", "sizes", "--steps", "2,1000000,999999", "--workers", "16"]
    before = set(dlpar.runs())
    program = subprocess.Popen(
        [sys.executable, "-m", "dlpar.cli", "sweep", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "1 of 3, steps 2" in program.stderr.readline()
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=20)
    assert program.returncode == 130 and "stopped by Ctrl-C; 1 of 3 runs are done" in err
    assert [line.split()[-1] for line in out.splitlines()[1:4]].count("done") == 1
    assert not [run for run in dlpar.runs() if run.id not in {old.id for old in before} and run.live]


def test_the_table_shows_what_varies_and_what_is_known(jobs, monkeypatch, capsys):
    rates = iter((100.0, 180.0, 0.0))
    monkeypatch.setattr(FakeJob, "summary", property(lambda self: _summary(next(rates))), raising=False)
    monkeypatch.setattr(FakeJob, "id", "run-1", raising=False)
    assert main(["sweep", "--workers", "1,2,3", "--world", "simulated", "--seed", "0", "--jobs", "1"]) == 0
    shown = capsys.readouterr()
    heads, _, second, third, _ = shown.out.splitlines()
    assert (
        heads.split()[:3] == ["workers", "samples/s", "speed-up"] and "clock" in heads and "accuracy" in heads
    )
    assert second.split()[:4] == ["2", "180", "1.8", "90.0%"] and third.split()[1:4] == ["–", "–", "–"]
    assert shown.err.splitlines()[0] == "dlpar sweep: 1 of 3, workers 1: 100 samples/s"


def test_a_sweep_with_a_failure_says_which_and_ends_with_status_1(jobs, monkeypatch, capsys):
    monkeypatch.setattr(FakeJob, "summary", property(lambda self: _summary(50.0)), raising=False)
    monkeypatch.setattr(FakeJob, "id", "run-1", raising=False)
    assert main(["sweep", "--seed", "0,1", "--world", "simulated", "--json"]) == 1
    shown = capsys.readouterr()
    assert [row["status"] for row in json.loads(shown.out)] == ["done", "failed"]
    assert shown.err == "dlpar sweep: 2 of 2, seed 1: seed 1 fails\n"


def _summary(rate: float) -> dict:
    return {"samples_per_s": rate or None, "accuracy": 0.9, "clock": "virtual"}
