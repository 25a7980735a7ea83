"""Derivatives of a part of a network, of which the rest of the chain rule comes from elsewhere.

Autograd's engine is called as ``torch.autograd.backward`` and ``torch.autograd.grad`` call it in the
end.  Given a gradient, these look at its shape with a library for symbolic mathematics, which takes a
fresh process seconds to load.  Without one they look at what they got in Python, and a share of a loss
is one more product: 40 of the 190 µs of a short step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_run = torch.autograd.Variable._execution_engine.run_backward


def derivative(output: Tensor, inputs: Sequence[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    """The loss's gradient with respect to `inputs`, from that with respect to `output`, which has its shape.

    The same as ``torch.autograd.grad(output, inputs, gradient)``.
    """
    return _run(
        (output,), (gradient,), False, False, tuple(inputs), allow_unreachable=False, accumulate_grad=False
    )


def backward(output: Tensor, gradient: Tensor) -> None:
    """Add up derivatives where they belong: ``output.backward(gradient)``."""
    _run((output,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def propagate(loss: Tensor, share: float) -> None:
    """Add the gradient of `share` times a loss to the weights': ``(loss * share).backward()``."""
    backward(loss, torch.full_like(loss, share))
