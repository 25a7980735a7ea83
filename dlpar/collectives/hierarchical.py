"""Two levels: inside groups of ranks that are close to each other, then between the groups.

Inside a machine links are quick, between machines slow; so only one rank of each
machine talks to the others (Jia et al., "Highly Scalable Deep Learning Training
System with Mixed-Precision", arXiv 1807.11205, section 3.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlpar.collectives.ring import ring_allreduce
from dlpar.collectives.star import star_broadcast, star_reduce

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


def hierarchical_allreduce(comm: Comm, tensor: torch.Tensor, group: int = 2) -> None:
    """Sum `tensor` over all ranks, in place on every rank.

    Each group sums to its first rank, the first ranks all-reduce on a ring, and
    each copies the sum to its group.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, also 0.
    group : int
        Consecutive ranks in a group, from 1; the last group may be smaller.

    Raises
    ------
    ValueError
        If `group` is below 1.
    """
    if group < 1:
        raise ValueError(f"group: got {group}, allowed is a whole number from 1")
    first = comm.rank - comm.rank % group
    members = range(first, min(first + group, comm.size))
    star_reduce(comm, tensor, first, members)
    if comm.rank == first:
        ring_allreduce(comm, tensor, range(0, comm.size, group))
    star_broadcast(comm, tensor, first, members)
