"""Derivatives of a part of a network, of which the rest of the chain rule comes from elsewhere.

Autograd's engine is called as ``torch.autograd.backward`` and ``torch.autograd.grad`` call it in the
end.  These look at the shapes they are given with a library for symbolic mathematics, which takes a
fresh process seconds to load, and of a step of 190 µs takes 40.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Sequence

import torch
from torch import Tensor

_run = torch.autograd.Variable._execution_engine.run_backward


def derivative(output: Tensor, inputs: Sequence[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    """The loss's gradient with respect to `inputs`, from that with respect to `output`, of its shape.

    The same as ``torch.autograd.grad(output, inputs, gradient)``.
    """
    return _run((output,), (gradient,), False, False, tuple(inputs), allow_unreachable=False, accumulate_grad=False)


def backward(output: Tensor, gradient: Tensor) -> None:
    """Add up derivatives where they belong: ``output.backward(gradient)``, of the shape of `output`."""
    _run((output,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def propagate(loss: Tensor, share: float) -> None:
    """Add the gradient of `share` times a loss, of shape (), to the weights': ``(loss * share).backward()``."""
    backward(loss, number(share, loss.dtype, loss.device))


@lru_cache(maxsize=64)
def number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor of shape (), made once and only read: on a GPU, to make it is to wait."""
    return torch.tensor(value, dtype=dtype, device=device)
