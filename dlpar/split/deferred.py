"""Layers whose weights' gradients wait: the backward pass cut in two, as zero-bubble schedules need it.

A layer's backward pass is two products: one for the gradient of its input, for which the
stage before waits, and one for that of its weight, for which no stage waits (Qi et al.,
arXiv 2401.10241, section 1).  If a whole stage called autograd twice, it would repeat the work
between layers.  So each layer has a graph of its own, which is walked twice.  Normalisation and
positions, whose gradients are sums and no products, are left to the stage's graph.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dlpar.memory import Memory
from dlpar.models import Tied
from dlpar.split.split import backward, derivative, narrowed
from dlpar.split.tensor_ops import pair

WAITING = (nn.Linear, nn.Conv2d, nn.Embedding, Tied)
"""Layers whose weights' gradients can wait."""


class Later:
    """The gradients of weights that wait, by micro-batch.

    Parameters
    ----------
    layers : nn.Module
        Its linear layers, convolutions, embeddings and tied outputs wait from now on; changed in place.
    memory : Memory
        Counts the gradients that are kept.
    """

    def __init__(self, layers: nn.Module, memory: Memory) -> None:
        self.memory = memory
        # For each layer: its output with the graph, and the gradient of the output.
        self._waiting: dict[int, list[tuple[Any, Tensor, Tensor]]] = {}
        for layer in layers.modules():
            if type(layer) in WAITING:
                layer.forward = partial(self._forward, layer)

    def _forward(self, layer: Any, x: Tensor) -> Tensor:
        """Compute a layer, so that the backward pass gives the gradient of its input alone."""
        compute, x = partial(type(layer).forward, layer), narrowed(x)
        if not torch.is_grad_enabled():
            return compute(x)
        given = x.detach().requires_grad_(x.requires_grad)
        output = compute(given)

        def of_input(gradient: Tensor) -> Tensor | None:
            self.memory.hold("activations", gradient)
            self._now.append((layer, output, gradient))
            return derivative(output, given, gradient) if given.requires_grad else None

        return pair(x, lambda x: output.detach(), of_input, layer.weight)

    def begin(self, micro: int) -> None:
        """Begin the backward pass of a micro-batch."""
        self._now = self._waiting[micro] = []

    def flops(self, micro: int) -> int:
        """Count the FLOPs that wait of a micro-batch, two a multiply-add; an embedding's gradient takes none."""
        return sum(
            2 * gradient.numel() * layer.weight[0].numel()
            for layer, _, gradient in self._waiting[micro]
            if not isinstance(layer, nn.Embedding)
        )

    def end(self, micro: int) -> None:
        """Add the gradients that wait of a micro-batch."""
        for layer, output, gradient in self._waiting.pop(micro):
            backward(output, gradient, tuple(layer.parameters()))
            self.memory.drop(gradient)
