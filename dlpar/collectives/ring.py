"""Ring: every rank sends to its right neighbour and receives from its left, all at once.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations" (JPDC 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


def ring_allreduce(comm: Comm, tensor: torch.Tensor, ranks: Sequence[int] | None = None) -> None:
    """Sum `tensor` over all ranks, in place on every rank.

    Each rank sends ``2 (N-1)`` messages and ``2 (N-1)/N`` times the tensor's
    bytes, whatever N is: bandwidth-optimal.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, also below N: some chunks are then empty.
    ranks : sequence of int, optional
        The ranks that form the ring, in its order; all by default.  N is their number.
    """
    chunks = tensor.tensor_split(len(ranks or range(comm.size)))
    ring_reduce_scatter(comm, chunks, ranks)
    ring_allgather(comm, chunks, ranks)


def ring_reduce_scatter(
    comm: Comm, chunks: Sequence[torch.Tensor], ranks: Sequence[int] | None = None
) -> None:
    """Of N chunks, leave the sum of chunk ``rank + 1`` (mod N) on each rank; the others hold partial sums.

    Parameters
    ----------
    comm : Comm
        N ranks, each with N chunks; chunk c has the same length on all of them.
    chunks : sequence of N Tensors
        Of any lengths, also 0.
    ranks : sequence of int, optional
        The ranks that form the ring; "rank" above is then the place among them.
    """
    ranks = ranks or range(comm.size)
    me, size = ranks.index(comm.rank), len(ranks)
    left, right = ranks[me - 1], ranks[(me + 1) % size]
    arriving = comm.empty(max(map(len, chunks)), chunks[0].dtype)
    mine = chunks[me]
    for step in range(1, size):
        theirs = chunks[me - step]  # a negative index counts from the end, which closes the ring
        n = len(theirs)
        received = arriving[:n]
        comm.sendrecv(mine, right, received, left)
        comm.compute(lambda: theirs.add_(received), cost=n)
        mine = theirs  # the sum made here goes on to the right


def ring_allgather(comm: Comm, chunks: Sequence[torch.Tensor], ranks: Sequence[int] | None = None) -> None:
    """Pass the finished chunk ``rank + 1`` (mod N) of every rank round, until all ranks hold all chunks.

    Parameters
    ----------
    comm, chunks, ranks
        As in :func:`ring_reduce_scatter`.
    """
    ranks = ranks or range(comm.size)
    me, size = ranks.index(comm.rank), len(ranks)
    left, right = ranks[me - 1], ranks[(me + 1) % size]
    mine = chunks[(me + 1) % size]
    for step in range(size - 1):
        theirs = chunks[me - step]
        comm.sendrecv(mine, right, theirs, left)
        mine = theirs
