"""The library's own collectives (MPI, NCCL), by the same signatures as those beside them.

They are quicker than code in Python and say nothing of what they send: a rank's
bytes and messages are unknown afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


def library_allreduce(comm: Comm, tensor: torch.Tensor) -> None:
    """Sum `tensor`, shape (n,), over all ranks, in place on every rank (MPI_Allreduce)."""
    comm.allreduce(tensor)


def library_reduce_scatter(comm: Comm, chunks: Sequence[torch.Tensor]) -> None:
    """Leave the sum of chunk ``rank + 1`` (mod N) on each rank, as the ring does (MPI_Reduce_scatter)."""
    comm.reduce_scatter(_from_chunk_1(chunks))


def library_allgather(comm: Comm, chunks: Sequence[torch.Tensor]) -> None:
    """Copy chunk ``rank + 1`` (mod N) of every rank to all ranks, as the ring does (MPI_Allgatherv)."""
    comm.allgather(_from_chunk_1(chunks))


def _from_chunk_1(chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The library gives chunk i to rank i: so chunk 1 comes first."""
    return [*chunks[1:], chunks[0]]
