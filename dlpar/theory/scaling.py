"""Scaling with workers: speed-up, efficiency, the crossing of two schemes, and waiting for the slowest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from dlpar.theory.counts import from_one
from dlpar.worlds.platforms import Timing

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


AGREEING = ("sync", "averaging", "compression")
"""Parts of an experiment that describe the synchronisation of replicas. A single worker needs none of them.
"""


class Gain(NamedTuple):
    """Speed-up and efficiency relative to a run with fewer workers.

    Attributes
    ----------
    speedup : float
        Samples per second, divided by the base run's.
    efficiency : float
        Share of the ideal speed-up, workers / base.
    base : int
        Workers of the base run.
    """

    speedup: float
    efficiency: float
    base: int


def gains(experiments: Sequence[Experiment], rates: Sequence[float | None]) -> list[Gain | None]:
    """Return each experiment's speed-up and efficiency, computed from its samples/s.

    The result is None if the samples/s are None.

    The base of a run differs from it only in workers and scheme, and has the fewest workers. Of several such runs
    the fastest is the base, so that no scheme looks good only because it is slow with one worker.
    """
    bases: dict[str, tuple[int, float]] = {}
    done = [(experiment, rate) for experiment, rate in zip(experiments, rates) if rate]
    for experiment, rate in sorted(done, key=lambda one: (one[0].workers, -one[1])):
        bases.setdefault(task(experiment), (experiment.workers, rate))

    def gain(experiment: Experiment, rate: float) -> Gain:
        base, base_rate = bases[task(experiment)]
        return Gain(rate / base_rate, rate / base_rate * base / experiment.workers, base)

    return [gain(experiment, rate) if rate else None for experiment, rate in zip(experiments, rates)]


def task(experiment: Experiment) -> str:
    """Return an experiment as text. Its workers and its synchronisation are left out."""
    return experiment.model_dump_json(exclude={"workers", *AGREEING})


TIE = 1e-3
"""Relative difference below which two rates count as equal."""


def crossings(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """Return the numbers of workers at which two rates are equal.

    Parameters
    ----------
    first, second : mapping of int to float
        Samples per second by number of workers.

    Returns
    -------
    list of float
        Crossings between two numbers of workers: the logarithm of the rates' ratio is interpolated
        over the logarithm of the workers.  Empty if one rate is higher throughout.  Numbers of
        workers at which both rates are equal, within `TIE`, do not count.
    """
    common = sorted(first.keys() & second.keys())
    seen = [(n, a) for n in common if abs(a := math.log(first[n] / second[n])) > TIE]
    return [
        math.exp(math.log(n) + a / (a - b) * math.log(m / n))
        for (n, a), (m, b) in pairwise(seen)
        if (a < 0) != (b < 0)
    ]


def expected_slowest(workers: int, timing: Timing) -> float:
    """Return E[max], the expected time of the slowest of N workers divided by one worker's mean time.

    It is at least 1.

    A bulk-synchronous step takes the mean times this factor: 1 for constant times, and
    1 + 1/2 + ... + 1/N for exponential times.

    Sources: David and Nagaraja, "Order Statistics" (2003), 4.6; Dutta et al. (arXiv 1803.01113) for
    synchronous SGD.

    Parameters
    ----------
    workers : int
        N, at least 1.
    timing : Timing
        Distribution of computation times, which are independent and equally distributed for all workers.

    Raises
    ------
    ValueError
        If `workers` is below 1, or `timing` has no closed form: simulate it.

    Examples
    --------
    >>> from dlpar.worlds.platforms import Timing
    >>> expected_slowest(3, Timing(kind="exponential")) == 1 + 1 / 2 + 1 / 3
    True
    """
    from_one(workers=workers)
    if timing.kind not in ("constant", "exponential"):
        raise ValueError(f"timing: got {timing.kind}, allowed is constant or exponential; simulate others")
    return 1.0 if timing.kind == "constant" else sum(1 / k for k in range(1, workers + 1))


def roofline(flops: float, nbytes: float, peak: float, bandwidth: float, launch: float = 0.0) -> float:
    """Return the minimum time of each of many equal kernels, in seconds.

    A kernel computes and moves memory at the same time, and the next kernel is launched meanwhile.  So the
    longest of the three times decides (Williams, Waterman and Patterson, CACM 52(4), 2009, with launches).

    >>> roofline(flops=2e9, nbytes=12e6, peak=1e12, bandwidth=1e12)
    0.002
    """
    return max(flops / peak, nbytes / bandwidth, launch)
