"""Groups of workers below leaf servers, and fetches rarer than pushes: MXNet's levels, SINGA's groups, Downpour."""

from __future__ import annotations

import numpy as np
import pytest
from simulations import trained

from dlpar import Experiment, Run, launch
from dlpar.config.schema import BadExperiment
from dlpar.jobs.rank import simulate

SMALL = dict(model={"name": "mlp", "width": 16, "depth": 1}, batch=64, evaluate_every=10_000)
JITTER = {"kind": "gamma", "delay_ms": 10.0, "delay_cv": 0.3}


def ps(**fields) -> dict:
    return {"scheme": "ps", **fields}


def served(run) -> dict:
    """What the first server counted."""
    return next(r for _, r in run.records() if r["k"] == "event" and r["name"] == "served")


@pytest.mark.parametrize("servers", [1, 3])
def test_groups_that_average_after_every_update_train_as_one_process(servers, tmp_path):
    fields = dict(steps=20, dtype="float64", **SMALL)
    alone = trained(tmp_path / "one", workers=1, **fields)
    groups = trained(
        tmp_path / "groups", workers=6, sync=ps(groups=3, group_period=1, servers=servers), **fields
    )
    assert groups.curve["loss"].to_numpy() == pytest.approx(alone.curve["loss"].to_numpy(), rel=1e-9)


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_groups_with_models_of_their_own_meet_once_a_period_and_learn(consistency, tmp_path):
    sync = ps(groups=2, group_period=5, consistency=consistency)
    run = trained(tmp_path / "run", workers=4, steps=60, lr=0.2, sync=sync, delays=JITTER, **SMALL)
    assert len(run.steps) == 4 * 60
    assert served(run)["pushes"] == 2 * 60 // 5
    assert run.summary["accuracy"] > 0.8
    # Between two meetings the groups' models differ, so that other losses come than from one model.
    one = trained(tmp_path / "one", workers=4, steps=60, lr=0.2, sync=ps(), **SMALL)
    assert np.abs(one.curve["loss"].to_numpy() - run.curve["loss"].to_numpy())[1:].max() > 1e-4


@pytest.mark.parametrize("top", ["bsp", "asp"])
def test_pushes_of_a_free_group_go_up_alone_and_are_as_old_as_their_clients_weights(top, tmp_path):
    workers, steps, groups = 8, 40, 2
    sync = ps(groups=groups, group_consistency="asp", consistency=top)
    run = trained(tmp_path / "run", workers=workers, steps=steps, lr=0.2, sync=sync, delays=JITTER, **SMALL)
    counted = served(run)
    assert counted["pushes"] == len(run.steps) == workers * steps
    assert counted["version"] == workers * steps // (groups if top == "bsp" else 1)
    # An update is one push, or one of each group: every other worker pushes about once while one computes.
    between = workers - 1 if top == "asp" else workers // groups - 1
    assert run.summary["staleness"]["mean"] == pytest.approx(between, rel=0.05)
    assert run.summary["accuracy"] > 0.8


def test_a_free_group_is_not_held_up_by_its_slow_worker(tmp_path):
    slow = {"kind": "constant", "delay_ms": 10.0, "straggler": {1: 4.0}}
    seconds = []
    for level in ("bsp", "asp"):
        sync = ps(groups=2, group_consistency=level, consistency="asp")
        run = trained(tmp_path / level, workers=4, steps=40, sync=sync, delays=slow, **SMALL)
        seconds.append(run.curve["seconds"].iloc[-1])
    assert seconds[1] < 0.85 * seconds[0]  # by rates 0.77


@pytest.mark.parametrize(("push", "fetch", "servers"), [(1, 1, 1), (1, 5, 2), (2, 6, 1), (3, 3, 1)])
def test_downpour_pushes_and_fetches_at_their_own_periods(push, fetch, servers, tmp_path):
    workers, steps = 4, 60
    sync = ps(consistency="asp", push_every=push, fetch_every=fetch, servers=servers)
    run = trained(tmp_path / "run", workers=workers, steps=steps, lr=0.1, sync=sync, delays=JITTER, **SMALL)
    assert len(run.steps) == workers * steps and served(run)["pushes"] == workers * steps // push
    sent = run.steps["messages"].sum()
    # A push and a question are a message to each server.
    assert sent == workers * servers * (steps // push + steps // fetch)
    assert run.summary["accuracy"] > 0.8


@pytest.mark.slow
def test_groups_and_fetches_run_on_real_processes():
    for sync in (
        ps(groups=2, group_consistency="asp", consistency="asp"),
        ps(groups=2, group_period=5, servers=2),
        ps(consistency="asp", fetch_every=5, servers=2),
    ):
        run = launch(Experiment(workers=4, steps=40, lr=0.1, sync=sync, **SMALL)).wait(60)
        losses = run.curve["loss"]
        assert len(run.steps) == 160 and losses.tail(5).mean() < 0.7 * losses.head(5).mean()


REFUSED = [
    ({"group_consistency": "asp"}, "sync.groups"),
    ({"group_period": 5}, "sync.groups"),
    ({"group_period": 7, "groups": 2}, "sync.group_period: got 7, allowed with 40 steps is a divisor of 40"),
    ({"group_period": 5, "groups": 2, "consistency": "ssp"}, "sync.consistency"),
    ({"group_period": 5, "groups": 2, "group_consistency": "asp"}, "sync.group_consistency"),
    ({"fetch_every": 5}, "sync.consistency: got 'bsp'"),
    ({"fetch_every": 5, "push_every": 2, "consistency": "asp"}, "a fetch drops unpushed updates"),
    ({"fetch_every": 5, "consistency": "asp", "groups": 2}, "sync.groups"),
]


@pytest.mark.parametrize(("fields", "sentence"), REFUSED)
def test_combinations_without_a_meaning_are_refused_in_a_sentence(fields, sentence):
    with pytest.raises(BadExperiment, match="^[^\n]+$") as error:
        Experiment(workers=4, steps=40, sync=ps(**fields))
    assert sentence in str(error.value)


@pytest.mark.parametrize(("workers", "groups", "consistency"), [(4, 1, "asp"), (4, 1, "bsp"), (8, 2, "asp")])
def test_free_groups_whose_workers_pull_do_every_step_they_were_granted(
    workers, groups, consistency, tmp_path
):
    """A worker that pulled after another's push had been told the end was told it, too, one step early."""
    free = {"scheme": "ps", "groups": groups, "group_consistency": "asp", "consistency": consistency}
    fields = dict(workers=workers, batch=32, steps=6, evaluate_every=1000, sync={**free, "pull": "separate"})
    sizes = {"world": "simulated", "messages": "sizes", "stand_in_for": "resnet50"}
    experiment = Experiment(**fields, cluster=sizes)
    (tmp_path / "experiment.json").write_text(experiment.to_json())
    assert simulate(tmp_path, experiment) == 0
    run = Run(tmp_path)
    assert run.summary["steps"] == 6 and len(run.steps) == 6 * workers


def test_free_groups_that_push_in_buckets_are_refused():
    """A leaf waits for the answer to a bucket: two leaves that wait for different buckets would wait for ever."""
    with pytest.raises(
        BadExperiment, match="^sync.overlap: got True, allowed with group_consistency asp is False"
    ):
        Experiment(workers=4, sync={"scheme": "ps", "groups": 2, "group_consistency": "asp", "overlap": True})
