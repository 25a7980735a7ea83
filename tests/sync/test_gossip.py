"""Gossip: replicas agree as fast as their graph says, train, and on the complete graph are one process."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import trained_ranks
from simulations import trained
from trained_ranks import OneProcess, flat, images_a_second

import dlpar
from dlpar import Experiment, Run
from dlpar.graphs import mixing_matrix, neighbours, pushing_matrix, receivers, senders
from dlpar.sync.sketch import BUCKETS, Sketch
from dlpar.theory import contraction

pytestmark = pytest.mark.slow


def gossip(**fields) -> dict:
    """Fields of an experiment; `sync` are those of gossip."""
    return {"evaluate_every": 10_000, **fields, "sync": {"scheme": "gossip", **fields.get("sync", {})}}


def ran(**fields) -> Run:
    """A real run that came to its end."""
    return dlpar.launch(Experiment(**gossip(**fields))).wait(90)


def simulated(folder: Path, **fields) -> Run:
    """The same in the simulated world: what is in lockstep finds the same there, in less time."""
    return trained(folder / "run", **gossip(**fields))


def mixing(workers: int, **fields) -> dict:
    """A run that learns nothing: each worker starts with weights of its own, and only averages."""
    sync = {"start": "random", **fields.pop("sync", {})}
    still = dict(lr=0, batch=workers, data="diabetes", model="linear", dtype="float64")
    return dict(workers=workers, sync=sync) | still | fields


def sketches(run, which: int) -> np.ndarray:
    """What each worker's first (0) or last (-1) step says of its weights, (workers, 32)."""
    steps = [(source, r["step"], r["sketch"]) for source, r in run.records() if r["k"] == "step"]
    ranks = sorted({source for source, *_ in steps})
    return np.array(
        [sorted((t, sketch) for source, t, sketch in steps if source == rank)[which][1] for rank in ranks]
    )


ORDERS = pytest.mark.parametrize("order", ["adapt_then_combine", "combine_then_adapt"])


@ORDERS
@pytest.mark.parametrize("topology, workers", [("ring", 8), ("grid", 9), ("exp2", 8)])
def test_replicas_approach_each_other_by_the_second_eigenvalue_a_step(topology, workers, order, tmp_path):
    run = simulated(tmp_path, **mixing(workers, steps=40, sync={"topology": topology, "order": order}))
    distance = run.consensus["distance"].to_numpy()
    above = np.flatnonzero(distance > 1e-13 * distance[0])[-1]  # below lies the rounding of float64
    first = above // 3  # by then the slowest mode is left
    measured = (distance[above] / distance[first]) ** (1 / (above - first))
    assert measured == pytest.approx(contraction(run.experiment), rel=0.05)


def test_on_the_complete_graph_one_step_is_enough():
    distance = ran(**mixing(8, steps=2, sync={"topology": "complete"})).consensus["distance"]
    assert distance[0] > 0.1 and distance[1] < 1e-6 * distance[0]


def test_push_sum_conserves_mass_in_float32_too(tmp_path):
    run = simulated(
        tmp_path, **mixing(5, steps=60, dtype="float32", sync={"exchange": "push_sum", "topology": "star"})
    )
    masses = np.zeros(60)
    for _, record in run.records():
        if record["k"] == "step":
            masses[record["step"]] += record["mass"]
    assert np.abs(masses - 5).max() < 1e-6


def test_push_sum_conserves_mass_and_finds_the_mean(tmp_path):
    # A star is the hard case: what reaches its centre weighs more than what reaches the others.
    run = simulated(tmp_path, **mixing(4, steps=60, sync={"exchange": "push_sum", "topology": "star"}))
    steps = [(r["step"], r["mass"], np.array(r["sketch"])) for _, r in run.records() if r["k"] == "step"]
    masses = np.array([sum(mass for s, mass, _ in steps if s == step) for step in range(60)])
    sums = np.array([sum(mass * sketch for s, mass, sketch in steps if s == step) for step in range(60)])
    assert np.abs(masses - 4).max() < 1e-6
    assert np.abs(sums - sums[0]).max() < 1e-6 * np.abs(sums[0]).max()
    # So the weights alone would not be the mean.
    assert max(mass for step, mass, _ in steps if step == 59) > 1.5
    for step, _, sketch in steps:
        if step == 59:
            np.testing.assert_allclose(sketch, sums[0] / 4, atol=1e-9)


