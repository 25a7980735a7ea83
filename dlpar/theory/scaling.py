"""Scaling with workers: speed-up, efficiency, and the crossing of two schemes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


AGREEING = ("sync", "averaging", "compression")
"""Parts of an experiment that settle how replicas agree: a single worker needs none of them."""


class Gain(NamedTuple):
    """Speed-up and efficiency over a run of fewer workers.

    Attributes
    ----------
    speedup : float
        Samples a second over those of the base.
    efficiency : float
        Share of the ideal speed-up, workers / base.
    base : int
        Workers of that run.
    """

    speedup: float
    efficiency: float
    base: int


def gains(experiments: Sequence[Experiment], rates: Sequence[float | None]) -> list[Gain | None]:
    """Return speed-up and efficiency of each experiment, from its samples/s; None where that is None.

    Each is compared with the one of the fewest workers among those that differ from it in nothing but
    workers and how replicas agree; of several, with the fastest: a scheme must not look good because
    it is slow with one worker, too.
    """
    bases: dict[str, tuple[int, float]] = {}
    for experiment, rate in zip(experiments, rates):
        if rate:
            here = experiment.workers, rate
            before = bases.setdefault(task(experiment), here)
            bases[task(experiment)] = min(before, here, key=lambda one: (one[0], -one[1]))
    found: list[Gain | None] = []
    for experiment, rate in zip(experiments, rates):
        base, base_rate = bases.get(task(experiment), (1, 1.0))
        speedup = rate / base_rate if rate else 0.0
        found.append(Gain(speedup, speedup * base / experiment.workers, base) if rate else None)
    return found


def task(experiment: Experiment) -> str:
    """Return an experiment without its workers and the way its replicas agree, as text."""
    return json.dumps(experiment.model_dump(exclude={"workers", *AGREEING}), sort_keys=True, default=str)


TIE = 1e-3
"""Relative difference below which two rates count as equal."""


def crossings(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """Return the numbers of workers at which two rates are equal.

    Parameters
    ----------
    first, second : mapping of int to float
        Workers -> samples/s.

    Returns
    -------
    list of float
        Between two numbers of workers by interpolation: of the logarithm of the rates' ratio, over
        that of the workers.  Empty if one is the faster throughout; numbers of workers at which
        neither is, within `TIE`, do not count.
    """
    common = sorted(first.keys() & second.keys())
    ahead = [math.log(first[n] / second[n]) for n in common]
    seen = [(n, a) for n, a in zip(common, ahead) if abs(a) > TIE]
    return [
        math.exp(math.log(n) + a / (a - b) * math.log(m / n))
        for (n, a), (m, b) in pairwise(seen)
        if (a < 0) != (b < 0)
    ]
