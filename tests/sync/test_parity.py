"""Parallel training changes nothing but the time: the same losses on any number of workers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from trained_ranks import apart, trained

import dlpar
from dlpar import Experiment

pytestmark = pytest.mark.slow

SMALL = {
    "mlp": dict(model={"name": "mlp", "width": 48}, batch=60),
    "cnn": dict(model={"name": "cnn", "width": 64, "depth": 2}, batch=25),
    "transformer": dict(
        model={"name": "transformer", "width": 32, "depth": 2},
        data={"name": "docstrings", "context": 16},
        batch=14,
    ),
}
"""Odd batches on purpose: 3 and 4 workers get shares of different sizes."""


def losses(**fields) -> np.ndarray:
    """Loss of every step of a real run of 100, in float64 unless told otherwise."""
    cluster = {"threads": 1, **fields.pop("cluster", {})}
    experiment = Experiment(steps=100, evaluate_every=1000, cluster=cluster, **{"dtype": "float64", **fields})
    curve = dlpar.launch(experiment).wait(90).curve
    assert list(curve["step"]) == list(range(100))
    return curve["loss"].to_numpy()


def simulated(**fields) -> np.ndarray:
    """The same on simulated ranks: the same sums in the same order, on a fraction of the cores' time."""
    found = trained(steps=100, **fields).losses
    assert len(found) == 100
    return found


@cache
def alone(name: str = "mlp") -> np.ndarray:
    """Losses of one process in float64."""
    return simulated(workers=1, **SMALL[name])


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_float64_losses_are_the_same_on_1_2_3_and_4_workers(name):
    assert alone(name)[-10:].mean() < alone(name)[:10].mean()  # it does learn
    for workers, run in ((1, losses), (2, simulated), (3, losses), (4, simulated)):
        assert apart(alone(name), run(workers=workers, **SMALL[name])) < 1e-9


BULK_SYNCHRONOUS = {
    "ring": {"scheme": "ring"},
    "hierarchical": {"scheme": "ring", "allreduce": "hierarchical"},
    "one server": {"scheme": "ps"},
    "two servers, separate pull": {"scheme": "ps", "servers": 2, "pull": "separate"},
    "two servers below two leaves": {"scheme": "ps", "servers": 2, "groups": 2},
    "two servers beside the backward pass": {
        "scheme": "ps",
        "servers": 2,
        "overlap": True,
        "bucket_mb": 0.01,
    },
    "map-reduce": {"scheme": "mapreduce"},
    "map-reduce with a torrent": {"scheme": "mapreduce", "broadcast": "torrent"},
    "gossip on the complete graph": {"scheme": "gossip", "topology": "complete"},
}
"""Ways to agree that must not change the answer."""

MANY = pytest.mark.parametrize("sync", BULK_SYNCHRONOUS.values(), ids=BULK_SYNCHRONOUS.keys())


@cache
def alone_at_the_defaults() -> np.ndarray:
    """Losses of one process in float32."""
    return losses(workers=1, dtype="float32")


@MANY
def test_every_bulk_synchronous_scheme_gives_the_losses_of_one_process(sync):
    for workers, run in ((2, simulated), (3, losses), (4, simulated), (8, simulated)):
        assert apart(alone(), run(workers=workers, sync=sync, **SMALL["mlp"])) < 1e-9


@MANY
def test_float32_losses_at_the_defaults_stay_within_1e_4(sync):
    for workers in (3, 8):  # uneven shares, and the longest sums; the test above tries 2 and 4, too
        assert apart(alone_at_the_defaults(), simulated(workers=workers, sync=sync, dtype="float32")) < 1e-4


@pytest.mark.parametrize(
    "optimizer, run", [("momentum", simulated), ("adagrad", simulated), ("adam", losses)]
)
def test_optimizers_of_servers_and_of_replicas_give_the_losses_of_one_process(optimizer, run):
    fields = dict(optimizer=optimizer, lr=0.01, **SMALL["mlp"])
    one = simulated(workers=1, **fields)
    assert apart(one, run(workers=3, sync={"scheme": "ps", "servers": 3}, **fields)) < 1e-9
    assert apart(one, run(workers=3, **fields)) < 1e-9


@pytest.mark.parametrize(
    "sync",
    [
        {"allreduce": "library"},
        {"overlap": True, "bucket_mb": 0.01},
        {"overlap": True, "bucket_mb": 0.01, "allreduce": "library"},
        {"bucket_mb": 0.005},
    ],
    ids=["library", "overlap", "overlapped library", "small buckets"],
)
def test_the_way_the_sum_is_made_does_not_matter(sync):
    assert apart(alone(), losses(workers=3, sync=sync, **SMALL["mlp"])) < 1e-9


def test_gloo_carries_the_same_training():
    assert apart(alone(), losses(workers=2, cluster={"carrier": "gloo"}, **SMALL["mlp"])) < 1e-9


def test_weak_scaling_of_n_times_b_is_strong_scaling_of_their_product():
    strong = simulated(workers=3, model={"width": 32}, batch=48)
    weak = simulated(workers=3, model={"width": 32}, batch=16, scaling="weak")
    assert apart(strong, weak) < 1e-12


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_batchnorm_is_the_exception_unless_it_is_synchronised(name):
    fields = dict(SMALL[name], lr=0.05)
    model = fields.pop("model")
    alone = simulated(workers=1, model={**model, "norm": "batch"}, **fields)
    local = simulated(workers=3, model={**model, "norm": "batch"}, **fields)
    synchronised = losses(workers=3, model={**model, "norm": "sync_batch"}, **fields)
    assert apart(alone, synchronised) < 1e-9
    assert apart(alone, local) > 1e-3


def test_uneven_and_sorted_shards_train_with_every_sample_counted_once():
    for shards in ("uneven", "by_label"):
        run = trained(workers=3, shards=shards, steps=20, batch=60)
        by_rank = [facts[0]["samples"] for facts in run.facts]
        assert sum(by_rank) == 60
        assert run.losses[-1] < run.losses[0]
        if shards == "uneven":
            assert by_rank == [10, 20, 30]
