"""Hogwild: several processes write to the same weights; nothing is lost but what races lose."""

from __future__ import annotations

import pandas as pd
import pytest

import dlpar
from dlpar import Experiment
from dlpar.config.experiment import BadExperiment

pytestmark = pytest.mark.slow


def ran(workers: int, sparse: bool = False, **fields):
    """A real run that came to its end, and a row for every step it recorded."""
    sync = {"scheme": "hogwild", "sparse": sparse}
    run = dlpar.launch(Experiment(workers=workers, sync=sync, **{"evaluate_every": 10_000, **fields})).wait(
        90
    )
    return run, pd.DataFrame([{"source": s, **r} for s, r in run.records() if r["k"] == "step"])


@pytest.mark.timed
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_four_workers_learn_digits_and_their_updates_are_stale(sparse):
    run, steps = ran(4, sparse, steps=150, batch=128)
    assert run.summary["accuracy"] >= 0.94
    assert len(steps) == 4 * 150  # exactly, whoever did them
    assert steps["staleness"].mean() > 0.1
    assert (steps["bytes"] == 0).all()


def test_a_worker_alone_has_no_conflicts_and_loses_nothing():
    run, steps = ran(1, steps=40, batch=32, dtype="float64")
    assert (steps[["staleness", "conflicts", "lead"]] == 0).all(axis=None)
    assert steps["lost"].dropna().tolist() == [pytest.approx(0, abs=1e-10)]
    same = dlpar.launch(
        Experiment(workers=1, steps=40, batch=32, dtype="float64", evaluate_every=10_000)
    ).wait(60)
    assert same.curve["loss"].tolist() == run.curve["loss"].tolist()


def test_sparse_logistic_regression_learns_docstrings():
    run, steps = ran(4, True, data="docstrings", model="logistic", batch=16, lr=1.0, steps=300)
    losses = steps.sort_values("t")["loss"]  # as they happened, whoever did them
    assert losses.tail(600).mean() < 0.7 * losses.head(60).mean()
    assert run.summary["accuracy"] > 0.75
    assert 0 <= steps["lost"].dropna().iloc[0] < 0.05


def test_sparse_updates_write_few_weights_and_conflict_on_few_of_them():
    fields = dict(data="docstrings", model="logistic", batch=4, lr=0.5, steps=300)
    sparse, dense = (ran(4, kind, **fields)[1] for kind in (True, False))
    assert sparse["written"].mean() < 0.05 * 10_010 and (dense["written"] == 10_010).all()
    # A stale dense update conflicts on nearly all it writes, a sparse one on the words documents share.
    stale = [steps[steps["staleness"] > 0] for steps in (sparse, dense)]
    share = [steps["conflicts"].sum() / steps["written"].sum() for steps in stale]
    assert share[1] > 0.85 and share[0] < 0.75 * share[1]


def test_every_workers_last_step_says_what_was_lost():
    _, steps = ran(3, steps=20, batch=30, model={"width": 32})
    last = steps.sort_values("step").groupby("source").tail(1)
    assert steps["lost"].count() == len(last) == last["lost"].count()
    assert last["lost"].nunique() == 1  # measured when all had finished


def test_an_optimizer_with_a_state_is_refused():
    with pytest.raises(BadExperiment, match="optimizer: got 'adam', allowed with sync hogwild is sgd"):
        Experiment(sync="hogwild", optimizer="adam")


def test_after_a_resume_workers_know_each_others_updates_from_the_first_step():
    """A worker that began before the others had told their counts took these counts for updates of the moment."""
    fields = dict(
        batch=48, steps=400, evaluate_every=10_000, snapshot={"every": 50}, deaths={"die": {1: 0.6}}
    )
    job = dlpar.launch(Experiment(workers=3, sync="hogwild", **fields))
    with pytest.raises(dlpar.JobFailed, match="^rank 1 was killed by SIGKILL on request"):
        job.wait(90)
    run = dlpar.resume(job.run).wait(90)
    again, resumed = dict[str, list](), set()
    for source, record in run.records():
        if record["k"] == "rank" and record.get("attempt"):
            resumed.add(source)
        elif record["k"] == "step" and source in resumed:
            again.setdefault(source, []).append((record["step"], record["lead"]))
    slowest = min(steps[0][0] for steps in again.values())
    assert len(again) == 3 and slowest > 0
    assert all(lead <= step - slowest for steps in again.values() for step, lead in steps)
