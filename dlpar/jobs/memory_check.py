"""Check whether a job fits into the free memory before it starts, so that no rank is killed later.

The check counts the minimum that a job needs: a rank's own memory (measured), and the weights between hidden
layers with their gradients and optimizer state.  Input and output layers, activations and data are not
counted.  So a job that fits is never refused, but a job slightly too large may still start.
"""

from __future__ import annotations

import math

from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.control_groups import memory
from dlpar.memory import bytes_of, model_state
from dlpar.worlds.mpiexec import find_starter, on_one_host

OF_A_RANK = 20e6
"""Minimal bytes of a rank without its model: 19 MB if forked from a warm server, and 5 MB of mpiexec."""

OF_A_SIMULATION = 30e6
"""Minimal bytes of a simulation's single process, without its ranks' models; measured: 40 MB."""


def check_memory(experiment: Experiment, left: int | None = None) -> None:
    """Refuse a job that cannot fit into this machine's memory; jobs on several machines are not checked.

    Parameters
    ----------
    experiment : Experiment
        The job.
    left : int, optional
        Free bytes; default: from :func:`dlpar.jobs.control_groups.memory`.

    Raises
    ------
    BadExperiment
        If the job needs more; the sentence gives the number of workers that would fit.
    """
    left = memory().free if left is None else left
    workers, cluster = experiment.workers, experiment.cluster
    here = cluster.world == "simulated" or on_one_host(find_starter(), cluster.hostfile)
    if not here or (need := _need(experiment, workers)) <= left:
        return
    lighter = (n for n in range(workers - 1, 0, -1) if _need(experiment, n) <= left)
    fit = next((n for n in lighter if _is_allowed(experiment, n)), None)
    none = "not even 1 would fit: stop another job, or shut a notebook's kernel down"
    sizes = f"{workers} need about {_in_words(need)} of memory, {_in_words(left)} is left"
    raise BadExperiment(f"workers: {sizes}: {f'{fit} would fit' if fit else none}")


def _is_allowed(e: Experiment, workers: int) -> bool:
    """Return whether the experiment can run on this many workers; a split may need a multiple of a number."""
    try:
        e.replace(workers=workers)
    except BadExperiment:
        return False
    return True


def _need(e: Experiment, workers: int) -> float:
    """Return the experiment's minimal bytes with this many workers, without servers' shares of the model."""
    if e.cluster.messages == "sizes":
        return OF_A_SIMULATION
    sizes = bytes_of(e.optimizer, 8 if e.dtype == "float64" else 4)
    cut = e.split.axes(workers)
    parts = math.prod(cut.get(axis, 1) for axis in ("tensor", "pipeline"))
    zero = getattr(e.split, "zero", 0)
    # The mean over the ranks of one model.
    of_one = model_state(hidden_weights(e) / parts, max(1, workers // parts), zero, sizes).total
    models = workers * of_one
    if e.sync.shares_memory:  # one copy of the weights for all workers
        models -= (workers - 1) * hidden_weights(e) * sizes[0]
    if e.cluster.world == "simulated":
        return OF_A_SIMULATION + models
    return (workers + e.ranks - e.workers) * OF_A_RANK + models


def hidden_weights(e: Experiment) -> int:
    """Return the number of weights between hidden layers: a model's minimum for any data."""
    width, depth = e.model.width, e.model.depth
    return {
        "mlp": (depth - 1) * width**2,
        "cnn": (depth - 1) * 9 * e.model.channels**2,
        "transformer": depth * 12 * width**2,
    }.get(e.model.name, 0)


def _in_words(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.0f} MB"
