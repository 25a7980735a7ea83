"""Simulated training: the mathematics of one process, in virtual time, the same to the last bit each time."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from simulations import cluster, trained

import dlpar
from dlpar.theory import Link
from dlpar.worlds.platforms import Device, Timing

SMALL = dict(dtype="float64", model={"name": "mlp", "width": 24}, batch=60, steps=25)
"""Of a batch of 60, 7 workers get shares of different sizes."""

SCHEMES = {
    "ring": {"scheme": "ring"},
    "tree": {"scheme": "ring", "allreduce": "tree"},
    "library": {"scheme": "ring", "allreduce": "library"},
    "hierarchical": {"scheme": "ring", "allreduce": "hierarchical"},
    "small buckets, overlapped": {"scheme": "ring", "overlap": True, "bucket_mb": 0.005},
    "two servers": {"scheme": "ps", "servers": 2},
    "two servers, separate pull": {"scheme": "ps", "servers": 2, "pull": "separate"},
    "two servers below two leaves": {"scheme": "ps", "servers": 2, "groups": 2},
    "map-reduce": {"scheme": "mapreduce"},
    "gossip on the complete graph": {"scheme": "gossip", "topology": "complete"},
}
"""Ways to agree that must not change the answer."""

UNSTEADY = cluster(
    64,
    Link(1e-4, 1e8),
    device=Device(name="slow", flops=1e9),
    timing=Timing(kind="gamma", cv=0.5),
    stragglers={1: 3.0},
)


def losses(run: dlpar.Run) -> np.ndarray:
    return run.curve["loss"].to_numpy()


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Largest relative difference."""
    return float(np.max(np.abs(a - b) / np.abs(a)))


@cache
def alone() -> np.ndarray:
    with TemporaryDirectory() as folder:
        return losses(trained(Path(folder) / "run", workers=1, **SMALL))


@pytest.mark.parametrize("workers", [2, 7])
@pytest.mark.parametrize("sync", SCHEMES.values(), ids=SCHEMES)
def test_every_bulk_synchronous_scheme_gives_the_losses_of_one_process(tmp_path, sync, workers):
    run = trained(tmp_path / "run", UNSTEADY, workers=workers, sync=sync, **SMALL)
    assert len(losses(run)) == SMALL["steps"] and apart(alone(), losses(run)) < 1e-9
    assert alone()[-5:].mean() < alone()[:5].mean()  # it does learn


REPEATED = {
    "overlapped ring": dict(sync={"scheme": "ring", "overlap": True, "bucket_mb": 0.005}),
    "asp": dict(sync={"scheme": "ps", "servers": 2, "consistency": "asp", "staleness_aware": True}),
    "ssp": dict(sync={"scheme": "ps", "consistency": "ssp", "staleness": 1}),
    "random peers": dict(sync={"scheme": "gossip", "exchange": "random"}),
    "pairwise": dict(sync={"scheme": "gossip", "exchange": "pairwise"}),
    "push-sum": dict(sync={"scheme": "gossip", "exchange": "push_sum"}),
    "hogwild": dict(sync={"scheme": "hogwild"}),
    "compressed": dict(compression={"codec": "topk", "keep": 0.1}),
    "local steps": dict(averaging={"method": "local", "period": 4}),
}


def written(run: dlpar.Run) -> list:
    """What the ranks of a run wrote down, but for who they were on which host and when the launcher called."""
    records = [(source, r) for source, r in run.records() if r["k"] != "rank"]
    return sorted(
        [(source, {k: v for k, v in r.items() if k != "launch_s"}) for source, r in records], key=repr
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, messages",
    [(name, how) for name in REPEATED for how in ("values", "sizes") if (name, how) != ("hogwild", "sizes")],
)
def test_equal_experiments_give_equal_runs_to_the_last_bit_and_another_seed_another(tmp_path, name, messages):
    first, again, other = (
        written(
            trained(
                tmp_path / str(number),
                UNSTEADY,
                workers=6,
                seed=seed,
                cluster={"messages": messages},
                **{**SMALL, "steps": 12, "batch": 66},
                **REPEATED[name],
            )
        )
        for number, seed in enumerate((1, 1, 2))
    )
    assert first == again and len(first) >= 6 * 12
    assert first != other


