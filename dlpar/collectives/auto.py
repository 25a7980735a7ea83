"""The all-reduce that should be quickest for a size, a number of ranks and a link; MPI and NCCL choose theirs likewise.

Sources: Thakur, Rabenseifner and Gropp (IJHPCA 2005), sections 4 and 5.  A message of B bytes takes a + B b seconds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dlpar.collectives.halving_doubling import halving_doubling_allreduce
from dlpar.collectives.ring import ring_allreduce
from dlpar.collectives.star import star_allreduce
from dlpar.collectives.tree import tree_allreduce

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


def _folded(n: int, a: float, t: float) -> float:
    """Return the seconds of halving and doubling; ranks beyond a power of two hand their tensor to others first."""
    rounds = n.bit_length() - 1
    extra = 2 * (a + t) + t / 4 if n != 1 << rounds else 0.0
    return 2 * rounds * a + 2 * (1 - 0.5**rounds) * t + extra


FORMS = {
    "ring": (ring_allreduce, lambda n, a, t: 2 * (n - 1) * (a + t / n)),
    "halving_doubling": (halving_doubling_allreduce, _folded),
    "tree": (tree_allreduce, lambda n, a, t: 2 * math.ceil(math.log2(n)) * (a + t)),
    "star": (star_allreduce, lambda n, a, t: 2 * a + 2 * (n - 1) * t),
}
"""Algorithms, and their seconds by the ranks n, a, and t, the seconds of the whole tensor's bytes."""

LENGTHS, TRIALS = (1, 250_000), 3
"""Elements of the two messages that measure a link, and how often each goes to and fro."""


def quickest(ranks: int, nbytes: float, latency: float, per_byte: float) -> str:
    """Return the name of the algorithm in `FORMS` that takes the fewest seconds; `per_byte`: seconds of a byte."""
    return min(FORMS, key=lambda name: FORMS[name][1](ranks, latency, nbytes * per_byte))


class QuickestAllreduce:
    """Sum a tensor over all ranks, in place, by the algorithm that is quickest for its size; made by all ranks.

    Attributes
    ----------
    link : tuple of float
        a and b, in seconds and seconds a byte, between the first rank and the last, who measure them.
    """

    def __init__(self, comm: Comm) -> None:
        short, long = comm.broadcast([_one_way(comm, length) for length in LENGTHS])
        comm.traffic.take()  # the messages that measured belong to no step
        each = max(0.0, long - short) / (LENGTHS[1] - LENGTHS[0])
        self.link = max(0.0, short - LENGTHS[0] * each), each / comm.empty(1).element_size()

    def name(self, comm: Comm, tensor: torch.Tensor) -> str:
        """Name of the algorithm for a tensor."""
        return quickest(comm.size, len(tensor) * tensor.element_size(), *self.link)

    def __call__(self, comm: Comm, tensor: torch.Tensor) -> None:
        """Sum `tensor`, shape (n,)."""
        FORMS[self.name(comm, tensor)][0](comm, tensor)


def _one_way(comm: Comm, length: int) -> float:
    """Return the least seconds of a message between the first rank and the last; 0 on the others."""
    other, message, least = comm.size - 1 - comm.rank, comm.empty(length), math.inf
    if other == comm.rank or comm.rank not in (0, comm.size - 1):
        return 0.0
    for _ in range(TRIALS):
        began = comm.now()
        if comm.rank == 0:
            comm.send(message, other)
        comm.recv(message, other)
        if comm.rank:
            comm.send(message, other)
        least = min(least, (comm.now() - began) / 2)
    return least
