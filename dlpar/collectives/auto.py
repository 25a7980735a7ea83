"""The all-reduce that should be quickest for a size, a number of ranks and a link; MPI and NCCL choose theirs likewise.

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
"""Latencies, tensors on a port, tensors while all ranks send across, and messages that wait for a rank's processor."""


def _tree(n: int) -> list[Count]:
    """Count a binomial tree; where N is no power of two, a parent takes some messages one right after the other."""
    latencies, tensors = 2 * (n.bit_length() - 1), 2 * (n - 1).bit_length()
    return [(latencies, tensors, 0, tensors - latencies)]


def _folded(n: int) -> list[Count]:
    """Count halving and doubling; ranks beyond a power of two hand their tensor over and get it back."""
    rounds, folds = n.bit_length() - 1, n & (n - 1) > 0
    return [(2 * (rounds + folds), 2.25 * folds, 2 * (1 - 0.5**rounds), 0)]


FORMS: dict[str, Callable[[int], list[Count]]] = {
    "ring": lambda n: [(2 * (n - 1), 2 * (1 - 1 / n), 0, 0)],
    "halving_doubling": _folded,
    "tree": _tree,
    "star": lambda n: [(2, 2 * n - 2, 0, 0), (2, 2, 0, 2 * n - 4)],
}
"""What n ranks wait for, by algorithm; of several counts the longest: the port of a star's root, or its processor."""


class Speed(NamedTuple):
    """Seconds of a message however short, of a byte more, of that byte while all ranks send across, and to send it."""

    latency: float
    byte: float
    byte_across: float
    overhead: float


def quickest(ranks: int, nbytes: float, speed: Speed) -> str:
    """Return the name of the algorithm in `FORMS` that takes the fewest seconds for a tensor of so many bytes."""
    costs = speed.latency, nbytes * speed.byte, nbytes * speed.byte_across, speed.overhead

    def seconds(name: str) -> float:
        return max(sum(n * cost for n, cost in zip(count, costs)) for count in FORMS[name](ranks))

    return min(FORMS, key=seconds)


def measured(comm: Comm, length: int, trials: int = 3) -> Speed:
    """Time messages of 1 and of `length` elements between the first and the last rank, then by all; collective.

    Nodes hold consecutive ranks.  So ranks send across where each sends to the one half of all ranks away: those
    of a node then share its port.
    """
    me, last, half = comm.rank, comm.size - 1, comm.size // 2
    ends = (last - me, last - me) if me in (0, last) and last else None
    across = (me + half) % comm.size, (me - half) % comm.size
    sending = []  # seconds until a rank may go on

    def seconds(length: int, peers: tuple[int, int] | None) -> list[float]:
        tensor, arriving, taken = comm.empty(length), comm.empty(length), []
        for _ in range(trials):
            comm.barrier()
            began = comm.now()
            if peers is not None:
                request = comm.isend(tensor, peers[0])
                sending.append(comm.now() - began)
                comm.recv(arriving, peers[1])
                request.wait()
                comm.world.settle()
            taken.append(comm.now() - began)
        return taken

    several = [seconds(n, peers) for peers in (ends, across if last else None) for n in (1, length)]
    of_ranks = comm.gather([*several, [min(sending, default=0.0)]])
    # A trial takes as long as its slowest rank; the quickest trial was disturbed least.
    quick = [min(map(max, zip(*trials))) for trials in zip(*of_ranks or [])]
    short, long, short_across, long_across, overhead = comm.broadcast(quick)
    comm.traffic.take()  # the messages that measured belong to no step
    itemsize = comm.empty(1).element_size()
    differences = long - short, long_across - short_across
    byte, byte_across = (max(0.0, each) / (length - 1) / itemsize for each in differences)
    return Speed(max(0.0, short - itemsize * byte), byte, byte_across, overhead)


def quickest_allreduce(comm: Comm, tensor: torch.Tensor, speed: Speed) -> None:
    """Sum `tensor`, shape (n,), over all ranks, in place, by the algorithm that should be quickest for its size."""
    ALLREDUCE[quickest(comm.size, tensor.nbytes, speed)](comm, tensor)
