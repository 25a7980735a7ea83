"""Whether a job fits into the memory that is left; asked before it starts, so that nothing is killed half-way.

What is counted is what a job needs at least: what a rank has for itself (measured), and the weights between a
model's hidden layers with their gradients and optimizer state.  Input and output layers, activations and data come
on top: a job that fits is never refused, and one that does not fit by little may still start.
"""

from __future__ import annotations

import math

from dlpar.control_groups import memory
from dlpar.costmodel.memory import bytes_of, model_state
from dlpar.experiment import Experiment
from dlpar.launcher.mpiexec import find_starter, on_one_host
from dlpar.schema import BadExperiment

OF_A_RANK = 20e6
"""Bytes of a rank at least, without its model; forked from a warm server it has 19 MB for itself, and mpiexec 5 MB
for each."""

OF_A_SIMULATION = 30e6
"""Bytes of the one process of a simulation at least, without its ranks' models; measured: 40 MB."""


def check_room(experiment: Experiment, left: int | None = None) -> None:
    """Refuse a job that cannot fit into this machine's memory; of what runs on several, nothing is known here.

    Parameters
    ----------
    experiment : Experiment
        The job.
    left : int, optional
        Bytes that are left; default: what :func:`dlpar.control_groups.memory` finds.

    Raises
    ------
    BadExperiment
        If it needs more; the sentence says how many workers would fit.
    """
    left = memory().free if left is None else left
    here = experiment.cluster.world == "simulated" or on_one_host(find_starter(), experiment.cluster.hostfile)
    if not here or (need := _need(experiment, experiment.workers)) <= left:
        return
    fewer = (n for n in range(experiment.workers - 1, 0, -1) if _need(experiment, n) <= left)
    fit = next((n for n in fewer if _is_allowed(experiment, n)), 0)
    would = (
        f"{fit} would fit"
        if fit
        else "not even 1 would fit: stop another job, or shut a notebook's kernel down"
    )
    raise BadExperiment(
        f"workers: {experiment.workers} need about {_in_words(need)} of memory, {_in_words(left)} is left: {would}"
    )


def _is_allowed(e: Experiment, workers: int) -> bool:
    """Whether the same can be run by so many; a split may ask for a multiple of something."""
    try:
        e.replace(workers=workers)
    except BadExperiment:
        return False
    return True


def _need(e: Experiment, workers: int) -> float:
    """Bytes the experiment takes at least with so many workers; of a server's share of the model, nothing."""
    if e.cluster.messages == "sizes":
        return OF_A_SIMULATION
    models = workers * _model(e, workers)
    if e.sync.scheme == "hogwild":  # one copy of the weights for all
        models -= (workers - 1) * hidden_weights(e) * _bytes_of(e)[0]
    if e.cluster.world == "simulated":
        return OF_A_SIMULATION + models
    return (workers + e.ranks - e.workers) * OF_A_RANK + models


def _model(e: Experiment, workers: int) -> float:
    """Bytes a rank holds of the model at least; the mean over the ranks one model is cut over."""
    cut = e.split.axes(workers)
    parts = math.prod(cut.get(axis, 1) for axis in ("tensor", "pipeline"))
    zero = getattr(e.split, "zero", 0)
    return model_state(hidden_weights(e) / parts, max(1, workers // parts), zero, _bytes_of(e)).total


def _bytes_of(e: Experiment) -> tuple[int, int, int]:
    return bytes_of(e.optimizer, 8 if e.dtype == "float64" else 4)


def hidden_weights(e: Experiment) -> int:
    """Weights between hidden layers: of these, a model has at least so many, whatever data it reads."""
    width, depth = e.model.width, e.model.depth
    return {
        "mlp": (depth - 1) * width**2,
        "cnn": (depth - 1) * 9 * e.model.channels**2,
        "transformer": depth * 12 * width**2,
    }.get(e.model.name, 0)


def _in_words(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.0f} MB"
