"""Map-reduce iterations per second: logistic regression on digits, 4 partitions of 64 samples; and what a tree costs.

For comparison: Spark, by treeAggregate, does 9.7 such iterations a second on two cores.
"""

from __future__ import annotations

from functools import partial

from compare import in_turns, least, show

import dlpar
from dlpar import Experiment

WARM_UP = 200


def training(workers: int = 4, scheme: str = "mapreduce", **sync) -> Experiment:
    """Logistic regression, 64 samples a worker, everything recorded."""
    return Experiment(
        model="logistic",
        workers=workers,
        batch=64,
        scaling="weak",
        steps=2000,
        evaluate_every=10**7,
        sync={"scheme": scheme, **sync},
        cluster={"threads": 1},
    )


def iterations(experiment: Experiment) -> float:
    """Iterations per second after the warm-up."""
    curve = dlpar.launch(experiment).wait(300).curve
    return (len(curve) - WARM_UP) / (curve["seconds"].iloc[-1] - curve["seconds"].iloc[WARM_UP - 1])


def report() -> None:
    taken = in_turns(
        {
            "mapreduce": partial(iterations, training()),
            "collect": partial(iterations, training(reduce="collect")),
            "ring": partial(iterations, training(scheme="ring")),
            "one worker": partial(iterations, training(workers=1)),
        },
        n=5,
    )
    show("Logistic regression on digits, 4 workers with 64 samples each", taken, "iterations/s")
    least("mapreduce, 4 partitions", taken["mapreduce"], "iterations/s", bar=1000)
