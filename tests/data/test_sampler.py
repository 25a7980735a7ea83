from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlpar.config.experiment import Experiment
from dlpar.config.generator import generator
from dlpar.config.schema import BadExperiment
from dlpar.data.sampler import Sampler, proportional

trials = settings(deadline=None, max_examples=60)
sizes = st.integers(16, 300)
workers = st.integers(1, 16)
batches = st.integers(16, 700)
steps = st.integers(0, 50)
seeds = st.integers(0, 2**31 - 1)
shardings = st.sampled_from(["iid", "by_label", "uneven"])


def sampler(size: int, labels: torch.Tensor | None = None, **fields: object) -> Sampler:
    return Sampler(Experiment(**fields), labels, size)


def global_batch(dealer: Sampler, step: int, workers: int) -> torch.Tensor:
    return torch.cat([dealer.indices(step, worker) for worker in range(workers)])


@trials
@given(sizes, batches, workers, steps, seeds)
def test_any_number_of_workers_sees_the_same_batch_in_the_same_order(size, batch, n, step, seed):
    alone = sampler(size, batch=batch, workers=1, seed=seed)
    many = sampler(size, batch=batch, workers=n, seed=seed)
    assert torch.equal(global_batch(many, step, n), alone.indices(step, 0))


@trials
@given(sizes, batches, workers, seeds)
def test_an_epoch_holds_every_sample_exactly_once(size, batch, n, seed):
    dealer = sampler(size, batch=batch, workers=n, seed=seed)
    epochs = 3 if batch < size else 1 + 3 * batch // size
    needed = -(-epochs * size // batch)
    stream = torch.cat([global_batch(dealer, step, n) for step in range(needed)])
    for epoch in range(epochs):
        order = stream[epoch * size : (epoch + 1) * size]
        assert torch.equal(order.sort().values, torch.arange(size))


def test_epochs_come_in_different_orders():
    dealer = sampler(100, batch=100, workers=1)
    assert not torch.equal(dealer.indices(0, 0), dealer.indices(1, 0))


@trials
@given(sizes, st.integers(2, 16), seeds)
def test_slices_of_one_epoch_are_disjoint(size, n, seed):
    dealer = sampler(size, batch=16, workers=n, seed=seed)
    assert global_batch(dealer, 0, n).unique().numel() == 16


@trials
@given(workers, steps, shardings, st.sampled_from(["strong", "weak"]))
def test_count_says_how_many_indices_there_are_and_counts_fill_the_batch(n, step, shards, scaling):
    experiment = Experiment(batch=50, workers=n, shards=shards, scaling=scaling)
    dealer = Sampler(experiment, torch.arange(200) % 10, 200)
    taken = [len(dealer.indices(step, worker)) for worker in range(n)]
    assert taken == [dealer.count(worker) for worker in range(n)]
    assert sum(taken) == experiment.global_batch
    assert min(taken) >= 1


@pytest.mark.slow
@trials
@given(workers, st.lists(steps, min_size=1, max_size=8), shardings, seeds)
def test_a_step_depends_on_seed_and_step_alone(n, asked, shards, seed):
    labels = torch.arange(150) % 10
    wandering = sampler(150, labels, batch=64, workers=n, shards=shards, seed=seed)
    for step in asked:
        fresh = sampler(150, labels, batch=64, workers=n, shards=shards, seed=seed)
        assert torch.equal(global_batch(wandering, step, n), global_batch(fresh, step, n))


def test_another_seed_gives_other_batches():
    a, b = (sampler(100, batch=50, seed=seed).indices(0, 0) for seed in (0, 1))
    assert not torch.equal(a, b)


def seen(dealer: Sampler, worker: int, steps: int) -> set[int]:
    return set(torch.cat([dealer.indices(step, worker) for step in range(steps)]).tolist())


@trials
@given(sizes, workers, st.sampled_from(["by_label", "uneven"]), seeds)
def test_shards_are_disjoint_and_cover_everything(size, n, shards, seed):
    labels = torch.from_numpy(generator(seed, "labels").integers(0, 10, size))
    dealer = sampler(size, labels, batch=64, workers=n, shards=shards, seed=seed)
    # A worker's shard of s samples is read through after s / count steps.
    shares = [seen(dealer, worker, -(-size // dealer.count(worker))) for worker in range(n)]
    assert sum(map(len, shares)) == size
    assert set.union(*shares) == set(range(size))


@trials
@given(st.integers(2, 10))
def test_by_label_gives_a_worker_few_labels(n):
    labels = torch.arange(500) % 10
    dealer = sampler(500, labels, batch=100, workers=n, shards="by_label")
    held = [labels[list(seen(dealer, worker, 60))] for worker in range(n)]
    assert all(len(own.unique()) <= -(-10 // n) + 1 for own in held)
    assert all(first.max() <= second.min() for first, second in pairwise(held))


def test_uneven_shards_and_slices_grow_with_the_worker():
    dealer = sampler(1000, batch=100, workers=4, shards="uneven")
    assert [dealer.count(worker) for worker in range(4)] == [10, 20, 30, 40]
    assert [len(seen(dealer, worker, 20)) for worker in range(4)] == [100, 200, 300, 400]


@trials
@given(st.integers(1, 40).flatmap(lambda parts: st.tuples(st.integers(parts, 5000), st.just(parts))))
def test_proportional_parts_sum_up_and_keep_their_order(case):
    total, parts = case
    cut = proportional(total, parts)
    assert sum(cut) == total
    assert min(cut) >= 1
    assert cut == sorted(cut)


@trials
@given(st.integers(1, 20), st.integers(0, 5000))
def test_proportional_is_off_by_less_than_one_where_every_share_reaches_one(parts, more):
    whole = parts * (parts + 1) // 2
    total = whole + more
    cut = proportional(total, parts)
    assert all(abs(size - total * k / whole) < 1 for k, size in enumerate(cut, start=1))


def test_a_late_step_costs_no_more_than_an_early_one():
    dealer = sampler(1000, batch=256, workers=4)
    start = time.perf_counter()
    dealer.indices(9_999_999, 3)
    assert time.perf_counter() - start < 0.5


def test_an_epoch_is_shuffled_once(monkeypatch):
    shuffled = []
    monkeypatch.setattr("dlpar.data.sampler.generator", lambda *key: shuffled.append(key) or generator(*key))
    dealer = sampler(1000, batch=100, workers=4)
    for step in range(200):
        for worker in range(4):
            dealer.indices(step, worker)
    assert len(shuffled) == len(set(shuffled)) == 24  # 20 were read, three stretches of 8 drawn


@pytest.mark.parametrize("size", [1, 7, 1000, 3000, 20_000])
def test_the_order_of_an_epoch_follows_from_its_number(size):
    dealer = sampler(size, batch=size, workers=1)
    for epoch in (17, 0, 8, 7):
        expected = generator(0, "epoch", epoch).permutation(size)
        assert dealer.indices(epoch, 0).tolist() == expected.tolist()


def test_streams_differ_by_every_part_of_their_key():
    keys = [(0, "split"), (1, "split"), (0, "epoch"), (0, "epoch", 0), (0, "epoch", 1), (0, "epoch", 1, 0)]
    assert len({int(generator(*key).integers(2**63)) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    ("fields", "labels", "size", "named"),
    [
        ({"workers": 8, "shards": "uneven"}, None, 7, "workers: got 8"),
        ({"workers": 8, "shards": "by_label"}, torch.zeros(7), 7, "workers: got 8"),
        ({"shards": "by_label"}, None, 100, "shards: got 'by_label'"),
        ({"shards": "by_label"}, torch.zeros(99), 100, "shards: got 'by_label'"),
        ({}, None, 0, "at most 0"),
    ],
)
def test_samples_that_cannot_be_dealt_are_refused(fields, labels, size, named):
    with pytest.raises(BadExperiment, match=named):
        sampler(size, labels, **fields)
