"""Closed forms of waiting for each other, where the times of steps vary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.worlds.platforms import Timing


POINTS = 40_001
"""Of the grid on which a distribution is integrated; relative errors are below 1e-6."""


def expected_slowest(workers: int, timing: Timing, steps: int = 1) -> float:
    """How long the slowest of N workers takes, over the mean of one: E[max], as a factor from 1.

    A bulk-synchronous step takes that factor times the mean.  With `steps` above 1, workers
    meet only every so many steps, and each has had the mean of them: the factor falls.

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
    for field, value in {"workers": workers, "steps": steps}.items():
        if value < 1:
            raise ValueError(f"{field}: got {value}, allowed is a whole number from 1")
    if timing.kind == "constant":
        return 1.0
    if timing.kind == "trace":
        return _slowest_of_trace(workers, list(timing.trace), steps)
    if timing.kind == "exponential" and steps == 1:
        return sum(1 / k for k in range(1, workers + 1))
    # The mean of so many gamma times is a gamma time again, of as many times the shape.
    cv = 1.0 if timing.kind == "exponential" else timing.cv
    return _slowest_of_gamma(workers, steps / cv**2)


def ssp_bounds(workers: int, timing: Timing, staleness: int) -> tuple[float, float]:
    """Between what factors of the mean a step of stale-synchronous workers takes, when times vary.

    Not below 1, what it takes when nobody waits (asp); not above what it takes when all meet
    every `staleness` + 1 steps, for who does so never leads by more than `staleness`
    clocks.  With workers of constant but unequal speeds the pace is the slowest's.

    Source: Ho et al. (NIPS 2013), section 3, for the rule; the bounds follow from it.

    Parameters
    ----------
    workers, timing
        As in :func:`expected_slowest`.
    staleness : int
        s, clocks a worker may lead, from 0 (which is bsp).
    """
    if staleness < 0:
        raise ValueError(f"staleness: got {staleness}, allowed is a whole number from 0")
    return 1.0, expected_slowest(workers, timing, staleness + 1)


def _slowest_of_trace(workers: int, trace: list[float], steps: int) -> float:
    """Worker r begins with element r; all go round and round."""
    length = len(trace)
    rounds = math.lcm(length, steps) // steps
    sums = [sum(trace[(i + k) % length] for k in range(steps)) for i in range(length)]
    longest = (
        max(sums[(t * steps + r) % length] for r in range(min(workers, length))) for t in range(rounds)
    )
    return sum(longest) / rounds / steps


def _slowest_of_gamma(workers: int, shape: float) -> float:
    """E[max] of N gamma numbers of mean 1, on a grid that is even in the logarithm, where all shapes are smooth."""
    import numpy as np  # here: an import of the closed forms need not load it

    spread = math.sqrt(shape)
    low, high = max(shape - 14 * spread, 1e-9 * shape), shape + (40 + math.log(workers)) * max(spread, 1.0)
    u = np.linspace(math.log(low), math.log(high), POINTS)
    x = np.exp(u)
    density = np.exp(shape * u - x - math.lgamma(shape))  # of log x
    below = math.exp(shape * math.log(low) - math.lgamma(shape + 1)) if shape < 100 else 0.0
    pieces = (density[1:] + density[:-1]) / 2 * np.diff(u)
    share = np.minimum(np.concatenate([[below], below + np.cumsum(pieces)]), 1.0)
    return float(low + np.trapezoid((1 - share**workers) * x, u)) / shape
