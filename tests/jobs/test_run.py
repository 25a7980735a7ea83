"""A run folder as its reader sees it: frames, summary, exports, and the truth about runs that ended badly."""

from __future__ import annotations

import csv
import json
import math
import os
import stat
import time

import pytest
from simulations import simulation_of

import dlpar
from dlpar import Experiment, Run
from dlpar.jobs.run import NoSuchRun

KEYS = [
    "run", "workers", "steps", "samples_per_s", "final_loss", "accuracy", "staleness", "lead", "bytes_sent",
    "seconds", "time_to_accuracy", "launch_s", "clock", "slip", "wall_s", "goodput", "time_spent",
]  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Run:
    return dlpar.launch(Experiment(workers=3, steps=30, batch=90, evaluate_every=10)).wait(60)


def test_frames_have_a_row_for_everything_that_was_done(run):
    assert len(run.steps) == 90 and list(run.steps["rank"][:3]) == [0, 1, 2]
    assert (run.steps[["compute", "comm", "wait"]] >= 0).all().all()
    assert run.steps["samples"].sum() == 30 * 90
    assert list(run.curve["step"]) == list(range(30)) and run.curve["samples"].iloc[-1] == 2700
    assert run.curve["seconds"].is_monotonic_increasing
    assert list(run.evals["step"]) == [10, 20, 30] and run.evals["accuracy"].between(0, 1).all()
    assert set(run.spans["name"]) - {"delay"} == {"forward", "backward", "communicate", "update", "evaluate"}
    assert (run.spans["end"] >= run.spans["start"]).all()
    assert list(run.ranks["role"]) == ["worker"] * 3 and list(run.ranks["carrier"]) == ["mpi"] * 3


def test_the_phases_of_a_step_do_not_overlap_and_fill_it(run):
    for _, spans in run.spans[run.spans["name"] != "evaluate"].groupby(["rank", "step"]):
        # A delay of nothing is written only where the system took the core away in it.
        assert list(spans[spans["name"] != "delay"]["name"]) == [
            "forward",
            "backward",
            "communicate",
            "update",
        ]
        assert (spans["start"].to_numpy()[1:] >= spans["end"].to_numpy()[:-1]).all()
    first = run.steps.iloc[0]
    spans = run.spans.query("rank == 0 and step == 0 and name != 'evaluate'")
    total = first["compute"] + first["comm"] + first["wait"]
    assert math.isclose(total, (spans["end"] - spans["start"]).sum(), rel_tol=1e-6)


def test_the_ranks_times_can_be_laid_side_by_side(run):
    """No rank has finished agreeing on a step before every rank has begun to."""
    agreeing = run.spans.query("name == 'communicate'").groupby("step")
    assert (agreeing["start"].max() <= agreeing["end"].min()).all()


def test_the_summary_is_the_promised_object_and_agrees_with_the_frames(run):
    summary = run.summary
    assert list(summary) == KEYS
    assert summary["workers"] == 3 and summary["steps"] == 30 and summary["clock"] == "wall"
    assert summary["final_loss"] == pytest.approx(run.curve["loss"].iloc[-1])
    assert summary["accuracy"] == run.evals["accuracy"].iloc[-1]
    assert summary["staleness"] == {"mean": 0, "p99": 0, "max": 0}
    assert summary["bytes_sent"] == run.steps["bytes"].sum() > 0
    assert 0 < summary["launch_s"] < 60
    json.dumps(summary, allow_nan=False)


def test_bytes_on_the_wire_are_those_of_a_ring(run):
    parameters = 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10
    per_step = run.steps.groupby("step")["bytes"].sum()
    assert (per_step == 2 * (3 - 1) * parameters * 4).all()


def test_bytes_a_library_moved_are_unknown_rather_than_zero():
    run = dlpar.launch(Experiment(workers=2, steps=5, sync={"allreduce": "library"})).wait(60)
    assert run.summary["bytes_sent"] is None and run.steps["bytes"].isna().all()


def test_runs_are_listed_newest_first_and_reopened_by_their_id(run):
    newer = dlpar.launch(Experiment(workers=1, steps=2)).wait(60)
    listed = [r.id for r in dlpar.runs()]
    assert listed.index(newer.id) < listed.index(run.id)
    assert Run(run.id).experiment == run.experiment and Run(run.path).id == run.id
    with pytest.raises(NoSuchRun, match="got 'nothing', allowed is a run folder or one of the ids"):
        Run("nothing")


def test_a_run_folder_is_closed_to_others(run):
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((run.path / "rank-0.jsonl").stat().st_mode) == 0o600


