"""Some layers on one rank, and what the passes of micro-batches leave there until they are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from dlpar.split.derivative import backward
from dlpar.split.precision import narrowed

if TYPE_CHECKING:
    from dlpar.split.deferred import Later
    from dlpar.split.split import Task


class Held(NamedTuple):
    """A micro-batch between its forward and its backward pass."""

    x: Tensor
    y: Tensor
    output: Tensor | None
    samples: int


class Chunk:
    """Consecutive layers.

    Parameters
    ----------
    task : Task
        What they are layers for.
    layers : nn.Sequential
        In the order in which they compute.
    flops : float
        Of a sample, forward and backward.
    takes, gives : tuple of int or None
        Shape of what comes from the layers before for a sample, and of what goes to those behind; None where
        there are none.
    later : Later, optional
        What puts off the gradients of weights, where they have a pass of their own.
    charges : bool
        Whether layers charge for their computing themselves, as those that send messages in it do.
    """

    def __init__(
        self,
        task: Task,
        layers: nn.Sequential,
        flops: float,
        takes: tuple[int, ...] | None,
        gives: tuple[int, ...] | None,
        later: Later | None = None,
        charges: bool = False,
    ) -> None:
        self.task, self.layers, self.flops, self.takes, self.gives = task, layers, flops, takes, gives
        self.is_first, self.is_last, self.later = takes is None, gives is None, later
        self.recompute, self.charges = task.experiment.split.recompute, charges
        self._held: dict[int, Held] = {}

    def forward(self, micro: int, x: Tensor, y: Tensor) -> Tensor:
        """The layers' output for `x`, or, of the model's last, the mean loss of that and `y`; kept for later passes."""

        def work() -> Tensor:
            if not self.is_first:
                x.requires_grad_()
            with torch.set_grad_enabled(not self.recompute):
                return self._through(x, y)

        output = self._compute(work, len(y) / 3)
        if self.recompute:
            self._hold("activations", x)
        self._held[micro] = Held(x, y, None if self.recompute else output, len(y))
        return output

    def again(self, micro: int) -> None:
        """Where activations were not kept, make them once more from the input."""
        held = self._held[micro]
        output = self._compute(lambda: self._through(held.x, held.y), held.samples / 3)
        self._held[micro] = held._replace(output=output)

    def backward(self, micro: int, gradient: Tensor) -> Tensor | None:
        """From the gradient of the output to that of the input, adding to those of weights unless they wait."""
        held = self._held.pop(micro)

        def work() -> Tensor | None:
            if self.later:
                self.later.begin(micro)
            backward(held.output, gradient)
            return held.x.grad

        result = self._compute(work, held.samples * (1 if self.later else 2) / 3)
        if self.recompute:
            self._drop(held.x)
        return result

    def weight(self, micro: int, samples: int) -> None:
        """Add to the gradients of weights what waited since the backward pass."""
        cost = self.later.flops(micro) if self.charges else self.flops * samples / 3
        self.task.comm.compute(lambda: self.later.end(micro), cost=cost)

    def _through(self, x: Tensor, y: Tensor) -> Tensor:
        with self.task.forward_pass():
            output = self.layers(x)
            return self.task.criterion(output, y) if self.is_last else narrowed(output)

    def _compute(self, work: Callable[[], Any], share: float) -> Any:
        """Do `work`, which costs as much as `share` samples."""
        return work() if self.charges else self.task.comm.compute(work, cost=self.flops * share)

    def _hold(self, kind: str, tensor: Tensor) -> None:
        if isinstance(tensor, Tensor):
            self.task.memory.hold(kind, tensor)

    def _drop(self, tensor: Tensor) -> None:
        if isinstance(tensor, Tensor):
            self.task.memory.drop(tensor)
