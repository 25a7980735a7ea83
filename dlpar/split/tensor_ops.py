"""Messages of a cut layer: operators that exchange tensors forward, and their gradients backward.

Follows Shoeybi et al. (Megatron-LM, arXiv 1909.08053, section 3): `copied` is their f, `added` their g.

============  =====================================  =====================================
operator      forward                                backward
============  =====================================  =====================================
`copied`      nothing                                all-reduce
`added`       all-reduce                             nothing
`gathered`    all-gather                             this rank's piece
============  =====================================  =====================================

Behind `added` and `gathered` every rank computes the same, so each has the whole gradient without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from dlpar.collectives import ring_allgather, ring_allreduce, ring_reduce_scatter
from dlpar.split.split import narrowed

if TYPE_CHECKING:
    from dlpar.comm import Comm


class TensorGroup:
    """The ranks a layer is cut over (the tensor-parallel group), as its operators use them.

    Parameters
    ----------
    comm : Comm
        These ranks.
    pause : callable, optional
        Gives the context in which a pass stops for messages; default: none.
    weights_wait : bool, default False
        Whether the backward pass leaves gradients of weights to a pass of their own, which is charged for them.
    """

    def __init__(
        self,
        comm: Comm,
        pause: Callable[[], AbstractContextManager] = nullcontext,
        weights_wait: bool = False,
    ) -> None:
        self.comm, self.rank, self.size, self.weights_wait = comm, comm.rank, comm.size, weights_wait
        self._pause = pause

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors, of any shape."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        with self._pause():
            ring_allreduce(self.comm, total.view(-1))
        return total

    def gather(self, piece: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
        """Return every rank's piece, in the order of ranks; `sizes` are their lengths along `dim`."""
        shape = list(piece.shape)
        pieces = [self.comm.empty([*shape[:dim], size, *shape[dim + 1 :]], piece.dtype) for size in sizes]
        pieces[self.rank].copy_(piece.detach())
        with self._pause():
            ring_allgather(self.comm, turned([piece.view(-1) for piece in pieces]))
        return pieces

    def scatter(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's piece, one of equal ones along `dim`, of the sum of all ranks' tensors."""
        pieces = [
            piece.clone(memory_format=torch.contiguous_format) for piece in tensor.chunk(self.size, dim)
        ]
        with self._pause():
            ring_reduce_scatter(self.comm, turned([piece.view(-1) for piece in pieces]))
        return pieces[self.rank]

    def charge(self, flops: float) -> None:
        """Charge for FLOPs where the clock is not the wall's."""
        self.comm.compute(lambda: None, cost=flops)


def turned(chunks: list[Tensor]) -> list[Tensor]:
    """Order chunks for a ring, in which rank r owns chunk r + 1."""
    return [chunks[-1], *chunks[:-1]]


class _Pair(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Callable, backward: Callable, *weights: Tensor) -> Tensor:
        ctx.back, ctx.others = backward, [None] * (2 + len(weights))
        return forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(gradient), *ctx.others


def pair(
    x: Tensor,
    forward: Callable[[Tensor], Tensor],
    backward: Callable[[Tensor], Tensor | None],
    *weights: Tensor,
) -> Tensor:
    """Compute ``forward(x)``, whose gradient is turned into that of `x` by `backward`.

    `backward` is also called if only `weights` need a gradient, to which it must add by itself.
    """
    return _Pair.apply(x, forward, backward, *weights)


def unchanged(x: Tensor) -> Tensor:
    """Return the same tensor: nothing is sent in this direction."""
    return x.view_as(x)


def copied(x: Tensor, group: TensorGroup) -> Tensor:
    """Hand what every rank has to layers each rank has a piece of; their gradients add up (f)."""
    return pair(narrowed(x), forward=unchanged, backward=group.sum)


def added(part: Tensor, group: TensorGroup) -> Tensor:
    """Add up all ranks' parts (g)."""
    return pair(narrowed(part), forward=group.sum, backward=unchanged)


def gathered(piece: Tensor, group: TensorGroup, sizes: Sequence[int], dim: int) -> Tensor:
    """Put all ranks' pieces side by side along `dim`, where `sizes` are their lengths by rank."""
    start, length = sum(sizes[: group.rank]), sizes[group.rank]
    return pair(
        narrowed(piece),
        forward=lambda own: torch.cat(group.gather(own, sizes, dim), dim),
        backward=lambda gradient: gradient.narrow(dim, start, length),
    )


def charged(output: Tensor, group: TensorGroup, flops: float, back: float | None = None) -> Tensor:
    """Charge for `flops` forward, and for `back` (default: twice as many) backward."""

    def charge(x: Tensor, cost: float) -> Tensor:
        group.charge(cost)
        return unchanged(x)

    back = 2 * flops if back is None else back
    return pair(output, forward=lambda x: charge(x, flops), backward=lambda x: charge(x, back))
