"""Collectives made of ``send`` and ``recv`` alone, each short enough to project on a wall.

Every one works in place on a flat tensor of any length, on any number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


def ring_allreduce(comm: Comm, tensor: torch.Tensor) -> None:
    """Sum `tensor` over all ranks, in place on every rank.

    Each rank sends ``2 (N-1)`` messages and ``2 (N-1)/N`` times the tensor's
    bytes, whatever N is: bandwidth-optimal (Patarasuk and Yuan, JPDC 2009).

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, also below N: some chunks are then empty.
    """
    chunks = tensor.tensor_split(comm.size)
    ring_reduce_scatter(comm, chunks)
    ring_allgather(comm, chunks)


def ring_reduce_scatter(comm: Comm, chunks: tuple[torch.Tensor, ...]) -> None:
    """Of N chunks, leave the sum of chunk ``rank + 1`` (mod N) on each rank; the others hold partial sums."""
    rank, size = comm.rank, comm.size
    arriving = comm.empty(len(chunks[0]), chunks[0].dtype)
    for step in range(size - 1):
        mine = chunks[(rank - step) % size]
        theirs = chunks[(rank - step - 1) % size]
        received = arriving[: len(theirs)]
        comm.sendrecv(mine, (rank + 1) % size, received, (rank - 1) % size)
        comm.compute(lambda: theirs.add_(received), cost=len(theirs))


def ring_allgather(comm: Comm, chunks: tuple[torch.Tensor, ...]) -> None:
    """Pass the finished chunk ``rank + 1`` (mod N) of every rank round, until all ranks hold all chunks."""
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        mine = chunks[(rank - step + 1) % size]
        theirs = chunks[(rank - step) % size]
        comm.sendrecv(mine, (rank + 1) % size, theirs, (rank - 1) % size)


def library_allreduce(comm: Comm, tensor: torch.Tensor) -> None:
    """Sum `tensor` over all ranks in place by the library's own code (MPI_Allreduce, NCCL)."""
    comm.allreduce(tensor)


ALLREDUCE = {"ring": ring_allreduce, "library": library_allreduce}
"""All-reduce algorithms by the name an experiment gives them."""
