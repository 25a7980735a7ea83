"""Closed form of waiting for the slowest, where the times of steps vary."""

from __future__ import annotations

import math

import numpy as np

from dlpar.theory.collectives import from_one
from dlpar.worlds.platforms import Timing

POINTS = 40_001
"""Points of the grid on which a distribution is integrated; relative errors are below 1e-6."""


def expected_slowest(workers: int, timing: Timing, steps: int = 1) -> float:
    """Return how long the slowest of N workers takes, over the mean of one: E[max], as a factor from 1.

    A bulk-synchronous step takes that factor times the mean.  With `steps` above 1, workers
    meet only every so many steps, and each has had the mean of them: the factor falls.  It bounds
    stale-synchronous workers from above, where `steps` is their staleness + 1 (Ho et al., NIPS 2013).

    ============  ============================================================
    timing        factor
    ============  ============================================================
    constant      1
    exponential   1 + 1/2 + ... + 1/N
    gamma         integral of 1 - F(x)^N over x, F the distribution of mean 1
    trace         the mean, over a round of the trace, of the largest of N
    ============  ============================================================

    Sources: David and Nagaraja, "Order Statistics" (2003), 2.1 and 4.6; Dutta et al. (arXiv
    1803.01113) for what it says of synchronous SGD; Wang and Joshi (arXiv 1810.08313) for `steps`.

    Parameters
    ----------
    workers : int
        N, from 1.
    timing : Timing
        How computing times vary; equal and independent for all workers.
    steps : int, default 1
        Steps between two meetings.

    Raises
    ------
    ValueError
        If a number is below 1.

    Examples
    --------
    >>> from dlpar.worlds.platforms import Timing
    >>> expected_slowest(3, Timing(kind="exponential")) == 1 + 1 / 2 + 1 / 3
    True
    """
    from_one(workers=workers, steps=steps)
    if timing.kind == "constant":
        return 1.0
    if timing.kind == "trace":
        return _slowest_of_trace(workers, list(timing.trace), steps)
    if timing.kind == "exponential" and steps == 1:
        return sum(1 / k for k in range(1, workers + 1))
    # The mean of so many gamma times is a gamma time again, of as many times the shape.
    cv = 1.0 if timing.kind == "exponential" else timing.cv
    return _slowest_of_gamma(workers, steps / cv**2)


def _slowest_of_trace(workers: int, trace: list[float], steps: int) -> float:
    """Return the factor of a trace: worker r begins with element r, and all go round and round."""
    length = len(trace)
    rounds = math.lcm(length, steps) // steps
    sums = [sum(trace[(i + k) % length] for k in range(steps)) for i in range(length)]
    longest = (
        max(sums[(t * steps + r) % length] for r in range(min(workers, length))) for t in range(rounds)
    )
    return sum(longest) / rounds / steps


def _slowest_of_gamma(workers: int, shape: float) -> float:
    """Integrate 1 - F(x)^N of a gamma distribution over the logarithm of x, in which all shapes are smooth."""
    from scipy.special import gammainc  # here: takes longer to load than all else of this room

    spread = math.sqrt(shape)
    low, high = max(shape - 14 * spread, 1e-9 * shape), shape + (40 + math.log(workers)) * max(spread, 1.0)
    logarithms = np.linspace(math.log(low), math.log(high), POINTS)
    x = np.exp(logarithms)
    return float(low + np.trapezoid((1 - gammainc(shape, x) ** workers) * x, logarithms)) / shape
