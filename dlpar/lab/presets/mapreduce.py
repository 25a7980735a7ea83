"""Lab 01: means of uneven parts, and trees against stars."""

from __future__ import annotations

from typing import Any

from dlpar.costmodel import Link
from dlpar.experiment import Experiment

FAR = Link(latency=20e-3, bandwidth=10e6)
"""20 ms and 10 MB/s: two cities, not two machines in one rack.  Slow enough to be seen beside what a laptop adds."""


def mean_of_means() -> list[Experiment]:
    """Lab 01, "the mean of the workers' means is the mean": sum and mean, on equal and on uneven parts.

    Least squares on all 354 training samples in every iteration, so that nothing is
    random: 118 samples each on three workers, or 59, 118 and 177.
    """
    common = Experiment(
        model="linear", data="diabetes", batch=354, steps=400, lr=0.05, optimizer="momentum", dtype="float64",
        workers=3, evaluate_every=40,
    )  # fmt: skip
    return [
        common.replace(shards=shards, sync={"scheme": "mapreduce", "reduce": reduce})
        for shards in ("iid", "uneven")
        for reduce in ("sum", "mean")
    ]


def tree_or_star() -> dict[str, Any]:
    """Lab 01, "a tree always beats a star": both on 8 ranks over a far link, from 1 kB to 400 kB.

    Arguments of :func:`dlpar.lab.time_collectives`.
    """
    return {"names": ("star", "tree"), "ranks": 8, "sizes": (1_000, 40_000, 400_000), "link": FAR, "repeats": 2}


def digits_by_mapreduce() -> list[Experiment]:
    """Lab 01: softmax regression on digits by map-reduce, on 1, 2 and 4 workers."""
    common = Experiment(
        model="logistic", batch=512, steps=150, lr=0.5, sync="mapreduce", cluster={"threads": 1}, evaluate_every=75
    )
    return [common.replace(workers=workers) for workers in (1, 2, 4)]


def unsteady() -> list[Experiment]:
    """Lab 01, the cost of synchronising: four workers whose steps take 10 ms each, or 10 ms on average.

    The delays do not need a core, so that it shows on any machine.
    """
    common = Experiment(model="logistic", steps=60, batch=256, lr=0.5, sync="mapreduce", evaluate_every=1000)
    return [common.replace(delays={"kind": kind, "delay_ms": 10.0}) for kind in ("constant", "exponential")]


def empty_samples() -> Experiment:
    """Lab 01: so small a fraction that most partitions sample nothing in most iterations."""
    return Experiment(
        model="logistic", workers=4, batch=40, steps=150, lr=0.1,
        sync={"scheme": "mapreduce", "fraction": 0.03},
    )  # fmt: skip
