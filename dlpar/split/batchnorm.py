"""Batch normalisation whose statistics are those of the global batch.

A replica that normalises with its own samples trains a different network than
one process would, even if gradients are averaged.  Summing the moments over all
ranks, forward and backward, makes both networks the same (Zhang et al., "Context Encoding",
CVPR 2018, section 3.1).
"""

from __future__ import annotations

import torch
from torch import nn

from dlpar.comm import Comm
from dlpar.split.tensor_ops import TensorGroup, pair


def synchronise_batchnorm(model: nn.Module, comm: Comm) -> None:
    """Replace every BatchNorm layer in `model` by one that uses the statistics of all ranks, in place."""
    for name, child in model.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(model, name, SyncBatchNorm(child, comm))
        else:
            synchronise_batchnorm(child, comm)


class SyncBatchNorm(nn.Module):
    """A BatchNorm layer with its statistics summed over the ranks of `comm`.

    Samples may differ in number from rank to rank.  Parameters, buffers and the
    layer's behaviour in evaluation are the wrapped layer's own.
    """

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm, comm: Comm) -> None:
        super().__init__()
        self.layer, self.group = layer, TensorGroup(comm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        if not self.training:
            return layer(x)
        x = x.to(layer.weight.dtype)  # statistics are in full precision, also in a forward pass in bfloat16
        # Backward the gradients are summed, too: every rank's loss depends on every rank's moments.
        total = pair(_moments(x), forward=self.group.sum, backward=self.group.sum)
        count = total[-1]
        mean, square = total[:-1].view(2, -1) / count
        mean, variance = mean.to(x.dtype), (square - mean**2).to(x.dtype)
        with torch.no_grad():
            # The running estimate uses the unbiased variance, as torch's does.
            layer.running_mean.lerp_(mean, layer.momentum)
            unbiased = variance * (count / (count - 1)).to(x.dtype)
            layer.running_var.lerp_(unbiased, layer.momentum)
            layer.num_batches_tracked += 1
        shape = (1, -1) + (1,) * (x.dim() - 2)
        normal = (x - mean.view(shape)) * torch.rsqrt(variance + layer.eps).view(shape)
        return normal * layer.weight.view(shape) + layer.bias.view(shape)


def _moments(x: torch.Tensor) -> torch.Tensor:
    """Return sum and sum of squares by channel, and the number of values: shape (2 C + 1,).

    They are float64, because the variance is a small difference of large numbers.
    """
    x = x.double()
    across = [d for d in range(x.dim()) if d != 1]
    count = x.new_tensor([x.numel() / x.shape[1]])
    return torch.cat([x.sum(across), (x * x).sum(across), count])
