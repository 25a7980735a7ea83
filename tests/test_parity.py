"""Parallel training changes nothing but the time: the same losses on any number of workers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import dlpar
from dlpar import Experiment
from trained_ranks import trained

pytestmark = pytest.mark.slow

SMALL = {
    "mlp": dict(model={"name": "mlp", "width": 48}, batch=60),
    "cnn": dict(model={"name": "cnn", "width": 64, "depth": 2}, batch=25),
    "transformer": dict(
        model={"name": "transformer", "width": 32, "depth": 2}, data={"name": "docstrings", "context": 16}, batch=14
    ),
}
"""Odd batches on purpose: 3 and 4 workers get shares of different sizes."""


def losses(**fields) -> np.ndarray:
    """Loss of every step of a real run of 100."""
    curve = dlpar.launch(Experiment(steps=100, evaluate_every=1000, **fields)).wait(90).curve
    assert list(curve["step"]) == list(range(100))
    return curve["loss"].to_numpy()


@cache
def alone(name: str = "mlp", **fields) -> np.ndarray:
    """Losses of one process in float64."""
    return losses(workers=1, dtype="float64", **fields, **SMALL[name])


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Largest relative difference."""
    return float(np.max(np.abs(a - b) / np.abs(a)))


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_float64_losses_are_the_same_on_1_2_3_and_4_workers(name):
    assert alone(name)[-10:].mean() < alone(name)[:10].mean()  # it does learn
    for workers in (2, 3, 4):
        assert apart(alone(name), losses(workers=workers, dtype="float64", **SMALL[name])) < 1e-9


BULK_SYNCHRONOUS = {
    "ring": {"scheme": "ring"},
    "hierarchical": {"scheme": "ring", "allreduce": "hierarchical"},
    "one server": {"scheme": "ps"},
    "two servers, separate pull": {"scheme": "ps", "servers": 2, "pull": "separate"},
    "two servers below two leaves": {"scheme": "ps", "servers": 2, "groups": 2},
    "map-reduce": {"scheme": "mapreduce"},
    "gossip on the complete graph": {"scheme": "gossip", "topology": "complete"},
}
"""Ways to agree that must not change the answer."""

MANY = pytest.mark.parametrize("sync", BULK_SYNCHRONOUS.values(), ids=BULK_SYNCHRONOUS.keys())


@cache
def alone_at_the_defaults() -> np.ndarray:
    return losses(workers=1, dtype="float32")


def on_2_3_4_and_8_workers(**fields) -> list[np.ndarray]:
    """Losses of every step of four real runs of 100, one after the other on the same processes."""
    runs = [Experiment(workers=n, steps=100, evaluate_every=0, **fields) for n in (2, 3, 4, 8)]

    def all_of_them(comm) -> list[list[tuple[float, int]]]:
        return [steps_of(comm.split(int(comm.rank < run.ranks)), run) if comm.rank < run.ranks
                else comm.split(0) and [] for run in runs]  # fmt: skip

    ranks = dlpar.spmd(all_of_them, workers=runs[-1].ranks)
    return [_of_all(run, [own[number] for own in ranks]) for number, run in enumerate(runs)]


def steps_of(comm, run: Experiment) -> list[tuple[float, int]]:
    """Loss and samples of each step of this rank; none of a server's."""
    from dlpar.record import Unrecorded
    from dlpar.sync import serve
    from dlpar.train import train

    class Kept(Unrecorded):
        def step(self, step: int, loss: float, samples: int, **facts) -> None:
            found.append((loss, samples))

    found: list[tuple[float, int]] = []
    (train if comm.rank < run.workers else serve)(comm, run, Kept(comm))
    return found


def _of_all(run: Experiment, ranks: list[list[tuple[float, int]]]) -> np.ndarray:
    """Losses of the global batch."""
    workers = np.array([own for own in ranks if own])
    assert workers.shape == (run.workers, 100, 2)
    return (workers[..., 0] * workers[..., 1]).sum(axis=0) / workers[..., 1].sum(axis=0)


@MANY
def test_every_bulk_synchronous_scheme_gives_the_losses_of_one_process(sync):
    for found in on_2_3_4_and_8_workers(sync=sync, dtype="float64", **SMALL["mlp"]):
        assert apart(alone(), found) < 1e-9


@MANY
def test_float32_losses_at_the_defaults_stay_within_1e_4(sync):
    for workers in (2, 3, 4, 8):  # simulated: the same sums in the same order, on a fifth of the cores' time
        found = trained(steps=100, workers=workers, sync=sync, dtype="float32", evaluate_every=0).losses
        assert apart(alone_at_the_defaults(), found) < 1e-4


@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "adam"])
def test_optimizers_of_the_servers_are_those_of_the_replicas(optimizer):
    fields = dict(optimizer=optimizer, lr=0.01)
    of_servers = losses(workers=3, sync={"scheme": "ps", "servers": 3}, dtype="float64", **fields, **SMALL["mlp"])
    assert apart(alone(**fields), of_servers) < 1e-9


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
    assert apart(alone(), losses(workers=3, dtype="float64", sync=sync, **SMALL["mlp"])) < 1e-9


@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "adam"])
def test_every_optimizer_gives_the_same_losses(optimizer):
    fields = dict(optimizer=optimizer, lr=0.01)
    assert apart(alone(**fields), losses(workers=3, dtype="float64", **fields, **SMALL["mlp"])) < 1e-9


def test_gloo_carries_the_same_training():
    assert apart(alone(), losses(workers=2, dtype="float64", cluster={"carrier": "gloo"}, **SMALL["mlp"])) < 1e-9


def test_weak_scaling_of_n_times_b_is_strong_scaling_of_their_product():
    strong = losses(workers=3, dtype="float64", model={"width": 32}, batch=48)
    weak = losses(workers=3, dtype="float64", model={"width": 32}, batch=16, scaling="weak")
    assert apart(strong, weak) < 1e-12


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_batchnorm_is_the_exception_unless_it_is_synchronised(name):
    fields = dict(SMALL[name], dtype="float64", lr=0.05)
    model = fields.pop("model")
    alone = losses(workers=1, model={**model, "norm": "batch"}, **fields)
    local = losses(workers=3, model={**model, "norm": "batch"}, **fields)
    synchronised = losses(workers=3, model={**model, "norm": "sync_batch"}, **fields)
    assert apart(alone, synchronised) < 1e-9
    assert apart(alone, local) > 1e-3


def test_uneven_and_sorted_shards_train_with_every_sample_counted_once():
    for shards in ("uneven", "by_label"):
        run = dlpar.launch(Experiment(workers=3, shards=shards, steps=20, batch=60)).wait(60)
        by_rank = run.steps.groupby("rank")["samples"].first()
        assert by_rank.sum() == 60
        assert run.curve["loss"].iloc[-1] < run.curve["loss"].iloc[0]
        if shards == "uneven":
            assert by_rank.tolist() == [10, 20, 30]
