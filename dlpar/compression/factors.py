"""Sufficient factors: a fully connected layer's gradient as a product of two thin matrices.

With K samples, the gradient of a weight of out × in numbers is errorsᵀ · activations: (K × out) and (K × in).
Workers send these factors to each other and multiply them (Xie et al., UAI 2016; Zhang et al., "Poseidon",
USENIX ATC 2017, section 3.2).  Project Adam sends them to its servers (Chilimbi et al., OSDI 2014, section
3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from dlpar.collectives.ring import gather_in_order
from dlpar.comm import Comm
from dlpar.compression import Codec
from dlpar.config.experiment import Experiment


def are_shorter(rows: int, inputs: int, outputs: int, ranks: int) -> bool:
    """Return whether a rank sends fewer elements with factors than with a ring all-reduce.

    A rank passes on the factors of N - 1 ranks: ``(N-1) · rows · (in + out)`` numbers.  In an all-reduce it
    sends ``2 (N-1)/N · out · (in + 1)``. `rows` is each rank's number of samples, times the positions of a
    text. To S servers a rank sends ``S · rows · (in + out)`` or ``out · (in + 1)`` numbers, like a ring of 2
    S ranks.
    """
    return rows * (inputs + outputs) * ranks < 2 * outputs * (inputs + 1)


class Factors:
    """Factors of one fully connected layer in a step, and their exchange.

    Parameters
    ----------
    layer : nn.Linear
        Layer whose forward passes are watched.
    rows : sequence of int
        Samples of each rank in a step, times the positions of a text.

    Attributes
    ----------
    shape : (int, int, int, bool)
        Largest number of rows of a rank, inputs, outputs, and whether there is a bias.
    """

    def __init__(self, layer: nn.Linear, rows: list[int]) -> None:
        self.layer, self.rows = layer, rows
        self.shape = max(rows), layer.in_features, layer.out_features, layer.bias is not None
        self.activations: list[Tensor] = []
        self.errors: list[Tensor] = []
        layer.register_forward_hook(self._watch)

    def _watch(self, layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(partial(self._keep, given[0].detach().flatten(0, -2)))

    def _keep(self, activations: Tensor, errors: Tensor) -> None:
        self.activations.append(activations)
        self.errors.append(errors.flatten(0, -2))

    def sum_up(self, comm: Comm, gradient: Tensor) -> None:
        """Write the sum of all ranks' gradients of this layer into `gradient`, its bucket.

        The sum replaces the result of this rank's backward pass.  With few rows per rank this sends fewer
        bytes than an all-reduce: see :func:`are_shorter`.
        """
        own = self.take(gradient.dtype)
        width = own.shape[1]
        everyones = comm.empty(sum(self.rows) * width, gradient.dtype)
        parts = list(everyones.split([rows * width for rows in self.rows]))
        parts[comm.rank].copy_(own.flatten())
        gather_in_order(comm, parts)
        code, wire = FactorCode(0, 1, sum(self.rows), *self.shape[1:]), everyones.view(torch.uint8)
        comm.compute(partial(code.decode, wire, gradient), cost=2 * sum(self.rows) * len(gradient))

    def take(self, dtype: torch.dtype, rows: int = 0) -> Tensor:
        """Return this rank's factors of a step side by side, padded with zeros to this many rows."""
        own = torch.cat([torch.cat(self.activations), torch.cat(self.errors)], dim=1).to(dtype)
        self.activations.clear()
        self.errors.clear()
        return nn.functional.pad(own, (0, 0, 0, max(0, rows - len(own))))


@dataclass
class FactorCode(Codec):
    """Codec that encodes factors for a server.

    The server computes its range of the gradient from a push of `rows`.

    A bucket consists of a layer's bias, followed by its weight.  The server's range is number `part` of
    `parts`.
    """

    part: int
    parts: int
    rows: int
    inputs: int
    outputs: int
    has_bias: bool

    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        return self.rows * (self.inputs + self.outputs) * dtype.itemsize

    def encode(self, tensor: Tensor) -> Tensor:
        """Return factors, shape (rows, inputs + outputs), as bytes."""
        return tensor.view(-1).view(torch.uint8)

    def _decode(self, wire: Tensor, into: Tensor) -> None:
        activations, errors = wire.view(into.dtype).view(self.rows, -1).tensor_split([self.inputs], dim=1)
        bias = [errors.sum(dim=0)] if self.has_bias else []
        whole = torch.cat([*bias, (errors.T @ activations).view(-1)])
        into.copy_(whole.tensor_split(self.parts)[self.part])


def factored(model: nn.Module, experiment: Experiment, ranks: int) -> list[Factors]:
    """Watch a model's fully connected layers whose factors are shorter than their gradients."""
    positions = experiment.data.context if experiment.model.name == "transformer" else 1
    rows = [experiment.local_batch(rank) * positions for rank in range(experiment.workers)]
    return [
        Factors(layer, rows)
        for layer in model.modules()
        if isinstance(layer, nn.Linear)
        and are_shorter(max(rows), layer.in_features, layer.out_features, ranks)
    ]
