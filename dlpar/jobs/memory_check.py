"""Check before a job starts that it fits into the free memory, so that no rank is killed later.

The check counts a job's minimum: a rank's own memory (measured), and the weights between hidden layers with
their gradients and optimizer state.  Input and output layers, activations and data are not counted.  So a job
that fits is never refused, but a job slightly too large may still start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.control_groups import memory
from dlpar.memory import bytes_of, model_state
from dlpar.worlds.devices import CONTEXT, Gpu, gpus
from dlpar.worlds.mpiexec import find_starter, on_one_host

OF_A_RANK = 20e6
"""Minimum bytes of a rank without its model: 19 MB if forked from a warm server, and 5 MB of mpiexec."""

OF_A_SIMULATION = 30e6
"""Minimum bytes of a simulation's single process, without its ranks' models: 40 MB, as measured."""


SMALL = 1e8
"""Bytes of a worker's model state below which its GPU is not checked."""


def check_memory(experiment: Experiment, left: int | None = None, cards: Sequence[Gpu] | None = None) -> None:
    """Reject a job that cannot fit into the memory of this machine and its GPUs.

    A job on several machines is not checked.

    Parameters
    ----------
    experiment : Experiment
        The job.
    left : int, optional
        Free bytes; default: from :func:`dlpar.jobs.control_groups.memory`.
    cards : sequence of Gpu, optional
        This machine's GPUs; default: from :func:`dlpar.worlds.devices.gpus`.

    Raises
    ------
    BadExperiment
        If the job needs more. The message gives the number of workers that would fit.
    """
    workers, cluster = experiment.workers, experiment.cluster
    if cluster.world != "simulated" and not on_one_host(find_starter(), cluster.hostfile):
        return
    on_host = cluster.world != "real" or cluster.device == "cpu" or experiment.sync.shares_memory
    on_host |= cluster.device == "auto" and cluster.carrier == "gloo"  # it then takes no GPU
    if cards is None:  # a query takes too long for such a small model
        cards = () if on_host or _of_one(experiment, workers) < SMALL else gpus()
    needs = partial(_needs, experiment, memory().free if left is None else left, cards)
    of, need, left = next((each for each in needs(workers) if each[1] > each[2]), ("", 0, 0))
    if not need:
        return
    fits = lambda n: all(need <= left for _, need, left in needs(n)) and _is_allowed(experiment, n)
    fit = next((n for n in range(workers - 1, 0, -1) if fits(n)), None)
    none = "not even 1 would fit: stop another job, or shut a notebook's kernel down"
    sizes = f"{workers} need about {_in_words(need)} of {of}, {_in_words(left)} is left"
    raise BadExperiment(f"workers: {sizes}: {f'{fit} would fit' if fit else none}")


def _needs(e: Experiment, left: int, cards: Sequence[Gpu], workers: int) -> list[tuple[str, float, float]]:
    """Return the needed and the remaining bytes of the host and of each GPU, for this many workers."""
    # Ranks share a GPU only on request.
    if not cards or (workers > len(cards) and e.cluster.device == "auto"):
        return [("memory", _need(e, workers), left)]
    each, ranks = CONTEXT + _of_one(e, workers), lambda card: len(range(card, workers, len(cards)))
    of_cards = [(f"the memory of GPU {n}", ranks(n) * each, card.free) for n, card in enumerate(cards)]
    return [("memory", (workers + e.ranks - e.workers) * OF_A_RANK, left), *of_cards]


def _is_allowed(e: Experiment, workers: int) -> bool:
    """Return whether the experiment can run on this many workers. A split may need a multiple of a number."""
    with suppress(BadExperiment):
        return bool(e.replace(workers=workers))
    return False


def _need(e: Experiment, workers: int) -> float:
    """Return the experiment's minimum bytes with this many workers. Servers' shares are left out."""
    if e.cluster.messages == "sizes":
        return OF_A_SIMULATION
    models = workers * _of_one(e, workers)
    if e.sync.shares_memory:  # one copy of the weights for all workers
        models -= (workers - 1) * e.model.hidden_weights * e.itemsize
    if e.cluster.world == "simulated":
        return OF_A_SIMULATION + models
    return (workers + e.ranks - e.workers) * OF_A_RANK + models


def _of_one(e: Experiment, workers: int) -> float:
    """Return a rank's bytes of model state, as the mean over the ranks that share one model."""
    parts = math.prod(e.split.axes(workers).get(axis, 1) for axis in ("tensor", "pipeline"))
    zero, each = getattr(e.split, "zero", 0), bytes_of(e.optimizer, e.itemsize)
    return model_state(e.model.hidden_weights / parts, max(1, workers // parts), zero, each).total


def _in_words(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.0f} MB"
