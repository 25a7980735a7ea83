"""Star: one rank talks to every other, one after the other.

The root's link carries N-1 whole tensors each way: simple, and the slowest for
large tensors on many ranks.  A parameter server with one shard is a star.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


def star_reduce(comm: Comm, tensor: torch.Tensor, root: int = 0, ranks: Sequence[int] | None = None) -> None:
    """Sum `tensor` over all ranks, in place on `root`; the others keep what they had.

    Every rank but the root sends one message; the root adds them in the order of
    `ranks`, so that a run can be repeated to the last bit.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, also 0.
    root : int
        The rank that gets the sum.
    ranks : sequence of int, optional
        The ranks that take part, `root` among them; all by default.
    """
    if comm.rank != root:
        comm.send(tensor, root)
        return
    add_from(comm, tensor, [source for source in ranks or range(comm.size) if source != root])


def add_from(comm: Comm, tensor: torch.Tensor, sources: Sequence[int]) -> None:
    """Add what these ranks send to `tensor`, in place, in this order."""
    arriving = comm.empty(len(tensor), tensor.dtype)
    for source in sources:
        comm.recv(arriving, source, tag=0)
        comm.compute(lambda: tensor.add_(arriving), cost=len(tensor))


def star_broadcast(
    comm: Comm, tensor: torch.Tensor, root: int = 0, ranks: Sequence[int] | None = None
) -> None:
    """Copy `root`'s `tensor` to all ranks: the root sends N-1 messages, one after the other.

    Parameters
    ----------
    comm, tensor, root, ranks
        As in :func:`star_reduce`.
    """
    if comm.rank != root:
        comm.recv(tensor, root, tag=0)
        return
    for dest in ranks or range(comm.size):
        if dest != root:
            comm.send(tensor, dest)


def star_allreduce(comm: Comm, tensor: torch.Tensor) -> None:
    """Sum `tensor` over all ranks, in place on every rank: a star reduce to rank 0, then a star broadcast.

    ``2 (N-1)`` messages of the whole tensor, all of them over rank 0's link.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, also 0.
    """
    star_reduce(comm, tensor)
    star_broadcast(comm, tensor)
