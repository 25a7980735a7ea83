"""Autograd's engine, called directly, gives what torch's own calls give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dlpar.split.split import backward, propagate

types = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def network(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    """A network and inputs, the same at every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).to(dtype), torch.randn(
        7, 5, dtype=dtype
    )


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters()]


@types
@pytest.mark.parametrize("share", [1.0, 0.3, 0.0])
def test_a_share_of_a_loss_is_propagated_as_torch_does(dtype, share):
    (ours, x), (theirs, _) = network(dtype), network(dtype)
    for _ in range(2):  # the second adds to the first
        propagate(ours(x).square().mean(), share)
        (theirs(x).square().mean() * share).backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(ours), gradients(theirs)))


@types
def test_derivatives_of_a_part_of_a_network(dtype):
    (ours, x), (theirs, _) = network(dtype), network(dtype)
    of_output = torch.ones(7, 3, dtype=dtype) / 3
    x.requires_grad_()
    of_x, *of_weights = torch.autograd.grad(theirs(x), [x, *theirs.parameters()], of_output)
    backward(ours(x), of_output)
    assert torch.equal(x.grad, of_x)
    assert all(torch.equal(a, b) for a, b in zip(gradients(ours), of_weights, strict=True))
