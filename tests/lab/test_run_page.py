"""What a panel says of a run: progress, facts, results in a table, and the log."""

import json

import pytest

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import Run
from dlpar.lab import run_page as module
from dlpar.lab.page import Page
from dlpar.lab.run_page import Status, results
from lab.folders import finished
from lab.records import step

ASP = {"scheme": "ps", "consistency": "asp"}


@pytest.fixture
def shown():
    page = Page()
    yield page
    page.close()


def began(page, tmp_path, **fields):
    experiment = Experiment(**{"workers": 1, "steps": 100, **fields})
    status = Status(page, experiment)
    status.begin(experiment, tmp_path)
    return status


def steps(count):
    found = GlobalSteps(1)
    for number in range(count):
        found.add(0, step(number))
    found.ready()
    return found


def test_progress_has_the_steps_the_time_the_speed_and_what_is_left(shown, tmp_path):
    status = began(shown, tmp_path)
    assert shown.state["words"] == "Starting 1 rank …"
    status.progress(steps(25), 64.0)
    assert shown.state["words"] == "step 25 of 100 · 25 s · 64 samples/s · about 1 min 15 s left"
    assert (shown.state["done"], shown.state["steps"]) == (25, 100)


def test_progress_is_said_at_most_four_times_a_second(shown, tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    status = began(shown, tmp_path)
    status.progress(steps(1), None)
    now[0] += 0.2
    status.progress(steps(2), None)
    assert shown.state["done"] == 1
    now[0] += 0.1
    status.progress(steps(2), None)
    assert shown.state["done"] == 2


def test_the_end_says_what_came_of_it(shown, tmp_path):
    status = began(shown, tmp_path)
    status.launch_s = 0.4
    status.ended(steps(100), 0.9, 64.0, "done", "")
    assert shown.state["words"] == (
        "done: 100 steps · 1 min 40 s · 64 samples/s · loss 1 · held-out accuracy 90.0% · launched in 0.4 s"
    )
    status.ended(steps(3), None, None, "stopped", "by its owner")
    assert shown.state["words"].startswith("stopped after 3 of 100 steps · 3.0 s · loss 1")
    status.ended(steps(3), None, None, "failed", "rank 0 raised ValueError: bad")
    assert shown.state["words"] == "failed after 3 of 100 steps — rank 0 raised ValueError: bad"


def test_facts_name_clocks_that_are_not_the_walls(shown, tmp_path):
    status = began(shown, tmp_path)
    facts = dict(shown.state["facts"])
    assert facts["world"] == "real" and "core" in facts["platform"] and "clock" not in facts
    status.begin(Experiment(cluster={"world": "paced", "platform": "p100-10gbe"}), tmp_path)
    status.show_facts({}, 0.012, "the same in all runs")
    facts = dict(shown.state["facts"])
    assert facts == {
        "world": "paced",
        "platform": "p100-10gbe",
        "clock": "logical",
        "slip": "12 ms",
        "batches": "the same in all runs",
    }
    status.chosen = {"all-reduce": "ring for 1 bucket"}
    status.show_facts({}, None, "")
    assert ["all-reduce", "ring for 1 bucket"] in [list(fact) for fact in shown.state["facts"]]


def test_the_log_has_the_output_and_every_traceback_with_its_rank(shown, tmp_path):
    status = began(shown, tmp_path)
    (tmp_path / "log.txt").write_text("[rank 0] reading <b>data</b>\n")
    status.errors = {1: {"traceback": "Traceback\n  line\nValueError: bad\n"}, 0: {"message": "worse"}}
    status.show_log()
    lines = shown.state["log"].splitlines()
    assert lines[0] == "[rank 0] reading <b>data</b>", "the page shows it as text"
    assert "[rank 0] worse" in lines and "[rank 1] ValueError: bad" in lines
    assert shown.state["path"] == str(tmp_path)


def test_of_a_long_log_the_end_is_shown(shown, tmp_path):
    status = began(shown, tmp_path)
    (tmp_path / "log.txt").write_text("".join(f"line {number}\n" for number in range(10_000)))
    status.show_log()
    assert shown.state["log"].endswith("line 9999") and len(shown.state["log"]) <= module.LOG_BYTES


# ---- results ----------------------------------------------------------------------


def test_results_are_those_of_the_summary():
    run = finished(workers=2, steps=40, sync=ASP)
    found, summary = results(run, 1.25), run.summary
    assert found["samples/s"] == summary["samples_per_s"] and found["final loss"] == summary["final_loss"]
    assert found["MB sent"] == summary["bytes_sent"] / 1e6
    assert found["to goal (s)"] == 1.25 and results(run, None)["to goal (s)"] is None


def test_results_of_a_run_that_diverged_are_json():
    run = finished(workers=2, steps=3)
    (run.path / "summary.json").unlink(missing_ok=True)
    for path in run.path.glob("rank-*.jsonl"):
        records = [json.loads(line) | {} for line in open(path)]
        lost = [record | ({"loss": None} if record["k"] == "step" else {}) for record in records]
        path.write_text("".join(json.dumps(record) + "\n" for record in lost))
    found = results(Run(run.path), None)
    json.dumps(found, allow_nan=False)
    assert found["final loss"] is None
