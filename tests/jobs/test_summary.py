"""What a reader makes of workers that run free of each other, of servers, and of steps that sampled nothing."""

from __future__ import annotations

import json

import pytest

from dlpar import Experiment, Run
from dlpar.jobs.summary import Summary, facts_of, in_words


def step(number, t, loss, staleness=0, lead=0, samples=10, sent=100):
    seconds = {"t": t, "compute": 0.5, "comm": 0.2, "wait": 0.1}
    counted = {
        "loss": loss,
        "samples": samples,
        "staleness": staleness,
        "lead": lead,
        "bytes": sent,
        "messages": 1,
    }
    return {"k": "step", "step": number, **seconds, **counted, "spans": []}


def summarise(experiment: Experiment, records: list) -> dict:
    """The summary of records as :meth:`Run.records` gives them."""
    summary = Summary("run", **facts_of(experiment))
    summary.add(records)
    return summary.result()


FAST = [step(n, 1.0 + n, loss=8.0 - n, staleness=1, lead=max(0, n - 1)) for n in range(5)]
SLOW = [step(0, 2.5, loss=10.0, staleness=2), step(1, 6.0, loss=4.0, staleness=3), step(2, 7.0, loss=2.0)]


@pytest.fixture
def folder(tmp_path):
    def write(experiment, *ranks):
        (tmp_path / "experiment.json").write_text(experiment.to_json())
        for number, records in enumerate(ranks):
            header = {"k": "rank", "rank": number, "role": "worker", "clock": "wall"}
            lines = [header, *records, {"k": "end", "steps": 0}]
            (tmp_path / f"rank-{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return Run(tmp_path)

    return write


@pytest.fixture
def run(folder):
    served = {
        "k": "event",
        "t": 8.0,
        "name": "served",
        "version": 8,
        "pushes": 8,
        "bytes": 5000,
        "messages": 8,
    }
    asp = {"scheme": "ps", "consistency": "ssp", "staleness": 3}
    return folder(Experiment(workers=2, steps=4, batch=20, sync=asp), FAST, SLOW, [served])


def test_a_global_step_is_any_n_worker_steps_in_the_order_they_ended(run):
    curve = run.curve
    assert list(curve["step"]) == [0, 1, 2, 3]
    assert list(curve["seconds"]) == [2.0, 3.0, 5.0, 7.0]
    assert list(curve["loss"]) == [7.5, 8.0, 4.5, 3.0]
    assert list(curve["samples"]) == [20, 40, 60, 80] and list(curve["bytes"]) == [200, 400, 600, 800]


def test_the_summary_agrees_with_the_curve_whatever_the_order_of_records(run):
    for records in (run.records(), run.records()[::-1]):
        summary = summarise(run.experiment, records)
        assert summary["steps"] == 4 and summary["final_loss"] == run.curve["loss"].iloc[-1] == 3.0
        assert summary["staleness"] == {"mean": 1.25, "p99": 3, "max": 3}
        assert summary["lead"] == {"max": 3, "bound": 3}
        assert summary["bytes_sent"] == 800 + 5000, "what a server sent counts too"
    assert run.status == "done", "two workers and a server came to their end"


@pytest.mark.parametrize(
    "sync, bound",
    [
        ("ring", 0),
        ("ps", 0),
        ("gossip", None),
        ("mapreduce", 0),
        ("hogwild", None),
        ({"scheme": "ps", "consistency": "asp"}, None),
        ({"scheme": "ps", "consistency": "ssp", "staleness": 5}, 5),
        ({"scheme": "gossip", "exchange": "pairwise"}, None),
    ],
    ids=str,
)
def test_the_bound_on_lead_follows_from_the_scheme(sync, bound):
    summary = summarise(Experiment(workers=2, sync=sync), [])
    knows = "gossip" not in str(sync)  # there nobody hears of all others
    assert summary["lead"] == {"max": 0 if knows else None, "bound": bound}


def test_a_step_that_sampled_nothing_keeps_the_last_loss(folder):
    nothing = {"loss": None, "samples": 0}
    ranks = [
        [step(0, 1.0, loss=4.0), {**step(1, 2.0, 0), **nothing}, {**step(2, 3.0, 0), **nothing}],
        [step(0, 1.0, loss=2.0), step(1, 2.0, loss=1.0), {**step(2, 3.0, 0), **nothing}],
    ]
    run = folder(Experiment(workers=2, steps=5, sync={"scheme": "mapreduce", "fraction": 0.1}), *ranks)
    assert list(run.curve["loss"]) == [3.0, 1.0, 1.0] and list(run.curve["samples"]) == [20, 30, 30]
    assert run.summary["steps"] == 3 and run.summary["final_loss"] == 1.0, "it may end before all its steps"


def test_a_table_of_consensus_is_exported(folder, tmp_path):
    ranks = [
        [{**step(n, n + 1.0, 1.0), "sketch": [(-1.0) ** rank * 0.5**n]} for n in range(3)]
        for rank in range(2)
    ]
    run = folder(Experiment(workers=2, steps=3, sync="gossip"), *ranks)
    assert list(run.consensus["distance"]) == [1.0, 0.5, 0.25]
    assert "consensus" in {path.stem for path in run.to_csv(tmp_path / "csv")}


def test_what_a_scheme_chose_by_itself_is_kept_and_said(folder):
    chosen = {"k": "event", "t": 0.0, "name": "chosen", "allreduce": ["tree", "halving_doubling", "tree"]}
    found = folder(Experiment(workers=1), [chosen, *FAST]).summary["chosen"]
    assert found == {"allreduce": chosen["allreduce"]}
    assert in_words(found) == {"all-reduce": "tree for 2 buckets, halving-doubling for 1 bucket"}
    assert in_words({"factors": 2}) == {"factors": "for 2 layers"} and in_words({}) == {}
    assert "chosen" not in folder(Experiment(workers=1), FAST).summary
