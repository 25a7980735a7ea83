"""All-reduces in which each rank sums one part of the tensor: ring, and recursive halving-doubling.

In a ring all ranks send to their right neighbours and receive from their left neighbours at once (Patarasuk
and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009). Halving and
doubling sends as many bytes as a ring, in as many rounds as a tree (Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", IJHPCA 2005, section 4.5: Rabenseifner's
algorithm).

The library's own collectives (MPI, NCCL) have the same signatures.  They are faster than Python code, but
report no traffic: a rank's bytes and messages are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm

Ranks = Sequence[int] | None
"""Participating ranks, in order. None: all ranks."""


def ring_allreduce(comm: Comm, tensor: torch.Tensor, ranks: Ranks = None) -> None:
    """Sum `tensor` over all ranks, in place on every rank.

    Each rank sends ``2 (N-1)`` messages and ``2 (N-1)/N`` times the tensor's
    bytes, for any N: the ring is bandwidth-optimal.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n. If n is below N, some chunks are empty.
    ranks : sequence of int, optional
        The ranks that form the ring, in its order. All ranks by default. N is their number.
    """
    chunks = tensor.tensor_split(len(ranks or range(comm.size)))
    ring_reduce_scatter(comm, chunks, ranks)
    ring_allgather(comm, chunks, ranks)


def ring_reduce_scatter(comm: Comm, chunks: Sequence[torch.Tensor], ranks: Ranks = None) -> None:
    """Reduce-scatter over the ring: each rank ends with the sum of chunk ``rank + 1`` (mod N).

    Other chunks hold partial sums.

    Parameters
    ----------
    comm : Comm
        N ranks, each with N chunks. Chunk c has the same length on all ranks.
    chunks : sequence of N Tensors
        Chunks of any lengths, even 0.
    ranks : sequence of int, optional
        The ranks that form the ring. In that case "rank" above means the position in this sequence.
    """
    ranks = ranks or range(comm.size)
    me, size = ranks.index(comm.rank), len(ranks)
    left, right = ranks[me - 1], ranks[(me + 1) % size]
    arriving = comm.empty(max(map(len, chunks)), chunks[0].dtype)
    mine = chunks[me]
    for step in range(1, size):
        theirs = chunks[me - step]  # a negative index counts from the end and closes the ring
        received = arriving[: len(theirs)]
        comm.sendrecv(mine, right, received, left)
        comm.compute(lambda: theirs.add_(received), cost=len(theirs))
        mine = theirs  # the right neighbour gets this sum next


def ring_allgather(comm: Comm, chunks: Sequence[torch.Tensor], ranks: Ranks = None) -> None:
    """Pass each rank's finished chunk ``rank + 1`` (mod N) around the ring until all ranks hold all chunks.

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


def scatter_in_order(comm: Comm, chunks: Sequence[torch.Tensor]) -> None:
    """Reduce-scatter over the ring. Each rank ends with the sum of the chunk that has its own number."""
    # The ring begins with rank 1, so that each rank's position + 1 (mod N) is its number.
    ring_reduce_scatter(comm, chunks, [*range(1, comm.size), 0])


def gather_in_order(comm: Comm, chunks: Sequence[torch.Tensor]) -> None:
    """Pass the chunk that has each rank's number around the ring until all ranks hold all chunks."""
    ring_allgather(comm, chunks, [*range(1, comm.size), 0])


def add_from(comm: Comm, tensor: torch.Tensor, sources: Sequence[int]) -> None:
    """Receive a tensor from each of these ranks, and add it to `tensor`, in place and in this order."""
    arriving = comm.empty(len(tensor), tensor.dtype)
    for source in sources:
        comm.recv(arriving, source, tag=0)
        comm.compute(lambda: tensor.add_(arriving), cost=len(tensor))


def halving_doubling_allreduce(comm: Comm, tensor: torch.Tensor) -> None:
    """Sum `tensor` over all ranks, in place on every rank.

    If N is a power of two, each rank sends ``2 log2 N`` messages and ``2 (N-1)/N`` times the tensor's bytes.
    Otherwise N is a power of two plus r.  Then ranks 0, 2, …, 2r-2 first hand their tensor to the next rank,
    and finally get the sum from that rank. This adds 2r messages of the whole tensor.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, even below N.
    """
    power = 1 << (comm.size.bit_length() - 1)
    folded = 2 * (comm.size - power)  # ranks 0 … folded-1 form pairs; the odd rank acts for both
    if comm.rank < folded and comm.rank % 2 == 0:
        comm.send(tensor, comm.rank + 1)
        comm.recv(tensor, comm.rank + 1, tag=0)
        return
    ranks = [*range(1, folded, 2), *range(folded, comm.size)]
    if comm.rank < folded:
        add_from(comm, tensor, [comm.rank - 1])
    _double(comm, _halve(comm, tensor, ranks), ranks)
    if comm.rank < folded:
        comm.send(tensor, comm.rank - 1)


def _halve(comm: Comm, tensor: torch.Tensor, ranks: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Reduce-scatter by halving. Return the half that this rank kept and the half that it sent in each round."""
    me, distance, segment = ranks.index(comm.rank), len(ranks), tensor
    arriving = comm.empty(-(-len(tensor) // 2), tensor.dtype)
    rounds = []
    while distance > 1:
        distance //= 2
        lower, upper = segment.tensor_split(2)
        keep, give = (upper, lower) if me & distance else (lower, upper)
        peer, received = ranks[me ^ distance], arriving[: len(keep)]
        comm.sendrecv(give, peer, received, peer)
        comm.compute(lambda: keep.add_(received), cost=len(keep))
        rounds.append((keep, give))
        segment = keep
    return rounds


def _double(comm: Comm, rounds: list[tuple[torch.Tensor, torch.Tensor]], ranks: list[int]) -> None:
    """All-gather by doubling, in reverse order. In each round a rank sends its half and receives the other."""
    me = ranks.index(comm.rank)
    for i, (kept, given) in enumerate(reversed(rounds)):
        peer = ranks[me ^ (1 << i)]
        comm.sendrecv(kept, peer, given, peer)


def library_allreduce(comm: Comm, tensor: torch.Tensor) -> None:
    """Sum `tensor`, shape (n,), over all ranks, in place on every rank (MPI_Allreduce)."""
    comm.allreduce(tensor)


def library_reduce_scatter(comm: Comm, chunks: Sequence[torch.Tensor]) -> None:
    """Sum chunk ``rank`` of N chunks on each rank, in place (MPI_Reduce_scatter)."""
    comm.reduce_scatter(chunks)


def library_allgather(comm: Comm, chunks: Sequence[torch.Tensor]) -> None:
    """Copy chunk ``rank`` of every rank to all ranks (MPI_Allgatherv)."""
    comm.allgather(chunks)
