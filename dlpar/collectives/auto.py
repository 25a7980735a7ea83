"""Choice of the fastest all-reduce for a size, a number of ranks and a link. MPI and NCCL do this, too.

Source: Thakur, Rabenseifner and Gropp (IJHPCA 2005), sections 3 to 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from dlpar.collectives import ALLREDUCE

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


Count = tuple[float, float, float, float]
"""Cost of an all-reduce, as a multiple of each field of :class:`Speed`.

These are latencies, tensors through a port, tensors sent while all ranks cross nodes, and messages that queue
for a processor.
"""


def _tree(n: int) -> list[Count]:
    """Return the cost of a binomial tree.

    If N is not a power of two, some messages queue at a parent.
    """
    latencies, tensors = 2 * (n.bit_length() - 1), 2 * (n - 1).bit_length()
    return [(latencies, tensors, 0, tensors - latencies)]


def _folded(n: int) -> list[Count]:
    """Return the cost of halving-doubling.

    Ranks beyond the largest power of two send their tensor to another rank, and later receive the sum.
    """
    rounds, folds = n.bit_length() - 1, n & (n - 1) > 0
    return [(2 * (rounds + folds), 2.25 * folds, 2 * (1 - 0.5**rounds), 0)]


FORMS: dict[str, Callable[[int], list[Count]]] = {
    "ring": lambda n: [(2 * (n - 1), 2 * (1 - 1 / n), 0, 0)],
    "halving_doubling": _folded,
    "tree": _tree,
    "star": lambda n: [(2, 2 * n - 2, 0, 0), (2, 2, 0, 2 * n - 4)],
}
"""Costs for n ranks, by algorithm. The highest of several costs decides: a star waits for the port or the
processor of its root.
"""


class Speed(NamedTuple):
    """Costs in seconds: per message, per byte, per byte while all ranks cross nodes, and per start of a send."""

    latency: float
    byte: float
    byte_across: float
    overhead: float


def quickest(ranks: int, nbytes: float, speed: Speed) -> str:
    """Return the algorithm in `FORMS` that is fastest for a tensor of this many bytes."""
    costs = speed.latency, nbytes * speed.byte, nbytes * speed.byte_across, speed.overhead

    def seconds(name: str) -> float:
        return max(sum(n * cost for n, cost in zip(count, costs)) for count in FORMS[name](ranks))

    return min(FORMS, key=seconds)


def measured(comm: Comm, length: int, trials: int = 3) -> Speed:
    """Measure the speed of messages of 1 and of `length` elements.

    First only the first and the last rank exchange them, then all ranks do. Collective.

    Nodes hold consecutive ranks.  To cross nodes, each rank sends to the rank N/2 places away.  So the ranks
    of a node share its port.
    """
    me, last, half = comm.rank, comm.size - 1, comm.size // 2
    ends = (last - me, last - me) if me in (0, last) and last else None
    across = (me + half) % comm.size, (me - half) % comm.size
    sending = []  # seconds until a send returns

    def seconds(length: int, peers: tuple[int, int] | None) -> list[float]:
        tensor, arriving, taken = comm.empty(length), comm.empty(length), []
        for _ in range(trials):
            comm.barrier()
            began = comm.now()
            # At once, because a carrier may have one queue for both. NCCL connects two ranks only so.
            if peers is not None and (length > 1 or comm.world.native):
                comm.sendrecv(tensor, peers[0], arriving, peers[1])
            elif peers is not None:
                request = comm.isend(tensor, peers[0])
                sending.append(comm.now() - began)
                comm.recv(arriving, peers[1], tag=0)
                request.wait()
            comm.world.settle()
            taken.append(comm.now() - began)
        return taken

    several = [seconds(n, peers) for peers in (ends, across if last else None) for n in (1, length)]
    of_ranks = comm.gather([*several, [min(sending, default=0.0)]])
    # A trial takes as long as its slowest rank.  The quickest trial was disturbed least.
    quick = [min(map(max, zip(*trials))) for trials in zip(*of_ranks or [])]
    short, long, short_across, long_across, overhead = comm.broadcast(quick)
    comm.traffic.take()  # messages of the measurement do not belong to a step
    itemsize = comm.empty(1).element_size()
    differences = long - short, long_across - short_across
    byte, byte_across = (max(0.0, each) / (length - 1) / itemsize for each in differences)
    return Speed(max(0.0, short - itemsize * byte), byte, byte_across, overhead)


def quickest_allreduce(comm: Comm, tensor: torch.Tensor, speed: Speed) -> None:
    """Sum `tensor`, shape (n,), over all ranks in place, with the algorithm that should be fastest."""
    ALLREDUCE[quickest(comm.size, tensor.nbytes, speed)](comm, tensor)
