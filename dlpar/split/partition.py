"""Partition of a list of layers into parts: of about equal cost, or as the experiment specifies.

The smallest unit is a layer with weights, together with the layers without weights that follow. So an
activation or a pooling layer is never a part by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dlpar import models
from dlpar.comm import Comm
from dlpar.split.split import Task, moved, propagate

TRIALS = 3
"""Number of times that each layer is measured. The shortest time counts."""


class ModelPart(NamedTuple):
    """Consecutive layers of a model.

    Attributes
    ----------
    layers : slice
        The layers.
    flops : float
        FLOPs per sample, forward and backward.
    shape : tuple of int
        Shape of the input for one sample.
    """

    layers: slice
    flops: float
    shape: tuple[int, ...]


def partition(task: Task) -> list[ModelPart]:
    """Cut the model, in layer order, into the stages' parts that the experiment specifies."""
    split, model = task.experiment.split, task.model
    x, _ = task.batch(0)
    name = f"units of {task.experiment.model!r} on {task.experiment.data!r}"
    found = task.comm.world.once(name, lambda: units(model, torch.zeros((1, *x.shape[1:]), dtype=x.dtype)))
    costs = [unit.flops for unit in found]
    if split.partition == "measured":
        costs = measured(model, found, x[: -(-len(x) // split.microbatches)], task.place.mesh.comm)
    parts = []
    for numbers in cut(costs, split.parts(task.experiment.workers), split.partition):
        members = found[numbers.start : numbers.stop]
        layers = slice(members[0].layers.start, members[-1].layers.stop)
        parts.append(ModelPart(layers, sum(unit.flops for unit in members), members[0].shape))
    return parts


@torch.no_grad()
def units(model: nn.Sequential, x: Tensor) -> list[ModelPart]:
    """List the units of a model, the smallest parts that stages can hold.

    A unit is a layer with weights, and the layers without weights that follow.

    Parameters
    ----------
    model : nn.Sequential
        Not changed. It is an outline if nothing is computed.
    x : Tensor, shape (1, *shape)
        One sample. An outline needs none.
    """
    if not isinstance(model, nn.Module):
        shapes = [tuple(x.shape[1:]), *((p.outputs,) for p in model.parameters())]
        return [ModelPart(slice(i, i + 1), p.flops, shapes[i]) for i, p in enumerate(model.parameters())]
    starts = [i for i, layer in enumerate(model) if next(layer.parameters(), None) is not None]
    found = []
    for start, stop in zip([0, *starts[1:]], [*starts[1:], len(model)]):
        part = model[start:stop]
        found.append(ModelPart(slice(start, stop), models.flops_of(part, x), tuple(x.shape[1:])))
        x = part.eval()(x)  # batch normalisation cannot train on one sample
        part.train()
    return found


def cut(costs: Sequence[float], parts: int, how: str = "balanced") -> list[range]:
    """Return the range of consecutive units in each part.

    Parameters
    ----------
    costs : sequence of float
        One for each unit.
    parts : int
        From 1 to the number of units.
    how : str
        ``"2,1,1"``: numbers of units.  Anything else minimises the cost of the costliest part, and then
        prefers an even cut.
    """
    counts = [int(n) for n in how.split(",")] if how.strip()[0].isdigit() else _most_even(costs, parts)
    # An experiment's rules cannot check this, because they do not know the layers of a workload from a file.
    if len(counts) != parts or sum(counts) != len(costs) or 0 in counts:
        got = f"split.partition: got {how!r} for {parts} parts"
        raise ValueError(f"{got}, allowed is a cut of {len(costs)} layers")
    return [range(end - count, end) for count, end in zip(counts, accumulate(counts))]


def _most_even(costs: Sequence[float], parts: int) -> list[int]:
    """Return the number of units in each part of the most even cut, by dynamic programming."""
    before = [0.0, *accumulate(costs)]
    if parts > len(costs):
        return []

    @cache
    def best(start: int, parts: int) -> tuple[float, float, tuple[int, ...]]:
        """Return the highest cost, sum of squares and counts of the best cut of the units from `start`."""
        cuts = []
        # Each remaining part needs at least one unit. The last part takes all remaining units.
        for stop in range(start + 1, len(costs) - parts + 2) if parts > 1 else [len(costs)]:
            cost = before[stop] - before[start]
            highest, squares, counts = best(stop, parts - 1) if parts > 1 else (0.0, 0.0, ())
            cuts.append((max(cost, highest), cost**2 + squares, (stop - start, *counts)))
        return min(cuts)

    return list(best(0, parts)[2])


def measured(model: nn.Sequential, parts: Sequence[ModelPart], x: Tensor, comm: Comm) -> list[float]:
    """Measure the time of both passes through each unit in seconds, on rank 0 for all ranks. Collective.

    On a platform's clock these are the seconds charged for the FLOPs.

    Parameters
    ----------
    x : Tensor, shape (n, *shape)
        A micro-batch.
    """
    seconds, dtype = [], next(iter(model.parameters())).dtype
    for unit in parts if comm.rank == 0 else ():
        inputs = x if unit is parts[0] else x.new_zeros((len(x), *unit.shape), dtype=dtype)
        trials, part = [], moved(copy.deepcopy(model[unit.layers]), comm.device)
        for _ in range(TRIALS):
            began = comm.now()
            comm.compute(partial(_both_passes, part, inputs), cost=unit.flops * len(x))
            comm.world.settle()
            trials.append(comm.now() - began)
        seconds.append(min(trials))
    return comm.broadcast(seconds)


def _both_passes(part: nn.Module, x: Tensor) -> None:
    x = x.detach().requires_grad_(x.is_floating_point())
    propagate(part(x).sum(), 1.0)
