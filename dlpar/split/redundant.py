"""Overlapping neurons: computing more to communicate less in fully connected layers.

Every rank owns 1/t of a layer's neurons and needs the activations of all.  Here all ranks compute
the first neurons of every rank's piece, and send each other the rest alone.  That each processor
may be responsible for more neurons than its share, overlapping with others', is reported by
Ben-Nun and Hoefler (arXiv 1802.09941, on model parallelism).

What the backward pass needs follows from who owns what.  A neuron's gradient, the sum of what all
neurons behind it say, goes to its owner alone: a reduce-scatter, as without any redundancy.  Only
the owner moves the neuron's weights; the others get them before the next step.  So what is saved
grows with the batch and what is paid does not (:func:`dlpar.costmodel.tensor.redundant_layer`):
it is worth it where a batch has more samples than a neuron has weights.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from dlpar.split.conjugate import Ways


class Overlapping(nn.Module):
    """A linear layer by its outputs, some of which every rank computes; it gives all outputs on every rank.

    Parameters
    ----------
    own : nn.Linear
        This rank's neurons, the same number on each.
    ways : Ways
        The ranks.
    redundancy : float
        Share of each rank's neurons, from 0 to 1, that all ranks compute; rounded to whole neurons.

    Attributes
    ----------
    own : nn.Linear
        As given.
    common : int
        Of each rank's neurons, those that all compute.
    copies : Tensor, shape (ranks, common, inputs + 1)
        Their weights, and biases behind them, as they were at the last :meth:`refresh`.
    """

    def __init__(self, own: nn.Linear, ways: Ways, redundancy: float) -> None:
        super().__init__()
        self.ways, self.own = ways, own
        self.common = round(redundancy * len(own.weight))
        self.copies = own.weight.detach().new_empty(ways.size, self.common, own.weight.shape[1] + 1)

    @torch.no_grad()
    def refresh(self) -> None:
        """Get the present weights of the others' neurons that this rank computes; collective, before each step."""
        if not self.common:
            return
        own = torch.cat([self.own.weight[: self.common], self.own.bias[: self.common, None]], 1)
        torch.stack(self.ways.gather(own, [self.common] * self.ways.size, 0, "forward"), out=self.copies)

    def forward(self, x: Tensor) -> Tensor:
        ways, inputs = self.ways, x.shape[1]
        mine = self.own(x)
        mine = ways.charged(mine, 2 * mine.numel() * inputs)
        with torch.no_grad():
            computed = [
                mine if rank == ways.rank else F.linear(x, copy[:, :-1], copy[:, -1])
                for rank, copy in enumerate(self.copies)
            ]
        ways.comm.compute(lambda: None, cost=2 * len(x) * inputs * self.common * (ways.size - 1))
        return _Exchanged.apply(mine, computed, self.common, ways)


class _Exchanged(Function):
    """Forward an all-gather of what only its owner has computed; backward a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, computed: list[Tensor], common: int, ways: Ways) -> Tensor:
        ctx.ways = ways
        alone = mine.shape[1] - common
        if not alone:
            return torch.cat(computed, 1)
        sent = ways.gather(mine[:, common:], [alone] * ways.size, 1, "forward")
        return torch.cat([part for each, rest in zip(computed, sent) for part in (each[:, :common], rest)], 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.ways.scatter(gradient, 1, "backward"), None, None, None
