"""A model by its sizes alone: what every rank holds where no numbers are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator

import torch

from dlpar.comm.simulation.ghost import Ghost

if TYPE_CHECKING:
    from dlpar.platforms import Workload


class Parameter(Ghost):
    """A layer's weights: how many, and the FLOPs a sample costs there."""

    __slots__ = ("flops",)
    requires_grad = True

    def __init__(self, n: int, dtype: torch.dtype, flops: float) -> None:
        super().__init__(n, dtype)
        self.flops = flops


class Outline:
    """The layers of a workload, in the place of a model.

    Parameters
    ----------
    workload : Workload
        Its layers.
    dtype : torch.dtype
        Of weights and gradients.

    Attributes
    ----------
    flops : float
        Of a sample, forward and backward.
    """

    def __init__(self, workload: Workload, dtype: torch.dtype) -> None:
        # A model lists its layers as they compute, a workload as the backward pass finishes them.
        self._parameters = [Parameter(layer.parameters, dtype, layer.flops) for layer in reversed(workload.layers)]
        self.flops = workload.flops

    def parameters(self) -> Iterator[Parameter]:
        return iter(self._parameters)

    def __call__(self, x: torch.Tensor) -> Ghost:
        raise TypeError("an outline has no numbers to compute with")
