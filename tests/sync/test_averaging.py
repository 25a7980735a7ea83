"""Averaging models instead of gradients: local SGD, elastic averaging and block momentum, around any scheme."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from trained_ranks import Trained
from trained_ranks import trained as trained_on

import dlpar
from dlpar import Experiment
from dlpar.data import load
from dlpar.data.sampler import Sampler
from dlpar.jobs.rank import simulate
from dlpar.jobs.snapshot import Attempt, State, begin, newest, shard, snapshots_in
from dlpar.models import build, loss
from dlpar.replica import Replica
from dlpar.sync.averaging import outer
from dlpar.sync.optim import Optimizer

pytestmark = pytest.mark.slow

SMALL = dict(
    model={"name": "mlp", "width": 32}, batch=61, steps=40, evaluate_every=1000, dtype="float64", workers=3
)
"""61 samples on three workers: shares of 21, 20 and 20."""

SIMULATED = {"world": "simulated"}


def trained(**fields) -> Trained:
    return trained_on(**{**SMALL, **fields})


@cache
def by_ring() -> Trained:
    """Averages gradients."""
    return trained(sync="ring")


class Twin:
    """N replicas in one process; `meet` is called after every block with their weights, and moves them."""

    def __init__(self, e: Experiment) -> None:
        self.e, self.dataset = e, load(e.data, e.seed, torch.float64, e.model.name)
        self.sampler = Sampler(e, self.dataset.train_y, len(self.dataset.train_x))
        self.replicas = [Replica(build(e, self.dataset)) for _ in range(e.workers)]
        self.rules = [Optimizer(e.optimizer, r.weights, e.lr, e.momentum) for r in self.replicas]
        self.start = self.replicas[0].weights.clone()

    def losses(self, meet) -> np.ndarray:
        seen, criterion = [], loss(self.dataset.task)
        for step in range(self.e.steps):
            row = []
            for worker, (replica, rule) in enumerate(zip(self.replicas, self.rules)):
                x, y = self.dataset.batch(self.sampler.indices(step, worker))
                replica.gradient.zero_()
                value = criterion(replica.model(x), y)
                expected = getattr(self.e.sync, "fraction", 1.0) * self.e.global_batch / self.e.workers
                (value * len(y) / expected).backward()
                rule.step(replica.gradient)
                row.append(value.item())
            seen.append(row)
            if (step + 1) % self.e.averaging.period == 0:
                meet([r.weights for r in self.replicas])
        return np.array(seen)


def local(twin: Twin):
    def meet(weights):
        mean = torch.stack(weights).mean(0)
        for w in weights:
            w.copy_(mean)

    return meet


def elastic(twin: Twin):
    """x_i <- x_i - α (x_i - centre), centre <- (1 - β) centre + β mean(x_i), α = β / N (NIPS 2015, eq. 5 and 6)."""
    centre, beta = twin.start.clone(), twin.e.averaging.elasticity

    def meet(weights):
        mean = torch.stack(weights).mean(0)
        for w in weights:
            w -= beta / len(weights) * (w - centre)
        centre.mul_(1 - beta).add_(mean, alpha=beta)

    return meet


def block_momentum(twin: Twin):
    """Δ <- η Δ + (mean(x_i) - W), W <- W + Δ, everybody goes on from W (ICASSP 2016, block learning rate 1)."""
    centre, move, eta = twin.start.clone(), torch.zeros_like(twin.start), twin.e.averaging.block_momentum
    eta = 1 - 1 / twin.e.workers if eta is None else eta

    def meet(weights):
        move.mul_(eta).add_(torch.stack(weights).mean(0) - centre)
        centre.add_(move)
        for w in weights:
            w.copy_(centre)

    return meet


CASES = [
    ("ring", "local", local, {}),
    ("mapreduce", "local", local, {"optimizer": "momentum", "lr": 0.02}),
    ("ring", "elastic", elastic, {}),
    ("mapreduce", "elastic", elastic, {"averaging": {"elasticity": 0.4}}),
    ("ring", "block_momentum", block_momentum, {}),
    ("mapreduce", "local", local, {"sync": {"scheme": "mapreduce", "fraction": 0.5}}),
    ("mapreduce", "block_momentum", block_momentum, {"averaging": {"block_momentum": 0.3}}),
    ("ps", "local", local, {}),
    ("gossip", "local", local, {"sync": {"scheme": "gossip", "topology": "complete"}}),
    ("ps", "elastic", elastic, {"sync": {"scheme": "ps", "servers": 2}}),
    ("ps", "block_momentum", block_momentum, {}),
]


@pytest.mark.parametrize(
    "scheme, method, meet, fields", CASES, ids=[f"{case[0]} {case[1]}" for case in CASES]
)
def test_every_worker_does_what_replicas_in_one_process_do(scheme, method, meet, fields):
    averaging = {"method": method, "period": 5, **fields.get("averaging", {})}
    given = {**SMALL, "sync": scheme, **fields, "averaging": averaging}
    ranks = trained_on(**given).facts
    found = np.array([[own[step]["loss"] for own in ranks] for step in range(SMALL["steps"])])
    twin = Twin(Experiment(**given))
    assert found == pytest.approx(twin.losses(meet(twin)), rel=1e-9)


def test_real_processes_do_the_same():
    e = Experiment(**SMALL, averaging={"method": "elastic", "period": 5})
    found = dlpar.launch(e).wait(60).steps.pivot(index="step", columns="rank", values="loss").to_numpy()
    twin = Twin(e)
    assert found == pytest.approx(twin.losses(elastic(twin)), rel=1e-9)


@pytest.mark.parametrize(
    "sync", ["ring", "mapreduce", "ps", {"scheme": "mapreduce", "reduce": "mean"}], ids=str
)
def test_averaging_models_after_every_step_is_averaging_gradients(sync):
    every_step = trained(sync=sync, averaging={"method": "local", "period": 1}).losses
    assert every_step == pytest.approx(by_ring().losses, rel=1e-9)


def test_several_local_steps_or_momentum_of_ones_own_are_something_else():
    plain = by_ring().losses
    seldom = trained(sync="ring", averaging={"method": "local", "period": 4}).losses
    assert seldom[0] == pytest.approx(plain[0], rel=1e-12)
    assert not np.allclose(seldom[4:], plain[4:], rtol=1e-4)


def test_models_travel_once_a_period():
    plain, seldom = by_ring(), trained(sync="ring", averaging={"method": "local", "period": 8})
    runs = [[[facts["bytes"] for facts in rank] for rank in run.facts] for run in (plain, seldom)]
    sent, sends = np.sum(runs, axis=1)
    assert sends.sum() == sent.sum() / 8
    assert np.flatnonzero(sends).tolist() == [7, 15, 23, 31, 39]


def test_replicas_drift_apart_between_two_meetings_and_agree_after_each():
    run = trained(averaging={"method": "local", "period": 8})
    sketches = np.array([[facts["sketch"] for facts in rank] for rank in run.facts])
    distance = sketches.var(axis=0).sum(axis=1) ** 0.5
    for block in range(0, 40, 8):
        assert 1e-3 < distance[block] < distance[block + 6]
        assert distance[block + 7] < 1e-12


def last_weights(comm, e: Experiment) -> list[float] | None:
    from dlpar.comm import Recorder
    from dlpar.train import serve, train

    if comm.rank >= e.workers:
        return serve(comm, e, Recorder())
    return [weight.sum().item() for weight in train(comm, e, Recorder()).parameters()]


@pytest.mark.parametrize("method", ["local", "elastic"])
def test_workers_that_never_wait_still_end_with_the_same_weights(method):
    averaging, delays = {"method": method, "period": 4}, {"straggler": {1: 4.0}}
    e = Experiment(
        **{**SMALL, "sync": {"scheme": "ps", "consistency": "asp"}, "averaging": averaging, "delays": delays}
    )
    first, *others = dlpar.spmd(last_weights, e, workers=e.ranks, timeout=60)[: e.workers]
    assert others == [first, first]


def test_the_scheme_inside_runs_one_step_a_block():
    e = Experiment(**{**SMALL, "averaging": {"method": "elastic", "period": 4, "elasticity": 0.5}})
    assert (outer(e).steps, outer(e).lr, outer(e).optimizer, outer(e).averaging.method) == (
        10,
        0.5,
        "sgd",
        "none",
    )
    momentum = outer(e.replace(averaging={"method": "block_momentum"}))
    assert momentum.optimizer == "momentum" and momentum.momentum == pytest.approx(2 / 3)
    plain = e.replace(averaging={"method": "none"})
    assert outer(plain) is plain


def test_one_worker_alone_averages_with_itself():
    for method in ("local", "elastic", "block_momentum"):
        run = trained(workers=1, averaging={"method": method, "period": 4})
        assert len(run.losses) == 40 and run.losses[-1] < run.losses[0]


@pytest.mark.parametrize(
    "method, world", [("local", "real"), ("elastic", "simulated"), ("block_momentum", "simulated")]
)
def test_digits_are_learned_to_94_percent(method, world):
    averaging = {"method": method, "period": 4}
    e = Experiment(
        workers=4,
        steps=320,
        batch=64,
        sync="mapreduce",
        averaging=averaging,
        evaluate_every=1000,
        cluster={"world": world, "threads": 1},
    )
    assert dlpar.launch(e).wait(60).summary["accuracy"] >= 0.94


@pytest.mark.parametrize("consistency", ["bsp", "asp", "ssp"])
def test_a_resume_changes_no_weights_by_itself(consistency, tmp_path, capfd):
    """With a learning rate of 0 after the resume, no worker has anything to offer."""
    fields = dict(workers=4, steps=64, batch=32, lr=0.5, snapshot={"every": 16}, deaths={"die": {2: 0.6}})
    free = {"scheme": "ps", "consistency": consistency}
    method, delays = {"method": "local", "period": 4}, {"kind": "exponential", "delay_ms": 20}
    e = Experiment(**{**SMALL, **fields}, sync=free, averaging=method, delays=delays, cluster=SIMULATED)
    (tmp_path / "experiment.json").write_text(e.to_json())
    assert simulate(tmp_path, e) == 1
    step = snapshots_in(tmp_path)[0]
    weights = lambda step: State.read(shard(tmp_path, step, 4)).tensors["bucket 0.weights"]
    before = weights(step).clone()
    begin(tmp_path, newest(tmp_path, e))
    still = e.replace(lr=0.0, deaths={"die": {}})
    assert simulate(tmp_path, still, attempt=Attempt.of(tmp_path)) == 0
    assert 0 < step < 64 and torch.equal(weights(64), before)
