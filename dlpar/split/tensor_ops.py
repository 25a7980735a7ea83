"""Operators that send messages within a layer: tensors forward, and their gradients backward.

They follow Shoeybi et al. (Megatron-LM, arXiv 1909.08053, section 3): `copied` is their f, `added` their g.

============  =====================================  =====================================
operator      forward                                backward
============  =====================================  =====================================
`copied`      nothing                                all-reduce
`added`       all-reduce                             nothing
`gathered`    all-gather                             this rank's piece
============  =====================================  =====================================

After `added` and `gathered` every rank computes the same values, so each has the whole gradient without a
message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from dlpar.collectives import ALLREDUCE, HALVES
from dlpar.comm.base import Comm, T
from dlpar.split.mesh import shares
from dlpar.split.split import narrowed

Operator = Callable[[Tensor], Any]
"""Function that maps a tensor, or its gradient, to another. A gradient that is not needed is None."""

Pause = Callable[..., AbstractContextManager]
"""Function that returns the context in which a pass stops for messages, such as ``Split.pause``."""


class TensorGroup:
    """Tensor-parallel group: the ranks over which a layer is cut, and the collectives that it uses.

    Parameters
    ----------
    comm : Comm
        These ranks.
    pause : callable, optional
        The context in which a pass stops for messages. By default, there is none.
    weights_wait : bool, default False
        Whether the backward pass leaves gradients of weights to a separate pass, which is charged for them
        (:class:`dlpar.split.pipeline.Later`).
    async_allreduce : bool, default False
        Whether the gradient of an input travels while the gradients of its layers' weights are computed.
    """

    def __init__(
        self,
        comm: Comm,
        pause: Pause = nullcontext,
        weights_wait: bool = False,
        async_allreduce: bool = False,
    ) -> None:
        self.comm, self.rank, self.size, self.weights_wait = comm, comm.rank, comm.size, weights_wait
        self._pause, self.async_allreduce = pause, async_allreduce
        kind = "library" if comm.world.native else "ring"
        self.allreduce = ALLREDUCE[kind]
        self._reduce_scatter, self._allgather = HALVES[kind]

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors. They may have any shape."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        with self._pause():
            self.allreduce(self.comm, total.view(-1))
        return total

    def sum_beside(self, tensor: Tensor, work: Callable[[], T]) -> T:
        """Sum all ranks' contiguous tensors in place during this rank's `work`.

        Return the result of `work`.
        """
        request = self.comm.start(self.allreduce, tensor.view(-1))
        result = work()
        with self._pause():
            request.wait()
        return result

    def gather(self, piece: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
        """Return every rank's piece, in the order of ranks. `sizes` are their lengths along `dim`."""
        shape = list(piece.shape)
        pieces = [self.comm.empty([*shape[:dim], size, *shape[dim + 1 :]], piece.dtype) for size in sizes]
        pieces[self.rank].copy_(piece.detach())
        with self._pause():
            self._allgather(self.comm, [piece.view(-1) for piece in pieces])
        return pieces

    def scatter(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's equal piece, along `dim`, of the sum of all ranks' tensors."""
        parts = tensor.chunk(self.size, dim)
        pieces = [part.clone(memory_format=torch.contiguous_format) for part in parts]
        with self._pause():
            self._reduce_scatter(self.comm, [piece.view(-1) for piece in pieces])
        return pieces[self.rank]

    def charge(self, flops: float, x: Tensor) -> Tensor:
        """Charge for FLOPs if the clock is not the wall clock. Return the same tensor."""
        self.comm.compute(lambda: None, cost=flops)
        return unchanged(x)


class _Pair(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Operator, backward: Operator, *weights: Tensor) -> Tensor:
        ctx.back, ctx.others = backward, [None] * (2 + len(weights))
        return forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(gradient), *ctx.others


def pair(x: Tensor, forward: Operator, backward: Operator, *weights: Tensor) -> Tensor:
    """Compute ``forward(x)``. `backward` turns the output's gradient into the gradient of `x`.

    `backward` is also called if only `weights` need a gradient. It adds to the gradients of these weights.
    """
    return _Pair.apply(x, forward, backward, *weights)


def unchanged(x: Tensor) -> Tensor:
    """Return the same tensor. Nothing is sent in this direction."""
    return x.view_as(x)


def copied(x: Tensor, group: TensorGroup) -> Tensor:
    """Pass a whole tensor to cut layers unchanged, and sum its gradients backward (f)."""
    return pair(narrowed(x), forward=unchanged, backward=group.sum)


def added(part: Tensor, group: TensorGroup) -> Tensor:
    """Sum all ranks' parts (g)."""
    return pair(narrowed(part), forward=group.sum, backward=unchanged)


def gathered(piece: Tensor, group: TensorGroup, total: int, dim: int) -> Tensor:
    """Concatenate all ranks' shares of `total` elements along `dim`."""
    places = shares(total, group.size)
    own, sizes = places[group.rank], list(map(len, places))
    whole = lambda piece: torch.cat(group.gather(piece, sizes, dim), dim)
    return pair(narrowed(piece), whole, lambda gradient: gradient.narrow(dim, own.start, len(own)))


def charged(output: Tensor, group: TensorGroup, flops: float, back: float | None = None) -> Tensor:
    """Charge for `flops` forward, and for `back` (default: twice as many) backward."""
    back = 2 * flops if back is None else back
    return pair(output, forward=partial(group.charge, flops), backward=partial(group.charge, back))


class _Columns(Function):
    """Linear layers that read one input, cut by outputs. See :func:`columns`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup, count: int, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        ctx.save_for_backward(x, *weights[:count])
        outputs = tuple(F.linear(x, w, b) for w, b in zip(weights[:count], weights[count:], strict=True))
        group.charge(sum(2 * y.numel() * x.shape[-1] for y in outputs), x)
        return outputs

    @staticmethod
    def backward(ctx: Any, *of_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (x, *weights), group = ctx.saved_tensors, ctx.group
        flops = sum(2 * y.numel() * x.shape[-1] for y in of_outputs)
        has_bias = ctx.needs_input_grad[3 + len(weights) :]

        def of_weights() -> list[Tensor | None]:
            rows = [(y.flatten(0, -2), x.flatten(0, -2)) for y in of_outputs]
            group.charge(flops, x)
            sums = [y.sum(0) if is_wanted else None for (y, _), is_wanted in zip(rows, has_bias)]
            return [*(y.T @ x for y, x in rows), *sums]

        if not ctx.needs_input_grad[0]:
            return None, None, None, *of_weights()
        of_x = sum(y @ w for y, w in zip(of_outputs, weights)).contiguous()
        group.charge(flops, x)
        return of_x, None, None, *group.sum_beside(of_x, of_weights)


def columns(x: Tensor, group: TensorGroup, layers: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
    """Compute linear layers of one input, cut by outputs.

    The computation of weight gradients hides the input gradient's message.

    Sources: Narayanan et al. (SC 2021); Megatron-LM's ``LinearWithGradAccumulationAndAsyncCommunication``.
    """
    parameters = [layer.weight for layer in layers], [layer.bias for layer in layers]
    return _Columns.apply(x, group, len(layers), *parameters[0], *parameters[1])


def synchronise_batchnorm(model: nn.Module, comm: Comm) -> None:
    """Replace every BatchNorm layer in `model`, in place, with one that uses the statistics of all ranks."""
    for name, child in model.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(model, name, SyncBatchNorm(child, comm))
        else:
            synchronise_batchnorm(child, comm)


class SyncBatchNorm(nn.Module):
    """BatchNorm layer with its statistics summed over the ranks of `comm`.

    A replica that normalises with its own samples trains a different network from that of one process, even
    if gradients are averaged.  Summing the moments over all ranks, forward and backward, makes both networks
    the same (Zhang et al., "Context Encoding", CVPR 2018, section 3.1).

    The layer needs weights, a momentum and running statistics. These are BatchNorm's defaults.

    Ranks may have different numbers of samples.  Parameters, buffers and the layer's behaviour in
    evaluation are those of the wrapped layer.  With micro-batches the networks differ: the statistics are of the
    ranks' micro-batches together, and one process has other micro-batches.
    """

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm, comm: Comm) -> None:
        super().__init__()
        self.layer: Any = layer
        self.group = TensorGroup(comm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        if not self.training:
            return layer(x)
        x = x.to(layer.weight.dtype)  # statistics stay in full precision in a bfloat16 forward pass
        # The backward pass sums gradients too, because every rank's loss depends on every rank's moments.
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
    """Return the sum and the sum of squares of each channel, and the number of values: shape (2 C + 1,).

    The sums are float64, because the variance is a small difference of large numbers.
    """
    x = x.double()
    across = [d for d in range(x.dim()) if d != 1]
    count = x.new_full((1,), x.numel() / x.shape[1])  # without a copy from the host, which would wait
    return torch.cat([x.sum(across), (x * x).sum(across), count])