def test_push_sum_on_a_directed_ring_contracts_as_predicted(tmp_path):
    run = simulated(tmp_path, **mixing(5, steps=40, sync={"exchange": "push_sum"}))
    distance = run.consensus["distance"].to_numpy()
    assert (distance[39] / distance[9]) ** (1 / 30) == pytest.approx(contraction(run.experiment), rel=0.05)


def test_simulated_ranks_make_the_graph_of_push_sum_once(monkeypatch, tmp_path):
    made = Counter()

    def counted(make):
        def call(*given):
            made.update([make.__name__])
            return make(*given)

        monkeypatch.setattr(f"dlpar.sync.gossip.{make.__name__}", call)

    counted(receivers)
    counted(senders)
    simulated(tmp_path, **mixing(6, steps=2, sync={"exchange": "push_sum", "topology": "exp2"}))
    assert made == {"receivers": 1, "senders": 1}  # each rank's own took two minutes for 1,024 ranks


def test_two_islands_run_and_never_agree_and_a_warning_says_so():
    run = ran(**mixing(4, steps=30, sync={"topology": "edges", "edges": "0-1,2-3"}))
    distance = run.consensus["distance"]
    assert distance.iloc[-1] == pytest.approx(distance[1], rel=1e-9) and distance[1] > 0.1 * distance[0]
    (*_, (done, last)) = run.from_the_mean()
    assert done.step == 29
    assert last[0] == pytest.approx(last[1]) and min(last) > 0.1 * distance[0]
    assert "so its replicas cannot agree" in run.log


@pytest.mark.parametrize("world", ["simulated", "real"])
def test_with_one_peer_a_step_log2_n_steps_average_exactly(world):
    fields = mixing(8, steps=7, cluster={"world": world}, sync={"scheme": "gossip", "exchange": "one_peer"})
    run = dlpar.launch(dlpar.Experiment(**fields)).wait(60)
    distance = run.consensus["distance"].to_numpy()  # at the weights from which a step began
    assert distance[2] > 0.1 * distance[0] and (distance[3:] < 1e-12 * distance[0]).all()
    assert run.steps["messages"].max() == 1


def test_with_one_peer_replicas_agree_as_predicted_where_n_is_no_power_of_two(tmp_path):
    run = simulated(tmp_path, **mixing(6, steps=40, sync={"exchange": "one_peer"}))
    distance = run.consensus["distance"].to_numpy()
    np.testing.assert_allclose(
        (distance[33] / distance[3]) ** (1 / 30), contraction(run.experiment), rtol=0.02
    )


def test_random_peers_contract_on_average_as_predicted(tmp_path):
    run = simulated(tmp_path, **mixing(8, steps=30, sync={"exchange": "random", "peers": 2}))
    distance = run.consensus["distance"].to_numpy()
    assert (distance[25] / distance[0]) ** (1 / 25) == pytest.approx(contraction(run.experiment), rel=0.2)


@pytest.mark.parametrize("topology, workers", [("ring", 3), ("star", 8)])
def test_pairs_come_together_as_predicted_where_each_active_worker_has_one_partner(
    topology, workers, tmp_path
):
    sync, delays = {"exchange": "pairwise", "topology": topology}, {"kind": "constant", "delay_ms": 50}
    run = simulated(tmp_path, **mixing(workers, steps=24, sync=sync, delays=delays))
    distance, told = run.consensus["distance"], contraction(run.experiment)
    assert (distance[14] / distance[4]) ** (1 / 10) == pytest.approx(told, rel=0.02)


