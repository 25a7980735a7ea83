"""Layers whose weights' gradients wait: the backward pass cut in two, as zero-bubble schedules need it.

A layer's backward pass is two products, one for the gradient of its input, which the
stage before waits for, and one for that of its weight, which nobody does (Qi et al.,
arXiv 2401.10241, section 1).  Two calls of autograd would walk the graph twice, and
repeat what lies between layers.  So these layers give autograd the first product
alone, and keep what the second needs.  Normalisation and positions, whose gradients
are sums and no products, are left to autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from dlpar.models import Tied
from dlpar.split.split import narrowed

if TYPE_CHECKING:
    from dlpar.memory import Memory

Add = Callable[[nn.Module, Tensor, Tensor], None]
"""Adds to the gradients of a layer's weights, from its input and its output's gradient."""


class Later:
    """What waits, by micro-batch.

    Parameters
    ----------
    layers : nn.Module
        Those of its linear layers, convolutions, embeddings and tied outputs wait from now on; changed in place.
    memory : Memory
        Where what they keep is counted.
    """

    def __init__(self, layers: nn.Module, memory: Memory) -> None:
        self.memory = memory
        self._waiting: dict[int, list[tuple[Add, nn.Module, Tensor, Tensor]]] = {}
        for layer in layers.modules():
            function = DEFERRED.get(type(layer))
            if function is not None:
                layer.forward = partial(_forward, function, layer, self)

    def begin(self, micro: int) -> None:
        """The backward pass of a micro-batch begins."""
        self._now = self._waiting[micro] = []

    def put_off(self, add: Add, layer: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """``add(layer, x, gradient)``, of the layer's input and its output's gradient, can wait."""
        for tensor in (x, gradient):
            self.memory.hold("activations", tensor)
        self._now.append((add, layer, x, gradient))

    def flops(self, micro: int) -> int:
        """Of what waits of a micro-batch, two a multiply-add; an embedding's gradient takes none."""
        return sum(
            2 * gradient.numel() * layer.weight[0].numel()
            for add, layer, _, gradient in self._waiting[micro]
            if add is not _add_embedding
        )

    @torch.no_grad()
    def end(self, micro: int) -> None:
        """Do what waits of a micro-batch."""
        for add, layer, x, gradient in self._waiting.pop(micro):
            add(layer, x, gradient)
            for tensor in (x, gradient):
                self.memory.drop(tensor)


def _forward(function: type[Function], layer: nn.Module, later: Later, x: Tensor) -> Tensor:
    return function.apply(narrowed(x), layer.weight, getattr(layer, "bias", None), layer, later)


class _Linear(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Module, later: Later
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.later = layer, later
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.later.put_off(_add_linear, ctx.layer, x, gradient)
        return (
            gradient @ weight.to(gradient.dtype) if ctx.needs_input_grad[0] else None,
            None,
            None,
            None,
            None,
        )


def _add_linear(layer: nn.Module, x: Tensor, gradient: Tensor) -> None:
    rows = gradient.flatten(0, -2)
    layer.weight.grad.add_(rows.T @ x.flatten(0, -2))
    if getattr(layer, "bias", None) is not None:
        layer.bias.grad.add_(rows.sum(0))


class _Convolution(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d, later: Later
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.later = layer, later
        return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, _ = ctx.saved_tensors
        ctx.later.put_off(_add_convolution, ctx.layer, x, gradient)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        return _convolution_backward(ctx.layer, x, gradient, [True, False, False])[0], None, None, None, None


def _add_convolution(layer: nn.Conv2d, x: Tensor, gradient: Tensor) -> None:
    _, weight, bias = _convolution_backward(layer, x, gradient, [False, True, layer.bias is not None])
    layer.weight.grad.add_(weight)
    if bias is not None:
        layer.bias.grad.add_(bias)


def _convolution_backward(
    layer: nn.Conv2d, x: Tensor, gradient: Tensor, wanted: list[bool]
) -> list[Tensor | None]:
    """Gradients of input, weight and bias, those that are wanted."""
    return torch.ops.aten.convolution_backward(
        gradient,
        x,
        layer.weight.to(x.dtype),
        [layer.out_channels],
        layer.stride,
        layer.padding,
        layer.dilation,
        False,
        [0] * len(layer.stride),
        layer.groups,
        wanted,
    )


class _Embedding(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: None, layer: nn.Embedding, later: Later) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer, ctx.later = layer, later
        return F.embedding(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        ctx.later.put_off(_add_embedding, ctx.layer, ctx.saved_tensors[0], gradient)
        return None, None, None, None, None


def _add_embedding(layer: nn.Embedding, x: Tensor, gradient: Tensor) -> None:
    layer.weight.grad.index_add_(0, x.flatten(), gradient.flatten(0, -2))


DEFERRED: dict[type[nn.Module], type[Function]] = {
    nn.Linear: _Linear, Tied: _Linear, nn.Conv2d: _Convolution, nn.Embedding: _Embedding,
}  # fmt: skip
"""Layers whose weights' gradients can wait."""
