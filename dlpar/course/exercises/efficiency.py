"""Checks a formula for the efficiency of a ring, typed in a cell: each number is compared with a simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.course.judge import Verdict, check
from dlpar.lab.sweep import Outcome, all_done
from dlpar.theory.steps.sizes import sizes
from dlpar.worlds.platforms import platform_of, workload

TOLERANCE = 2e-3
"""Largest relative difference from a simulation: chunks of a ring are rounded to whole numbers."""

ALONE = dict(compute=0.25, latency=1e-3, bandwidth=1e8, nbytes=1e8, n=1)
"""A worker by itself: what it gains is known without a simulation."""

CLUSTERS = (
    ("resnet50", "cpu-1gbe", 2), ("resnet50", "cpu-10gbe", 16), ("alexnet", "cpu-10gbe", 5), ("vgg16", "cpu-1gbe", 32),
    (None, "cpu-10gbe", 64),
)  # fmt: skip
"""Workload (None: the default model), platform, workers: long messages, many workers, and short messages."""


def ring_steps() -> list[Experiment]:
    """A step of each of `CLUSTERS`, whose nodes hold one device each."""
    return [
        Experiment(
            workers=n,
            batch=64,
            scaling="weak",
            steps=1,
            sync={"scheme": "ring", "bucket_mb": 4096},
            cluster={"world": "simulated", "messages": "sizes", "platform": name, "stand_in_for": charged},
        )
        for charged, name, n in CLUSTERS
    ]


def check_efficiency(student: Callable[..., Any] | None, hints: Sequence[str] = ()) -> Verdict:
    """Compare ``student(compute, latency, bandwidth, nbytes, n)`` with simulated rings; takes seconds.

    Parameters
    ----------
    student : callable or None
        Gives the share of its time a worker of a ring computes: `compute` in s, `latency` in s, `bandwidth` in
        bytes/s, `nbytes` of the gradient, `n` workers.  What is not written yet is not simulated.
    hints : sequence of str
        From gentle to plain: a wrong answer shows one more of them each time.

    Raises
    ------
    JobFailed
        If a simulation fails.
    """
    first = check(student, [(ALONE, 1.0)], hints)
    if not first:
        return first
    return check(student, [(ALONE, 1.0), *map(_case, all_done(ring_steps()))], hints, TOLERANCE)


def _case(outcome: Outcome) -> tuple[dict[str, float], float]:
    """What a student is given, and what the simulation says."""
    experiment = outcome.experiment
    platform, name = platform_of(experiment), experiment.cluster.stand_in_for
    charged, own = workload(name) if name else None, sizes(experiment)
    flops, nbytes = (charged.flops, charged.nbytes) if charged else (own.flops, 4 * own.elements)
    compute = platform.seconds(flops * experiment.batch, charged)
    link = platform.link(same_node=False)
    arguments = dict(
        compute=compute, latency=link.latency, bandwidth=link.bandwidth, nbytes=nbytes, n=experiment.workers
    )
    return arguments, float(compute / outcome.run.curve["seconds"].iloc[-1])