def test_pairwise_workers_do_all_steps_and_come_together(tmp_path):
    # Delays leave time for an average a step, as gradients of a bigger model would.
    delays = {"kind": "constant", "delay_ms": 8}
    run = ran(**mixing(4, steps=60, sync={"exchange": "pairwise"}, delays=delays))
    assert len(run.steps) == 60 * 4
    assert not run.steps.duplicated(["rank", "step"]).any()
    found = run.consensus
    assert run.steps["staleness"].max() > 0
    # They meet at the mean of where they began, which the first sketches of another kind of gossip show.
    began, ended = sketches(simulated(tmp_path, **mixing(4, steps=1)), 0), sketches(run, -1)
    apart = np.linalg.norm(began - began.mean(axis=0), axis=1).mean()
    assert found["distance"].iloc[-1] < 0.01 * apart
    assert np.linalg.norm(ended.mean(axis=0) - began.mean(axis=0)) < 0.02 * apart


def test_a_slow_worker_does_not_hold_pairwise_gossip_up():
    run = ran(
        workers=4,
        steps=60,
        batch=64,
        model={"width": 32},
        sync={"exchange": "pairwise"},
        delays={"kind": "constant", "delay_ms": 5, "straggler": "1=8"},
    )
    done = run.steps.groupby("rank").size()
    assert done.sum() == 240 and done[1] < 0.6 * done[[0, 2, 3]].min()
    assert run.steps["lead"].max() > 10


@pytest.mark.parametrize("exchange", ["neighbours", "random", "one_peer", "pairwise", "push_sum"])
def test_every_kind_of_gossip_learns_digits(exchange, tmp_path):
    fields = dict(workers=4, steps=200, batch=64, lr=0.1, sync={"exchange": exchange})
    if exchange == "pairwise":  # simulated: a real worker that gets no core holds up the others' averages
        fields["delays"] = {"kind": "gamma", "delay_ms": 5, "delay_cv": 0.5}
    is_simulated = exchange in ("neighbours", "pairwise")
    run = simulated(tmp_path, **fields) if is_simulated else ran(**fields)
    assert len(run.steps) == 4 * 200
    assert run.summary["accuracy"] >= 0.94
    if exchange != "pairwise":
        assert (run.steps[["staleness", "lead"]] == 0).all(axis=None)
    # The replicas' own weights spread, and gossip keeps them a fraction of their length apart.
    assert 0 < run.consensus["distance"].iloc[-1] < 3


@pytest.mark.parametrize("exchange", ["neighbours", "pairwise"])
def test_models_of_local_steps_can_be_gossiped(exchange, tmp_path):
    averaging = {"method": "local", "period": 4}
    fields = dict(workers=4, steps=160, batch=128, averaging=averaging, sync={"exchange": exchange})
    run = simulated(tmp_path, **fields)
    assert len(run.steps) == 4 * 160 and run.summary["accuracy"] >= 0.94


@pytest.mark.parametrize("exchange", ["neighbours", "random", "one_peer", "pairwise", "push_sum"])
def test_a_worker_alone_has_nobody_to_gossip_with(exchange, tmp_path):
    run = simulated(tmp_path, workers=1, steps=5, batch=16, model={"width": 8}, sync={"exchange": exchange})
    assert (run.steps["messages"] == 0).all() and (run.steps["staleness"] == 0).all()
    assert run.consensus["distance"].tolist() == [0] * 5 and contraction(run.experiment) == 0


def in_one_process(experiment: Experiment) -> torch.Tensor:
    """Weights of all workers after gossip with neighbours as its definition has it, (workers, parameters)."""
    alone, sync, workers = OneProcess(experiment), experiment.sync, experiment.workers
    matrix = torch.from_numpy(mixing_matrix(neighbours(sync, workers, experiment.seed)))
    x = alone.weights.repeat(workers, 1)
    for step in range(experiment.steps):
        gradients = [alone.gradient(x[worker], step, worker)[1] for worker in range(workers)]
        moved = experiment.lr * torch.stack(gradients)
        x = matrix @ (x - moved) if sync.order == "adapt_then_combine" else matrix @ x - moved
    return x


