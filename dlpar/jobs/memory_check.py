"""Check whether a job fits into the free memory before it starts, so that no rank is killed later.

The check counts the minimum that a job needs: a rank's own memory (measured), and the weights between hidden
layers with their gradients and optimizer state.  Input and output layers, activations and data are not
counted.  So a job that fits is never refused, but a job slightly too large may still start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.control_groups import memory
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


STATE = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2}
"""Numbers that an update rule keeps for each parameter."""

LEAST_STAGE = {"optimizer": 1, "gradients": 2, "weights": 3}
"""Lowest stage of ZeRO that shards each kind of state."""


class ModelState(NamedTuple):
    """Bytes that one rank holds between steps."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Sum of all three."""
        return sum(self)


def model_state(
    parameters: float, ranks: int = 1, zero: int = 0, bytes_each: Sequence[float] = (2, 2, 12)
) -> ModelState:
    """Count the bytes that one of N data-parallel ranks holds for a model of n parameters.

    =====  ==========================  =============================================
    stage  divided among N ranks       bytes of a rank, of w, g and k a parameter
    =====  ==========================  =============================================
    0      nothing                     (w + g + k) n
    1      optimizer state             (w + g) n + k n / N
    2      and gradients               w n + (g + k) n / N
    3      and weights                 (w + g + k) n / N
    =====  ==========================  =============================================

    Parameters
    ----------
    parameters : float
        n, at least 0.
    ranks : int
        N, at least 1.
    zero : int
        0, 1, 2 or 3.
    bytes_each : sequence of 3 floats
        Bytes of a weight, of its gradient, and of its optimizer state.  The default is Adam in mixed
        precision (section 3.1): 16-bit weights and gradients, and a 32-bit copy of the weights with two
        moments. :func:`bytes_of` gives those of this library.

    Raises
    ------
    ValueError
        If a number is not allowed.

    Examples
    --------
    >>> round(model_state(7.5e9, ranks=64, zero=3).total / 1e9, 1)
    1.9
    """
    if zero not in (0, 1, 2, 3):
        raise ValueError(f"zero: got {zero!r}, allowed is 0, 1, 2 or 3")
    if ranks < 1:
        raise ValueError(f"ranks: got {ranks}, allowed is a whole number from 1")
    shares = (parameters / (ranks if zero >= LEAST_STAGE[kind] else 1) for kind in ModelState._fields)
    return ModelState(*(share * size for share, size in zip(shares, bytes_each)))


def bytes_of(optimizer: str, itemsize: int) -> tuple[int, int, int]:
    """Return the bytes of a weight, of its gradient and of its state in an update rule of :mod:`dlpar.sync.optim`.

    Parameters
    ----------
    optimizer : str
        One of :data:`STATE`.
    itemsize : int
        Bytes of a number: 4 or 8.
    """
    return itemsize, itemsize, STATE[optimizer] * itemsize
