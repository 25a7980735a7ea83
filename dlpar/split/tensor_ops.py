"""What the ranks of a cut layer say to each other: operators in pairs, each the other's backward pass.

After Shoeybi et al. (Megatron-LM, arXiv 1909.08053, section 3): `copied` is their f, `added` their g.

============  =====================================  =====================================
operator      forward                                backward
============  =====================================  =====================================
`copied`      nothing                                all-reduce
`added`       all-reduce                             nothing
`gathered`    all-gather                             this rank's piece
============  =====================================  =====================================

Behind `added` and `gathered` every rank computes the same from there on, so each has the whole
gradient without being told.
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


class Ways:
    """The ranks a layer is cut over, as its operators see them.

    Parameters
    ----------
    comm : Comm
        These ranks.
    pause : callable, optional
        From ``"forward"`` or ``"backward"`` to the context in which that pass stops for messages; default: none.
    weights_wait : bool, default False
        Whether the backward pass leaves gradients of weights to a pass of their own, which is charged for them.
    """

    def __init__(
        self,
        comm: Comm,
        pause: Callable[[str], AbstractContextManager] | None = None,
        weights_wait: bool = False,
    ) -> None:
        self.comm, self.rank, self.size, self.weights_wait = comm, comm.rank, comm.size, weights_wait
        self._pause = pause or (lambda during: nullcontext())

    def sum(self, tensor: Tensor, during: str) -> Tensor:
        """The sum of all ranks' tensors, of any shape."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        with self._pause(during):
            ring_allreduce(self.comm, total.view(-1))
        return total

    def gather(self, piece: Tensor, sizes: Sequence[int], dim: int, during: str) -> list[Tensor]:
        """Every rank's piece, in the order of ranks; along `dim` each is as long as `sizes` says."""
        shape = list(piece.shape)
        pieces = [self.comm.empty([*shape[:dim], size, *shape[dim + 1 :]], piece.dtype) for size in sizes]
        pieces[self.rank].copy_(piece.detach())
        with self._pause(during):
            ring_allgather(self.comm, turned([piece.view(-1) for piece in pieces]))
        return pieces

    def scatter(self, tensor: Tensor, dim: int, during: str) -> Tensor:
        """This rank's piece, one of equal ones along `dim`, of the sum of all ranks' tensors."""
        pieces = [
            piece.clone(memory_format=torch.contiguous_format) for piece in tensor.chunk(self.size, dim)
        ]
        with self._pause(during):
            ring_reduce_scatter(self.comm, turned([piece.view(-1) for piece in pieces]))
        return pieces[self.rank]

    def charged(self, output: Tensor, flops: float, back: float | None = None) -> Tensor:
        """The same, where the clock is not the wall's charged for: `flops` now, and `back` (default: twice as many)
        on the way back."""
        return _Charged.apply(output, self.comm, flops, 2 * flops if back is None else back)


def turned(chunks: list[Tensor]) -> list[Tensor]:
    """Chunks for a ring, in which rank r owns chunk r + 1."""
    return [chunks[-1], *chunks[:-1]]


def copied(x: Tensor, ways: Ways) -> Tensor:
    """f: what every rank has, on its way into layers each rank has a piece of; their gradients add up."""
    return _Copied.apply(narrowed(x), ways)


def added(part: Tensor, ways: Ways) -> Tensor:
    """g: the sum of what every rank has a part of."""
    return _Added.apply(narrowed(part), ways)


def gathered(piece: Tensor, ways: Ways, sizes: Sequence[int], dim: int) -> Tensor:
    """All ranks' pieces side by side along `dim`, where each is as long as `sizes` says, by rank."""
    return _Gathered.apply(narrowed(piece), ways, sizes, dim % piece.dim())


class _Copied(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ways: Ways) -> Tensor:
        ctx.ways = ways
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.ways.sum(gradient, "backward"), None


class _Added(Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, ways: Ways) -> Tensor:
        return ways.sum(part, "forward")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, piece: Tensor, ways: Ways, sizes: Sequence[int], dim: int) -> Tensor:
        ctx.dim, ctx.start, ctx.length = dim, sum(sizes[: ways.rank]), sizes[ways.rank]
        return torch.cat(ways.gather(piece, sizes, dim, "forward"), dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient.narrow(ctx.dim, ctx.start, ctx.length), None, None, None


class _Charged(Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, comm: Comm, flops: float, back: float) -> Tensor:
        ctx.comm, ctx.back = comm, back
        comm.compute(lambda: None, cost=flops)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.comm.compute(lambda: None, cost=ctx.back)
        return gradient, None, None, None
