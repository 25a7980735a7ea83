"""Checks a formula for the step of data × tensor × pipeline devices, typed in a cell, against simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.course.judge import Verdict, check
from dlpar.course.labs.hybrid import CLUSTERS, grid
from dlpar.lab.sweep import Outcome, all_done
from dlpar.theory.layers import transformer_exchanges
from dlpar.theory.steps.sizes import CHARACTERS, sizes
from dlpar.worlds.platforms import platform_of

TOLERANCE = 0.08
"""Largest relative difference from a simulation: stages are not quite equal, and their boundaries send something."""

GRIDS = ((4, 2, 1), (1, 1, 4), (2, 2, 2))
"""Data, tensor, pipeline."""

ALONE = dict(
    data=1, tensor=1, pipeline=1, microbatches=8, compute=1000.0, summed=500.0, gradient=400.0, bandwidth=10.0
)
"""One device: what it takes is known without a simulation."""


def check_grid(student: Callable[..., Any] | None, hints: Sequence[str] = ()) -> Verdict:
    """Compare ``student(data, tensor, pipeline, microbatches, compute, summed, gradient, bandwidth)`` with simulated
    steps of a transformer of eight blocks; takes seconds, the first time.

    Parameters
    ----------
    student : callable or None
        Gives the ms of a step on a grid of devices with a link each: `microbatches` of a replica; `compute` in ms, of
        the whole batch on one device; `summed` in kB, of all that tensor-parallel ranks all-reduce in a step, of the
        whole batch in all layers; `gradient` in kB, of the whole model; `bandwidth` in MB/s.  What is not written yet
        is not simulated.
    hints : sequence of str
        From gentle to plain: a wrong answer shows one more of them each time.

    Raises
    ------
    JobFailed
        If a simulation fails.
    """
    first = check(student, [(ALONE, ALONE["compute"])], hints)
    return check(student, [(ALONE, ALONE["compute"]), *_cases()], hints, TOLERANCE) if first else first


@cache
def _cases() -> list[tuple[dict[str, float], float]]:
    """What a student is given, and what the simulations say: the same every time."""
    cluster = CLUSTERS["one each"]
    outcomes = all_done([grid(cluster, *axes).replace(model={"depth": 8}) for axes in GRIDS])
    return [(arguments(outcome.experiment), _ms(outcome)) for outcome in outcomes]


def arguments(experiment: Experiment) -> dict[str, float]:
    """What a formula is told of a transformer on a grid of devices, each with a link of its own."""
    model, split, batch = experiment.model, experiment.split, experiment.global_batch
    platform, own = platform_of(experiment), sizes(experiment)
    sent = transformer_exchanges(batch, experiment.data.context, model.width, model.depth, CHARACTERS)
    elements = sum(sent.reduced) + sum(sent.gathered) / 2  # an all-gather is half of an all-reduce
    return dict(
        data=experiment.replicas,
        tensor=split.tensor,
        pipeline=split.stages,
        microbatches=split.microbatches,
        compute=1e3 * platform.seconds(batch * own.flops),
        summed=4 * elements / 1e3,
        gradient=4 * own.elements / 1e3,
        bandwidth=platform.link(same_node=False).bandwidth / 1e6,
    )


def _ms(outcome: Outcome) -> float:
    return 1e3 * float(outcome.run.curve["seconds"].iloc[-1])