PS = {"scheme": "ps"}
CHARGED = {
    **{name: dict(sync=sync) for name, sync in SCHEMES.items()},
    "softsync": dict(sync={**PS, "consistency": "softsync", "softsync": 2}),
    "push every other step": dict(sync={**PS, "push_every": 2}),
    "elastic": dict(sync={**PS, "consistency": "asp"}, averaging={"method": "elastic", "period": 2}),
    "block momentum": dict(averaging={"method": "block_momentum", "period": 2}),
    "collect": dict(sync={"scheme": "mapreduce", "reduce": "collect"}),
    "star": dict(sync={"scheme": "gossip", "topology": "star"}),
    "one bit": dict(compression={"codec": "onebit"}),
    "topk to servers": dict(compression={"codec": "topk"}, sync={**PS, "servers": 2}),
    "fp16 to a driver": dict(compression={"codec": "fp16"}, sync={"scheme": "mapreduce"}),
    "convolutions": dict(model={"name": "cnn", "width": 16, "depth": 1, "norm": "batch"}),
    "delays": dict(delays={"kind": "exponential", "delay_ms": 5.0, "straggler": {1: 3.0}}),
    "a pipeline": dict(split={"kind": "pipeline", "stages": 3, "microbatches": 2}),
    "a pipeline, to a server": dict(
        split={"kind": "pipeline", "stages": 3, "microbatches": 2}, sync={**PS, "servers": 3}
    ),
    "servers beside workers": dict(sync={**PS, "servers": 2}, cluster={"placement": "colocated"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHARGED)
def test_a_run_sends_the_same_bytes_in_the_same_time_with_values_and_with_sizes(tmp_path, name):
    slow = cluster(64, Link(1e-4, 1e6), device=Device(name="slow", flops=1e9), eager=1000)
    told = []
    for messages in ("values", "sizes"):
        fields = {**SMALL, "workers": 6, "steps": 4, **CHARGED[name]}
        where = {**fields.pop("cluster", {}), "messages": messages}
        steps = trained(tmp_path / messages, slow, cluster=where, **fields).steps
        told.append((len(steps), steps["t"].tolist(), steps["bytes"].fillna(-1).tolist()))
    assert told[0] == told[1] and told[0][0] == 24


@pytest.mark.parametrize(
    "sync", [{"scheme": "ring", "bucket_mb": 4000}, {**PS, "servers": 2}, {"scheme": "gossip"}]
)
def test_a_small_model_in_place_of_a_large_one_takes_the_time_of_the_large_one(tmp_path, sync):
    """Its messages are charged as ResNet-50's, and so wait for their receivers as those would, short as they are."""
    seconds = [
        trained(
            tmp_path / messages,
            workers=8,
            steps=6,
            scaling="weak",
            batch=16,
            sync=sync,
            model={"width": 16},
            cluster={"messages": messages, "stand_in_for": "resnet50", "platform": "p100-10gbe"},
        )
        .steps["t"]
        .max()
        for messages in ("values", "sizes")
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.04)


@pytest.mark.slow
def test_asynchronous_training_of_many_workers_learns(tmp_path):
    run = trained(
        tmp_path / "run",
        UNSTEADY,
        workers=32,
        steps=20,
        scaling="weak",
        batch=16,
        lr=0.5,
        model={"name": "logistic"},
        sync={"scheme": "ps", "consistency": "asp"},
    )
    loss = losses(run)
    assert loss[-3:].mean() < 0.5 * loss[0]
    assert run.evals["accuracy"].iloc[-1] > 0.7
    assert 25 < run.steps["staleness"].mean() < 33


def test_a_straggler_holds_up_all_in_lockstep_and_none_that_run_free(tmp_path):
    fields = dict(workers=8, steps=20, scaling="weak", batch=100, model={"name": "logistic"})
    steady = cluster(64, Link(1e-6, 1e12), device=Device(name="slow", flops=1e8))
    slowed = steady.model_copy(update={"stragglers": {1: 5.0}})
    seconds = {
        (how, where): trained(
            tmp_path / f"{how} {where}",
            platform,
            sync={"scheme": "ps", "consistency": how},
            cluster={"messages": "sizes"},
            **fields,
        )
        .steps["t"]
        .max()
        for how in ("bsp", "asp")
        for where, platform in (("steady", steady), ("slowed", slowed))
    }
    assert 4.5 < seconds["bsp", "slowed"] / seconds["bsp", "steady"] < 5  # servers compute a little, too
    assert seconds["asp", "slowed"] < 1.5 * seconds["asp", "steady"]


def test_overlap_hides_communication_behind_the_backward_pass(tmp_path):
    """ResNet-50 in sizes: with buckets on their way while others are computed a step is shorter, never below either."""
    times = {}
    for overlap in (False, True):
        steps = trained(
            tmp_path / str(overlap),
            workers=8,
            steps=4,
            scaling="weak",
            batch=16,
            sync={"scheme": "ring", "overlap": overlap, "bucket_mb": 10},
            cluster={"platform": "p100-25gbe", "messages": "sizes", "stand_in_for": "resnet50"},
        ).steps
        times[overlap] = steps.groupby("step")["t"].max().diff().iloc[-1]
        computed = steps["compute"].iloc[-1]
    communicated = times[False] - computed
    assert max(computed, communicated) < times[True] < times[False] - 0.5 * min(computed, communicated)


def test_several_trainings_in_one_job_have_data_batches_and_a_graph_of_their_own():
    first = dlpar.Experiment(workers=4, steps=3, cluster="simulated")
    wheel = first.replace(sync={"scheme": "gossip", "topology": "ring"})
    several = [
        first,
        first.replace(seed=1),
        first.replace(data="diabetes", model="linear"),
        wheel,
        wheel.replace(sync={"topology": "complete"}),
        wheel.replace(sync={"exchange": "push_sum"}),
        wheel.replace(sync={"exchange": "push_sum", "topology": "complete"}),
    ]

    def trainings(comm, experiments) -> list[list[tuple]]:
        from dlpar.comm import Recorder
        from dlpar.train import train

        class Kept(Recorder):
            def step(self, step: int, **facts) -> None:
                steps.append((float(facts["loss"]), facts["messages"], facts["bytes"]))

        found = []
        for experiment in experiments:
            steps = []
            train(comm, experiment, Kept())
            found.append(steps)
        return found

    alone = [dlpar.spmd(trainings, [each], world="simulated")[0][0] for each in several]
    assert dlpar.spmd(trainings, several, world="simulated")[0] == alone
