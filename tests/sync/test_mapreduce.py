"""Map-reduce as Spark MLlib does it: the same losses on any number of workers, sampling, penalties, convergence."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trained_ranks import Trained, apart
from trained_ranks import trained as trained_on

import dlpar
from dlpar import Experiment
from dlpar.data import load
from dlpar.data.sampler import Sampler, hashed
from dlpar.models import build, loss
from dlpar.replica import Replica

pytestmark = pytest.mark.slow

SMALL = dict(model={"name": "mlp", "width": 48}, batch=60, steps=100, evaluate_every=1000, dtype="float64")
"""Three and eight workers get shares of 60 samples that are not all of one size on eight."""

LOGISTIC = {**SMALL, "model": "logistic", "steps": 40, "lr": 0.5}


def by_mapreduce(**fields) -> dict:
    """Fields of an experiment; `sync` are those of map-reduce."""
    return {**SMALL, **fields, "sync": {"scheme": "mapreduce", **fields.get("sync", {})}}


def ran(**fields) -> dlpar.Run:
    """A real run."""
    return dlpar.launch(Experiment(**by_mapreduce(**fields))).wait(60)


def trained(**fields) -> Trained:
    """What simulated ranks come to."""
    return trained_on(**by_mapreduce(**fields))


def at_the_driver(run: Trained, fact: str) -> list:
    return [facts[fact] for facts in run.facts[0]]


def sampled(run: Trained) -> np.ndarray:
    """Samples of every step on all workers."""
    return np.sum([[facts["samples"] for facts in rank] for rank in run.facts], axis=0)


@pytest.fixture(scope="module")
def alone() -> np.ndarray:
    """Losses of one process that sends nothing."""
    return trained_on(workers=1, **SMALL).losses


@pytest.mark.parametrize(
    "sync, workers",
    [({"reduce": "collect"}, 4), ({"depth": 1}, 4), ({"depth": 3}, 8), ({"reduce": "mean"}, 4)],
    ids=["collect", "star", "deep", "mean of equal shares"],
)
def test_the_way_to_the_driver_does_not_matter(sync, workers, alone):
    assert apart(alone, trained(workers=workers, sync=sync).losses) < 1e-9


def test_real_ranks_find_the_same_way_to_the_driver(alone):
    assert apart(alone, ran(workers=8, sync={"depth": 3}).curve["loss"].to_numpy()) < 1e-9


def test_the_mean_of_the_means_is_not_the_mean_where_shards_are_uneven():
    fields = dict(workers=4, shards="uneven", steps=60)
    by_sum, by_mean, collected = (
        trained(sync={"reduce": reduce}, **fields).losses for reduce in ("sum", "mean", "collect")
    )
    assert apart(by_sum, collected) < 1e-9
    assert apart(by_sum, by_mean) > 1e-2


def test_the_driver_knows_loss_and_count_of_the_whole_batch():
    run = trained(workers=3, steps=20)
    assert at_the_driver(run, "count") == [60] * 20
    assert at_the_driver(run, "driver_loss") == pytest.approx(run.losses.tolist(), rel=1e-12)


def test_a_sampled_run_is_the_same_on_one_and_four_workers():
    sync = {"fraction": 0.3}
    one, four = trained(workers=1, sync=sync), trained(workers=4, sync=sync)
    assert apart(one.losses, four.losses) < 1e-9
    counts = at_the_driver(four, "count")
    assert counts == at_the_driver(one, "count") == sampled(four).tolist()
    assert np.mean(counts) == pytest.approx(0.3 * 60, rel=0.1) and len(set(counts)) > 5


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 9), st.integers(0, 30), st.floats(0.01, 0.99), st.integers(0, 2**31 - 1))
def test_the_sampled_set_is_the_same_on_any_number_of_workers(workers, step, fraction, seed):
    def drawn(n: int) -> list[int]:
        sync = {"scheme": "mapreduce", "fraction": fraction}
        sampler = Sampler(Experiment(workers=n, batch=50, seed=seed, sync=sync), None, 200)
        return torch.cat([sampler.indices(step, worker) for worker in range(n)]).tolist()

    assert drawn(workers) == drawn(1)


def test_seeds_do_not_repeat_each_others_samples_a_step_later():
    def drawn(seed: int, step: int) -> set[int]:
        """Return the samples that one worker draws from all 200."""
        mine = Experiment(workers=1, batch=200, seed=seed, sync={"scheme": "mapreduce", "fraction": 0.5})
        return set(Sampler(mine, None, 200).indices(step, 0).tolist())

    sets = [drawn(seed, step) for seed in range(5) for step in range(5)]
    assert all(60 < len(one ^ other) < 140 for one, other in combinations(sets, 2))  # of 100, by chance


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31 - 1), st.sampled_from([0.1, 0.3, 0.7]))
def test_hashes_keep_a_fraction_and_nearby_keys_share_nothing(key, fraction):
    a, b = (hashed(key + i, np.arange(20_000)) < fraction for i in (0, 1))
    # Five standard deviations of 20,000 independent draws.
    assert abs(a.mean() - fraction) < 5 * np.sqrt(fraction * (1 - fraction) / 20_000)
    both = fraction**2
    assert abs((a & b).mean() - both) < 5 * np.sqrt(both * (1 - both) / 20_000)


def test_an_empty_sample_leaves_the_weights_and_is_said_once():
    run = ran(workers=2, sync={"fraction": 0.002}, steps=60, **{k: LOGISTIC[k] for k in ("model", "lr")})
    steps = [r for source, r in run.records() if source == "rank-0" and r["k"] == "step"]
    counts = [r["count"] for r in steps]
    assert counts.count(0) > 30 and sum(counts) > 0
    assert [r["driver_loss"] is None for r in steps] == [count == 0 for count in counts]
    assert run.log.count("no worker drew a sample") == 1
    assert run.status == "done" and np.isfinite(run.summary["final_loss"])


def test_a_partition_without_a_sample_adds_nothing():
    one, eight = (trained(workers=workers, sync={"fraction": 0.05}) for workers in (1, 8))
    assert any(facts["samples"] == 0 for rank in eight.facts for facts in rank)
    any_at_all = sampled(eight) > 0
    assert apart(one.losses[any_at_all], eight.losses[any_at_all]) < 1e-9


def test_the_tolerance_ends_all_ranks_at_the_same_step():
    sync = {"tolerance": 0.004}
    (alone,) = (len(rank) for rank in trained(workers=1, sync=sync).facts)
    run = ran(workers=3, sync=sync)
    assert run.status == "done"
    assert [r["steps"] for source, r in run.records() if r["k"] == "end" and source.startswith("rank")] == [
        alone
    ] * 3
    assert 1 < alone < 100


def penalised(kind: str, strength: float, experiment: Experiment) -> tuple[list[float], torch.Tensor]:
    """One process: losses with their penalty, and the weights at the end (Spark's updaters, learning rate constant)."""
    dataset = load(experiment.data, experiment.seed, torch.float64, experiment.model.name)
    replica, sampler = (
        Replica(build(experiment, dataset)),
        Sampler(experiment, dataset.train_y, len(dataset.train_x)),
    )
    seen, w, lr = [], replica.weights, experiment.lr
    for step in range(experiment.steps):
        x, y = dataset.batch(sampler.indices(step, 0))
        replica.gradient.zero_()
        value = loss(dataset.task)(replica.model(x), y)
        value.backward()
        seen.append(value.item() + strength * float(w.abs().sum() if kind == "l1" else (w**2).sum() / 2))
        if kind == "l2":
            w.copy_(w * (1 - lr * strength) - lr * replica.gradient)
        else:
            moved = w - lr * replica.gradient
            w.copy_(moved.sign() * (moved.abs() - lr * strength).clamp(min=0))
    return seen, w


@pytest.mark.parametrize("kind", ["l1", "l2"])
def test_a_regulariser_does_what_one_process_with_the_penalty_does(kind):
    run = trained(workers=3, sync={"regularizer": kind, "regularization": 0.02}, **LOGISTIC)
    seen, weights = penalised(kind, 0.02, Experiment(workers=1, **LOGISTIC))
    assert at_the_driver(run, "driver_loss") == pytest.approx(seen, rel=1e-9)
    assert (kind == "l1") == bool((weights == 0).sum() > 50)  # only l1 makes weights exactly zero
    plain = trained(workers=3, **LOGISTIC)
    assert apart(run.losses[1:], plain.losses[1:]) > 1e-3


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_the_driver_keeps_the_state_of_any_optimizer(optimizer):
    fields = dict(optimizer=optimizer, lr=0.01, steps=40)
    alone = trained_on(workers=1, **{**SMALL, **fields}).losses
    assert apart(alone, trained(workers=3, **fields).losses) < 1e-9


@pytest.mark.parametrize("codec", ["fp16", "topk"])
def test_compressed_gradients_train_with_fewer_bytes(codec):
    plain, small = trained(workers=4), trained(workers=4, compression={"codec": codec, "keep": 0.1})
    assert at_the_driver(small, "count") == [60] * 100  # loss and count are never rounded
    sent = [sum(facts["bytes"] for rank in run.facts for facts in rank) for run in (plain, small)]
    assert sent[1] < 0.8 * sent[0]
    assert small.losses[-10:].mean() < 0.5 * small.losses[0]


def test_digits_are_learned_to_94_percent():
    run = ran(workers=4, model="mlp", batch=256, dtype="float32", steps=200, sync={"fraction": 0.5})
    assert run.summary["accuracy"] >= 0.94