def test_csv_and_perfetto_hold_the_same_figures(run, tmp_path):
    files = {p.stem: p for p in run.to_csv(tmp_path / "csv")}
    assert {"steps", "curve", "evals", "spans", "ranks"} <= set(files)
    rows = list(csv.DictReader(files["steps"].open()))
    assert len(rows) == 90 and float(rows[0]["loss"]) == run.steps["loss"][0]
    trace = json.loads(run.to_perfetto(tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in trace if e["ph"] == "X"]
    assert len(spans) == len(run.spans)
    assert sum(e["dur"] for e in spans) / 1e6 == pytest.approx((run.spans["end"] - run.spans["start"]).sum())
    assert {e["pid"] for e in spans} == {0, 1, 2}


def test_a_trace_has_only_numbers_of_json(tmp_path):
    """Sizes have no loss, and the loss of a run that diverges is no number."""
    sizes = Experiment(workers=2, steps=2, cluster={"world": "simulated", "messages": "sizes"})
    text = simulation_of(sizes, tmp_path / "sizes").to_perfetto(tmp_path / "trace.json").read_text()
    assert "NaN" not in text and "Infinity" not in text


def test_a_run_that_ended_without_a_word_is_lost_not_running(run, tmp_path):
    folder = tmp_path / "orphan"
    folder.mkdir()
    (folder / "experiment.json").write_text(run.experiment.to_json())
    (folder / "rank-0.jsonl").write_bytes((run.path / "rank-0.jsonl").read_bytes())
    (folder / "lock").touch()
    assert Run(folder).status == "lost" and not Run(folder).live


def test_a_diverged_run_says_so_without_breaking_its_readers():
    run = dlpar.launch(Experiment(workers=2, steps=1000, lr=100, model="linear", data="diabetes")).wait(60)
    assert run.status == "done" and not math.isfinite(run.curve["loss"].iloc[-1])
    assert run.summary["final_loss"] is None
    json.dumps(run.summary, allow_nan=False)


def test_deleting_is_refused_while_the_run_lives():
    job = dlpar.launch(Experiment(steps=100_000))
    try:
        with pytest.raises(RuntimeError, match="still running"):
            job.run.delete()
    finally:
        job.stop()
    job.run.delete()
    assert not os.path.exists(job.folder)


def test_a_test_that_a_resumed_run_repeats_is_listed_once(tmp_path):
    (tmp_path / "experiment.json").write_text(Experiment(workers=1, steps=4).to_json())
    test = {"k": "eval", "loss": 0.5, "samples": 8}
    first, again = ([test | {"step": step, "t": t, "accuracy": a} for step, t, a in rows]
                    for rows in (((2, 1.0, 0.5), (4, 2.0, 0.6)), ((4, 3.0, 0.7),)))  # fmt: skip
    for name, rows in (("rank-0.0.jsonl", first), ("rank-0.jsonl", again)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    evals = Run(tmp_path).evals
    assert evals["step"].tolist() == [2, 4] and evals["accuracy"].tolist() == [0.5, 0.7]


def test_a_run_whose_experiment_is_damaged_can_still_be_printed(tmp_path):
    (tmp_path / "experiment.json").write_text("{")
    assert repr(Run(tmp_path)) == f"<Run {tmp_path.name}: its experiment cannot be read>"


def test_a_run_that_goes_while_all_are_listed_breaks_no_list(run, monkeypatch, tmp_path):
    monkeypatch.setattr("dlpar.jobs.run._kept", lambda: [run.path, tmp_path / "gone"])
    assert [each.id for each in dlpar.runs()] == [run.id]


def test_runs_of_two_time_zones_are_listed_in_the_order_they_began(monkeypatch):
    made = []
    for zone in ("Pacific/Kiritimati", "Pacific/Honolulu"):  # 24 hours apart
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        made.append(dlpar.launch(Experiment(workers=1, steps=1, cluster={"world": "simulated"})).wait(60).id)
    monkeypatch.undo()
    time.tzset()
    assert [run.id for run in dlpar.runs()][:2] == made[::-1]


def test_an_earlier_attempt_without_an_end_is_lost_and_a_resumed_job_in_the_queue_is_queued(run, tmp_path):
    (tmp_path / "experiment.json").write_text(run.experiment.to_json())
    (tmp_path / "rank-0.0.jsonl").write_bytes((run.path / "rank-0.jsonl").read_bytes())
    (tmp_path / "job.0.jsonl").write_text(json.dumps({"k": "launch", "at": 0.0}) + "\n")
    (tmp_path / "job.jsonl").write_text(json.dumps({"k": "queued", "ahead": 1, "paused": False}) + "\n")
    assert Run(tmp_path).status_if(live=True) == "queued"
    (tmp_path / "rank-0.jsonl").write_text("")
    assert Run(tmp_path).status_if(live=True) == "running"
    ended = {"k": "end", "at": 1.0, "status": "done", "reason": "all ranks finished", "rank": None}
    (tmp_path / "job.jsonl").write_text(json.dumps(ended) + "\n")
    attempts = Run(tmp_path).attempts
    assert attempts["status"].tolist() == ["lost", "done"]
    assert "its launcher was killed" in attempts["reason"][0] and attempts["reason"][1] == ended["reason"]
