"""Recursive halving and doubling: the ring's bytes in a tree's number of rounds.

Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH" (IJHPCA 2005), section 4.5: Rabenseifner's
algorithm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


def halving_doubling_allreduce(comm: Comm, tensor: torch.Tensor) -> None:
    """Sum `tensor` over all ranks, in place on every rank.

    N a power of two: each rank sends ``2 log2 N`` messages and ``2 (N-1)/N`` times
    the tensor's bytes.  Otherwise, with r ranks more than a power of two, ranks
    0, 2, …, 2r-2 first hand their tensor to the next rank, and get the sum from it
    at the end: 2r messages more, each of the whole tensor.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, also below N.
    """
    power = 1 << (comm.size.bit_length() - 1)
    folded = 2 * (comm.size - power)  # ranks 0 … folded-1 act in pairs, represented by their odd member
    if comm.rank < folded and comm.rank % 2 == 0:
        comm.send(tensor, comm.rank + 1)
        comm.recv(tensor, comm.rank + 1, tag=0)
        return
    ranks = [*range(1, folded, 2), *range(folded, comm.size)]
    if comm.rank < folded:
        arriving = comm.empty(len(tensor), tensor.dtype)
        comm.recv(arriving, comm.rank - 1, tag=0)
        comm.compute(lambda: tensor.add_(arriving), cost=len(tensor))
    kept = _halve(comm, tensor, ranks)
    _double(comm, kept, ranks)
    if comm.rank < folded:
        comm.send(tensor, comm.rank - 1)


def _halve(comm: Comm, tensor: torch.Tensor, ranks: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Reduce-scatter; gives, round by round, the half this rank kept and the half it sent away."""
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
    """All-gather: the same rounds backwards; what was kept is finished, what was sent away comes back so."""
    me = ranks.index(comm.rank)
    for i, (kept, given) in enumerate(reversed(rounds)):
        peer = ranks[me ^ (1 << i)]
        comm.sendrecv(kept, peer, given, peer)
