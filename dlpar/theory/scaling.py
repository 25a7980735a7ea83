"""How speed grows with workers: speed-up, efficiency, and where two schemes are equally fast."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


AGREEING = ("sync", "averaging", "compression")
"""Parts of an experiment that say how replicas agree: a single worker needs none of them."""


class Gain(NamedTuple):
    """What more workers gain.

    Attributes
    ----------
    speedup : float
        Samples a second over those of the base.
    efficiency : float
        Share of the ideal speed-up, workers / base.
    base : int
        Workers of the run it is compared with.
    """

    speedup: float
    efficiency: float
    base: int


def gains(experiments: Sequence[Experiment], rates: Sequence[float | None]) -> list[Gain | None]:
    """Speed-up and efficiency of each experiment, from its samples/s; None where that is None.

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
    return [
        gain(experiment.workers, rate, *bases[task(experiment)]) if rate else None
        for experiment, rate in zip(experiments, rates)
    ]


def gain(workers: int, rate: float, base: int, base_rate: float) -> Gain:
    """What `workers` at `rate` samples/s gain over `base` workers at `base_rate`."""
    return Gain(rate / base_rate, rate / base_rate * base / workers, base)


def task(experiment: Experiment) -> str:
    """All of an experiment but its workers and how replicas agree, as text."""
    return json.dumps(experiment.model_dump(exclude={"workers", *AGREEING}), sort_keys=True, default=str)


TIE = 1e-3
"""Relative difference below which two rates count as equal."""


def crossings(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """Numbers of workers at which two rates are equal.

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
