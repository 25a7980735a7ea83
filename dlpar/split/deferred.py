"""Layers whose weights' gradients wait: the backward pass cut in two, as zero-bubble schedules need it.

A layer's backward pass is two products: one for the gradient of its input, for which the
stage before waits, and one for that of its weight, for which no stage waits (Qi et al.,
arXiv 2401.10241, section 1).  Two calls of autograd would walk the graph twice, and
repeat what lies between layers.  So these layers give autograd the first product
alone, and keep the tensors that the second needs.  Normalisation and positions, whose gradients
are sums and no products, are left to autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.grad import conv2d_input, conv2d_weight

from dlpar.memory import Memory
from dlpar.models import Tied
from dlpar.split.split import narrowed


class Later:
    """The gradients of weights that wait, by micro-batch.

    Parameters
    ----------
    layers : nn.Module
        Its linear layers, convolutions, embeddings and tied outputs wait from now on; changed in place.
    memory : Memory
        Counts the tensors that are kept.
    """

    def __init__(self, layers: nn.Module, memory: Memory) -> None:
        self.memory = memory
        self._waiting: dict[int, list[tuple[nn.Module, Tensor, Tensor]]] = {}
        for layer in layers.modules():
            if type(layer) in PRODUCTS:
                layer.forward = partial(self._forward, layer)

    def _forward(self, layer: nn.Module, x: Tensor) -> Tensor:
        # The weight is an argument so that autograd comes here where the input has no gradient.
        return _WithoutWeight.apply(narrowed(x), layer.weight, layer, self)

    def begin(self, micro: int) -> None:
        """Begin the backward pass of a micro-batch."""
        self._now = self._waiting[micro] = []

    def put_off(self, layer: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """Keep a layer's input and its output's gradient until the gradient of its weight is made."""
        for tensor in (x, gradient):
            self.memory.hold("activations", tensor)
        self._now.append((layer, x, gradient))

    def flops(self, micro: int) -> int:
        """Count the FLOPs that wait of a micro-batch, two a multiply-add; an embedding's gradient takes none."""
        return sum(
            2 * gradient.numel() * layer.weight[0].numel()
            for layer, _, gradient in self._waiting[micro]
            if not isinstance(layer, nn.Embedding)
        )

    @torch.no_grad()
    def end(self, micro: int) -> None:
        """Add the gradients that wait of a micro-batch."""
        for layer, x, gradient in self._waiting.pop(micro):
            products = PRODUCTS[type(layer)]
            layer.weight.grad.add_(products.of_weight(layer, x, gradient))
            if getattr(layer, "bias", None) is not None:
                dims = [dim for dim in range(gradient.dim()) if dim != products.channels % gradient.dim()]
                layer.bias.grad.add_(gradient.sum(dims))
            for tensor in (x, gradient):
                self.memory.drop(tensor)


class _WithoutWeight(Function):
    """A layer whose backward pass gives the gradient of its input alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: nn.Module, later: Later) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer, ctx.later = layer, later
        return type(layer).forward(layer, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,), layer = ctx.saved_tensors, ctx.layer
        ctx.later.put_off(layer, x, gradient)
        wanted = ctx.needs_input_grad[0]
        return PRODUCTS[type(layer)].of_input(layer, x, gradient) if wanted else None, None, None, None


class Products(NamedTuple):
    """The two products of a backward pass.

    Attributes
    ----------
    of_input, of_weight : callable
        ``(layer, input, gradient of the output)`` to the gradient of the input, and to that of the weight.
    channels : int
        Dimension of the output along which a bias has elements.
    """

    of_input: Callable[[Any, Tensor, Tensor], Tensor]
    of_weight: Callable[[Any, Tensor, Tensor], Tensor]
    channels: int = -1


def _of_linear_input(layer: nn.Linear | Tied, x: Tensor, gradient: Tensor) -> Tensor:
    return gradient @ layer.weight.to(gradient.dtype)


def _of_linear_weight(layer: nn.Linear | Tied, x: Tensor, gradient: Tensor) -> Tensor:
    return gradient.flatten(0, -2).T @ x.flatten(0, -2)


def _of_image(layer: nn.Conv2d, x: Tensor, gradient: Tensor) -> Tensor:
    settings = layer.stride, layer.padding, layer.dilation, layer.groups
    return conv2d_input(x.shape, layer.weight.to(x.dtype), gradient, *settings)


def _of_kernel(layer: nn.Conv2d, x: Tensor, gradient: Tensor) -> Tensor:
    settings = layer.stride, layer.padding, layer.dilation, layer.groups
    return conv2d_weight(x, layer.weight.shape, gradient, *settings)


def _of_embedding(layer: nn.Embedding, x: Tensor, gradient: Tensor) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(gradient, x, len(layer.weight), -1, False)


_LINEAR = Products(_of_linear_input, _of_linear_weight)
PRODUCTS: dict[type[nn.Module], Products] = {
    nn.Linear: _LINEAR,
    Tied: _LINEAR,
    nn.Conv2d: Products(_of_image, _of_kernel, channels=1),
    nn.Embedding: Products(lambda *_: None, _of_embedding),
}
"""Layers whose weights' gradients can wait."""
