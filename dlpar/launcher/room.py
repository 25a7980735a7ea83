"""Whether a job fits into the memory that is left; asked before it starts, so that nothing is killed half-way.

What is counted is what a job needs at least: what a rank has for itself (measured), and the weights between a
model's hidden layers with their gradients and optimizer state.  Input and output layers, activations and data come
on top: a job that fits is never refused, and one that does not fit by little may still start.
"""

from __future__ import annotations

import math
import re

from dlpar.control_groups import ROOT, ControlGroups, text_of
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
        Bytes that are left; default: what the system and this process's control group say.

    Raises
    ------
    BadExperiment
        If it needs more; the sentence says how many workers would fit.
    """
    left = bytes_left() if left is None else left
    here = experiment.cluster.world == "simulated" or on_one_host(find_starter(), experiment.cluster.hostfile)
    if left is None or not here or (need := _need(experiment, experiment.workers)) <= left:
        return
    fit = max((n for n in range(1, experiment.workers) if _need(experiment, n) <= left), default=0)
    would = f"{fit} would fit" if fit else "not even 1 would fit: stop another job, or shut a notebook's kernel down"
    raise BadExperiment(
        f"workers: {experiment.workers} need about {_in_words(need)} of memory, {_in_words(left)} is left: {would}"
    )


def bytes_left() -> int | None:
    """Memory this process may still take: the system's, or its control group's if less; None where nobody says."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text_of(ROOT / "proc/meminfo"), re.M)
    group = ControlGroups().memory()
    known = [1024 * int(found[1])] if found else []
    return min([*known, group[1]] if group else known, default=None)


def _need(e: Experiment, workers: int) -> float:
    """Bytes the experiment takes at least with so many workers; of a server's share of the model, nothing."""
    if e.cluster.messages == "sizes":
        return OF_A_SIMULATION
    models = workers * _model(e, workers)
    if e.cluster.world == "simulated":
        return OF_A_SIMULATION + models
    return (workers + e.ranks - e.workers) * OF_A_RANK + models


def _model(e: Experiment, workers: int) -> float:
    """Bytes a rank holds of the model at least; the mean over the ranks one model is cut over."""
    cut = e.split.axes(workers)
    parts = math.prod(cut.get(axis, 1) for axis in ("tensor", "pipeline"))
    zero = getattr(e.split, "zero", 0)
    each = bytes_of(e.optimizer, 8 if e.dtype == "float64" else 4)
    return model_state(hidden_weights(e) / parts, max(1, workers // parts), zero, each).total


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