@ORDERS
@pytest.mark.parametrize(
    "topology, workers", [("ring", 8), ("star", 4), ("exp2", 8), ("grid", 6), ("random", 6), ("ring", 2)]
)
def test_either_order_is_what_its_definition_gives_in_one_process(order, topology, workers):
    sync = {"scheme": "gossip", "topology": topology, "order": order}
    fields = dict(workers=workers, batch=10 * workers, sync=sync, model={"name": "mlp", "width": 24}, lr=0.2)
    found = trained_ranks.trained(steps=40, **fields).models
    alone = in_one_process(Experiment(steps=40, dtype="float64", **fields))
    for own, expected in zip(found, alone):
        assert (flat(own) - expected).abs().max() < 1e-9 * expected.abs().max()


@pytest.mark.parametrize("topology, workers", [("star", 4), ("ring", 3)])
def test_push_sum_trains_as_its_definition_in_one_process(topology, workers):
    """x <- P (x - lr g(z)), w <- P w, z = x / w (Nedić and Olshevsky 2016): on a star most weights are not 1."""
    sync = {"scheme": "gossip", "exchange": "push_sum", "topology": topology}
    fields = dict(workers=workers, batch=10 * workers, sync=sync, model={"name": "mlp", "width": 24}, lr=0.2)
    experiment = Experiment(steps=30, dtype="float64", **fields)
    alone = OneProcess(experiment)
    shares = torch.from_numpy(pushing_matrix(receivers(experiment.sync, workers, 0)))
    x, w = alone.weights.repeat(workers, 1), torch.ones(workers, 1, dtype=torch.float64)
    for step in range(30):
        z = x / w
        gradients = torch.stack([alone.gradient(z[worker], step, worker)[1] for worker in range(workers)])
        x, w = shares @ (x - experiment.lr * gradients), shares @ w
    for own, expected in zip(trained_ranks.trained(steps=30, **fields).models, x / w):
        assert (flat(own) - expected).abs().max() < 1e-9 * expected.abs().max()


@pytest.mark.parametrize("exchange", ["neighbours", "random", "one_peer"])
def test_real_ranks_that_combine_first_have_the_losses_of_simulated_ones(exchange, tmp_path):
    sync = {"exchange": exchange, "order": "combine_then_adapt", "peers": 2}
    fields = dict(workers=4, steps=30, batch=40, dtype="float64", model={"width": 24}, sync=sync)
    real, other = ran(**fields).curve["loss"], simulated(tmp_path, **fields).curve["loss"]
    assert np.abs(real / other - 1).max() < 1e-9


def test_an_average_of_old_weights_hides_behind_the_gradient(tmp_path):
    """VGG-16 on a ring of 8 nodes, one GPU each, 10 GbE."""
    (tmp_path / "one.json").write_text(json.dumps({"extends": "k80-10gbe", "devices": 1, "nodes": 8}))
    cluster = {"platform": str(tmp_path / "one.json"), "stand_in_for": "vgg16"}
    first, then = (
        images_a_second(64, workers=8, sync={"scheme": "gossip", "order": order}, cluster=cluster)
        for order in ("combine_then_adapt", "adapt_then_combine")
    )
    alone = images_a_second(64, workers=1, cluster=cluster)
    assert first > 0.95 * 8 * alone and then < 0.7 * 8 * alone


def test_each_worker_sends_its_weights_once_to_every_neighbour():
    run = ran(workers=4, steps=3, batch=16, model={"width": 8}, sync={"topology": "star"})
    parameters = (64 * 8 + 8) + (8 * 8 + 8) + (8 * 10 + 10)
    assert run.steps.groupby("rank")["messages"].first().tolist() == [3, 1, 1, 1]
    assert run.steps.groupby("rank")["bytes"].first().tolist() == [4 * parameters * n for n in (3, 1, 1, 1)]


def test_a_sketch_is_linear_and_estimates_squared_lengths_without_bias():
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1003, generator=draw, dtype=torch.float64) for _ in range(2))
    one = Sketch(a, seed=0)
    np.testing.assert_allclose(np.add(one.of(a), one.of(b)), one.of(a + b), atol=1e-12)
    squares = [np.square(Sketch(a, seed).of(a)).sum() for seed in range(400)]
    assert len(one.of(a)) == BUCKETS
    assert np.mean(squares) == pytest.approx(float(a @ a), rel=0.05)
    assert np.std(squares) / np.mean(squares) == pytest.approx((2 / BUCKETS) ** 0.5, rel=0.25)
