"""Lab 01: means of uneven parts, trees against stars, and what waiting for each other costs."""

from __future__ import annotations

from typing import Any

from dlpar.config.experiment import Experiment

CLUSTER = "cpu-10gbe"
"""The platform of labs 01 and 03: a rank a machine, 10 Gb Ethernet between them."""


def mean_of_means() -> list[Experiment]:
    """Lab 01, "the mean of the workers' means is the mean": sum and mean, on equal and on uneven parts.

    Least squares on all 354 training samples in every iteration, so that nothing is
    random: 118 samples each on three workers, or 59, 118 and 177.
    """
    common = Experiment(
        model="linear",
        data="diabetes",
        batch=354,
        steps=200,
        lr=0.2,
        optimizer="momentum",
        dtype="float64",
        workers=3,
        evaluate_every=20,
    )
    return [
        common.replace(shards=shards, sync={"scheme": "mapreduce", "reduce": reduce})
        for shards in ("iid", "uneven")
        for reduce in ("sum", "mean")
    ]


def tree_or_star() -> dict[str, Any]:
    """Lab 01, "a tree always beats a star": both on 8 paced ranks, from 1 kB to 400 kB.

    Arguments of :func:`dlpar.lab.time_collectives`.
    """
    return {
        "names": ("star", "tree"),
        "ranks": 8,
        "sizes": (1_000, 4_000, 20_000, 100_000, 400_000),
        "world": "paced",
        "platform": CLUSTER,
    }


def digits_by_mapreduce() -> list[Experiment]:
    """Lab 01: softmax regression on digits by map-reduce, on 1, 2 and 4 workers."""
    common = Experiment(
        model="logistic",
        batch=512,
        steps=150,
        lr=0.5,
        sync="mapreduce",
        cluster={"threads": 1},
        evaluate_every=75,
    )
    return [common.replace(workers=workers) for workers in (1, 2, 4)]


def unsteady() -> list[Experiment]:
    """Lab 01, the cost of synchronising: four workers whose steps take 10 ms each, or 10 ms on average.

    The delays do not need a core, so that it shows on any machine.
    """
    common = Experiment(model="logistic", steps=40, batch=256, lr=0.5, sync="mapreduce", evaluate_every=1000)
    return [common.replace(delays={"kind": kind, "delay_ms": 10.0}) for kind in ("constant", "exponential")]


def empty_samples() -> Experiment:
    """Lab 01: so small a fraction that most partitions sample nothing in most iterations."""
    return Experiment(
        model="logistic",
        workers=4,
        batch=40,
        steps=150,
        lr=0.1,
        sync={"scheme": "mapreduce", "fraction": 0.03},
    )
