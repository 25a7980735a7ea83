"""Derivatives of a part of a network, of which the rest of the chain rule comes from elsewhere."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor


def derivative(output: Tensor, inputs: Sequence[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    """The loss's gradient with respect to `inputs`, from that with respect to `output`.

    The same as ``torch.autograd.grad(output, inputs, gradient)``, which looks at the shapes it
    is given with a library for symbolic mathematics: loading that takes a fresh process seconds.
    """
    return torch.autograd.grad(_Begin.apply(output, gradient), inputs)


def backward(output: Tensor, gradient: Tensor) -> None:
    """Add up derivatives where they belong: ``output.backward(gradient)``, without that library."""
    _Begin.apply(output, gradient).backward()


class _Begin(torch.autograd.Function):
    """A number whose derivative with respect to an output is what it was told."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _one: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None
