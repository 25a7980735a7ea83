"""A model by its sizes alone: what every rank holds where no numbers are computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from dlpar.comm.simulation.ghost import Ghost

if TYPE_CHECKING:
    from dlpar.platforms import Workload


DTYPES = {1: torch.float8_e4m3fn, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
"""By the bytes of an element."""


class Parameter(Ghost):
    """A layer's weights: how many, the FLOPs a sample costs there, and the elements of what it gives on."""

    __slots__ = ("flops", "outputs")
    requires_grad = True

    def __init__(self, n: int, dtype: torch.dtype, flops: float, outputs: int = 0) -> None:
        super().__init__(n, dtype)
        self.flops, self.outputs = flops, outputs


class Outline:
    """The layers of a workload, in the place of a model.

    Parameters
    ----------
    workload : Workload
        Its layers, and the bytes of an element of weights and gradients.

    Notes
    -----
    Like a row of layers it has a length, can be sliced, and pieces can be added up.

    Attributes
    ----------
    flops : float
        Of a sample, forward and backward.
    """

    def __init__(self, workload: Workload) -> None:
        dtype = DTYPES[workload.itemsize]
        # A model lists its layers as they compute, a workload as the backward pass finishes them.
        self._parameters = [
            Parameter(layer.parameters, dtype, layer.flops, layer.outputs)
            for layer in reversed(workload.layers)
        ]
        self.flops = workload.flops

    def parameters(self) -> Iterator[Parameter]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __getitem__(self, layers: slice) -> Outline:
        return _of(self._parameters[layers])

    def __add__(self, other: Outline) -> Outline:
        return _of(self._parameters + other._parameters)

    def __call__(self, x: torch.Tensor) -> Ghost:
        raise TypeError("an outline has no numbers to compute with")


def _of(parameters: list[Parameter]) -> Outline:
    """An outline of some layers."""
    part = Outline.__new__(Outline)
    part._parameters, part.flops = parameters, sum(parameter.flops for parameter in parameters)
    return part
