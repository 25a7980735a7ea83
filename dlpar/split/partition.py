"""Cutting a row of layers into parts that cost about the same, or as one asks for.

What is counted are layers with weights, each with those without that follow it:
an activation or a pooling never makes a part by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from dlpar import models

if TYPE_CHECKING:
    from dlpar.comm import Comm

TRIALS = 3
"""Times a layer is measured; the quickest counts."""


class Unit(NamedTuple):
    """A layer with weights and those without that follow it.

    Attributes
    ----------
    layers : slice
        Of the model.
    flops : float
        Of a sample, forward and backward.
    shape : tuple of int
        Of what comes in for a sample.
    """

    layers: slice
    flops: float
    shape: tuple[int, ...]


@torch.no_grad()
def units(model: nn.Sequential, x: Tensor) -> list[Unit]:
    """What a model can be cut into.

    Parameters
    ----------
    model : nn.Sequential
        Left as it was; or, where nothing is computed, an outline of one.
    x : Tensor, shape (1, *shape)
        A sample; an outline knows without.
    """
    if not isinstance(model, nn.Module):
        shapes = [tuple(x.shape[1:]), *((p.outputs,) for p in model.parameters())]
        return [Unit(slice(i, i + 1), p.flops, shapes[i]) for i, p in enumerate(model.parameters())]
    starts = [i for i, layer in enumerate(model) if next(layer.parameters(), None) is not None]
    starts[0] = 0
    found = []
    for start, stop in zip(starts, [*starts[1:], len(model)]):
        part = model[start:stop]
        found.append(Unit(slice(start, stop), models.flops_of(part, x), tuple(x.shape[1:])))
        x = part(x)
    return found


def cut(costs: Sequence[float], parts: int, how: str = "balanced") -> list[range]:
    """Which units, of these costs, each part has.

    Parameters
    ----------
    costs : sequence of float
        One for each unit.
    parts : int
        From 1 to as many as there are units.
    how : str
        ``"2,1,1"``: so many units; anything else: the costliest part costs as little as can be, and of such cuts
        the most even one is looked for.
    """
    counts = [int(n) for n in how.split(",")] if how[0].isdigit() else _most_even(costs, parts)
    if (
        len(counts) != parts or sum(counts) != len(costs) or 0 in counts
    ):  # of a workload in a file, known here only
        raise ValueError(
            f"split.partition: got {how!r} for {parts} parts, allowed is a cut of {len(costs)} layers"
        )
    ends = list(accumulate(counts))
    return [range(end - count, end) for count, end in zip(counts, ends)]


def _most_even(costs: Sequence[float], parts: int) -> list[int]:
    """Units of each part, by dynamic programming over how many units the first parts have together."""
    before = [0.0, *accumulate(costs)]
    if parts > len(costs):
        return []
    best: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [])}
    for part in range(parts):
        left = parts - part - 1  # each needs a unit
        found: dict[int, tuple[float, float, list[int]]] = {}
        for start, (most, squares, counts) in best.items():
            stops = range(start + 1, len(costs) - left + 1) if left else [len(costs)]
            for stop in stops:
                cost = before[stop] - before[start]
                worst = max(most, cost)
                if stop not in found or (worst, squares + cost**2) < found[stop][:2]:
                    found[stop] = (worst, squares + cost**2, [*counts, stop - start])
        best = found
    return best[len(costs)][2]


def measured(model: nn.Sequential, parts: Sequence[Unit], x: Tensor, comm: Comm) -> list[float]:
    """Seconds of a forward and a backward pass through each unit, as rank 0 of `comm` measures them; collective.

    Where the clock is a platform's they are what it charges for the FLOPs.

    Parameters
    ----------
    x : Tensor, shape (n, *shape)
        A micro-batch.
    """
    seconds, dtype = [], next(iter(model.parameters())).dtype
    for unit in parts if comm.rank == 0 else ():
        inputs = x if unit is parts[0] else x.new_zeros((len(x), *unit.shape), dtype=dtype)
        trials = []
        for _ in range(TRIALS):
            began = comm.now()
            comm.compute(lambda: _both_passes(model[unit.layers], inputs), cost=unit.flops * len(x))
            comm.world.settle()
            trials.append(comm.now() - began)
        seconds.append(min(trials))
    return comm.broadcast(seconds)


def _both_passes(part: nn.Sequential, x: Tensor) -> None:
    x = x.detach().requires_grad_(x.is_floating_point())
    wanted = [*part.parameters(), *([x] if x.requires_grad else [])]
    torch.autograd.grad(part(x).sum(), wanted)
