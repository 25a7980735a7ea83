"""Exact messages and bytes of collectives, counted before they run.

Notation: N ranks, a tensor of n elements of s bytes. If a tensor has k chunks, the first ``n mod k`` chunks have
one element more than the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dlpar.collectives.double_tree import family, pieces_of


@dataclass(frozen=True)
class Cost:
    """Payload sent in one call of a collective.

    Attributes
    ----------
    messages, bytes : int
        Payload sent by all ranks together.
    busiest_messages, busiest_bytes : int
        Maximum number of messages and of bytes that any rank sends.
    """

    messages: int
    bytes: int
    busiest_messages: int
    busiest_bytes: int


def closed_form(name: str, ranks: int, elements: int, itemsize: int, group: int = 2) -> Cost:
    """Return the messages and bytes of the collective `name`.

    =====================  ==========================  =================================  ======================
    name                   messages                    bytes / s                          source
    =====================  ==========================  =================================  ======================
    star_reduce            N-1                         (N-1) n
    star_broadcast         N-1                         (N-1) n
    star                   2 (N-1)                     2 (N-1) n
    tree_reduce            N-1                         (N-1) n                            Thakur 2005, 4.4
    tree_broadcast         N-1                         (N-1) n                            Thakur 2005, 4.2
    tree                   2 (N-1)                     2 (N-1) n
    double_tree            4 (N-1) P                   2 (N-1) n                          Sanders 2009, 2
    tree_aggregate         N-1, at any depth           (N-1) n                            Spark, treeAggregate
    torrent_broadcast      (N-1)^2                     (N-1) n                            Thakur 2005, 4.2
    ring_reduce_scatter    N (N-1)                     (N-1) n                            Patarasuk 2009
    ring_allgather         N (N-1)                     (N-1) n                            Patarasuk 2009
    ring                   2 N (N-1)                   2 (N-1) n                          Patarasuk 2009
    halving_doubling       2 p log2 p + 2 r            2 (p-1) n + 2 r n                  Thakur 2005, 4.5
    hierarchical           2 (N-G) + 2 G (G-1)         2 (N-G) n + 2 (G-1) n              Jia 2018, 3.2
    =====================  ==========================  =================================  ======================

    p is the largest power of two not above N, r = N - p, P the pieces of half a tensor
    (:func:`pieces_of`), and G = ceil(N / group) the number of groups.  The busiest rank sends

    - star: N-1 tensors, the root's broadcast;
    - tree: ceil(log2 N) tensors, as many as the root has children;
    - torrent: one tensor, the root's blocks;
    - ring: 2 (N-1) chunks, which are 2n elements less two neighbouring chunks, the smallest
      such pair: 2 (N-1)/N of the tensor where N divides n;
    - halving_doubling: 2 log2 p chunks of n + ceil(n/2) + … + ceil(2n/p) elements together,
      2 (p-1)/p of the tensor where p divides n, and one whole tensor more if r > 0;
    - hierarchical: the first rank of a full group, group - 1 tensors and its part of the ring.

    Parameters
    ----------
    name : str
        As in the table: ``ring_allreduce`` is ``ring``, and so on.
    ranks : int
        N, from 1.
    elements : int
        n, from 0.  For `ring_allgather` all chunks together.
    itemsize : int
        s, bytes of an element.
    group : int
        Ranks of a group, in `hierarchical`.

    Raises
    ------
    ValueError
        If the name is none of these, or `ranks` or `group` is below 1.  The library's collectives do not
        report what they send.

    Examples
    --------
    >>> closed_form("ring", ranks=4, elements=1000, itemsize=4)
    Cost(messages=24, bytes=24000, busiest_messages=6, busiest_bytes=6000)
    """
    name = named(name, ranks=ranks, group=group)
    if ranks == 1:
        return Cost(0, 0, 0, 0)
    messages, total, busiest_messages, most = COLLECTIVES[name](ranks, elements, group)
    return Cost(messages, total * itemsize, busiest_messages, most * itemsize)


def named(name: str, **numbers: int) -> str:
    """Return the name of a collective in `COLLECTIVES`, after a check of the numbers of its call.

    Raises
    ------
    ValueError
        If there is no such collective, or a number is below 1.
    """
    name = name.removesuffix("_allreduce")
    if name not in COLLECTIVES:
        raise ValueError(f"name: got {name!r}, allowed is one of {', '.join(COLLECTIVES)}")
    from_one(**numbers)
    return name


def from_one(**numbers: float) -> None:
    """Raise `ValueError` if one of the numbers is below 1."""
    for field, value in numbers.items():
        if value < 1:
            raise ValueError(f"{field}: got {value}, allowed is a whole number from 1")


def _ring_leaves_out(rank: int, ranks: int, n: int) -> int:
    """Return the elements that a rank does not send in a ring all-reduce: chunks rank + 1 and rank + 2."""
    return 2 * (n // ranks) + sum((rank + step) % ranks < n % ranks for step in (1, 2))


def _whole(messages: int, busiest: int, n: int) -> tuple[int, int, int, int]:
    """Count messages of a whole tensor, for all ranks and for the busiest rank."""
    return messages, messages * n, busiest, busiest * n


def _half_ring(ranks: int, n: int, _: int) -> tuple[int, int, int, int]:
    return ranks * (ranks - 1), (ranks - 1) * n, ranks - 1, n - n // ranks


def _ring(ranks: int, n: int, _: int) -> tuple[int, int, int, int]:
    least = min(_ring_leaves_out(rank, ranks, n) for rank in range(ranks))
    return 2 * ranks * (ranks - 1), 2 * (ranks - 1) * n, 2 * (ranks - 1), 2 * n - least


def _halving_doubling(ranks: int, n: int, _: int) -> tuple[int, int, int, int]:
    rounds = ranks.bit_length() - 1
    p = 1 << rounds
    r = ranks - p
    halves = n + sum(-(-n // 2**i) for i in range(1, rounds))
    return 2 * p * rounds + 2 * r, 2 * (p - 1) * n + 2 * r * n, 2 * rounds + (r > 0), halves + n * (r > 0)


def _double_tree(ranks: int, n: int, _: int) -> tuple[int, int, int, int]:
    families = [[family(rank, ranks, shift) for shift in (0, 1)] for rank in range(ranks)]
    first, second = n - n // 2, n // 2
    sent = [[(above is not None) + len(children) for above, children in each] for each in families]
    busiest = max(a + b for a, b in sent), max(a * first + b * second for a, b in sent)
    return 4 * (ranks - 1) * pieces_of(n), 2 * (ranks - 1) * n, busiest[0] * pieces_of(n), busiest[1]


def _hierarchical(ranks: int, n: int, group: int) -> tuple[int, int, int, int]:
    groups = -(-ranks // group)
    inside, around = 2 * (ranks - groups), 2 * (groups - 1)
    # The first rank of a group sends each other rank a tensor, and its part of a ring without two chunks.
    firsts = (
        (min(group, ranks - number * group) + 1) * n - _ring_leaves_out(number, groups, n)
        for number in range(groups)
    )
    return inside + groups * around, (inside + around) * n, min(group, ranks) - 1 + around, max(firsts)


COLLECTIVES: dict[str, Callable[[int, int, int], tuple[int, int, int, int]]] = {
    "star": lambda ranks, n, _: _whole(2 * (ranks - 1), ranks - 1, n),
    "star_reduce": lambda ranks, n, _: _whole(ranks - 1, 1, n),
    "star_broadcast": lambda ranks, n, _: _whole(ranks - 1, ranks - 1, n),
    "tree": lambda ranks, n, _: _whole(2 * (ranks - 1), (ranks - 1).bit_length(), n),
    "tree_reduce": lambda ranks, n, _: _whole(ranks - 1, 1, n),
    "tree_broadcast": lambda ranks, n, _: _whole(ranks - 1, (ranks - 1).bit_length(), n),
    "tree_aggregate": lambda ranks, n, _: _whole(ranks - 1, 1, n),
    "double_tree": _double_tree,
    "torrent_broadcast": lambda ranks, n, _: ((ranks - 1) ** 2, (ranks - 1) * n, ranks - 1, n),
    "ring": _ring,
    "ring_reduce_scatter": _half_ring,
    "ring_allgather": _half_ring,
    "halving_doubling": _halving_doubling,
    "hierarchical": _hierarchical,
}
"""Closed forms by collective: functions of ranks, elements and group. They return the messages and elements
of all ranks, and of the busiest rank.
"""


def coded_bytes(nbytes: Callable[[int], int], ranks: int, elements: int) -> int:
    """Return the bytes of all ranks in an all-reduce of codes.

    See :class:`dlpar.compression.CompressedAllreduce`.

    Every slice goes from N-1 ranks to its owner, and its sum from the owner to N-1 ranks (Seide et al.,
    Interspeech 2014).

    Parameters
    ----------
    nbytes : callable
        Function from a number of elements to the bytes of their code.
    ranks, elements : int
        N, at least 1, and n, at least 0.
    """
    share, rest = divmod(elements, ranks)
    return 2 * (ranks - 1) * (rest * nbytes(share + 1) + (ranks - rest) * nbytes(share))


def zero_bytes(parameters: float, ranks: int, zero: int, itemsize: int, microbatches: int = 1) -> float:
    """Return the bytes that all ranks together send per step with ZeRO.

    Source: Rajbhandari et al. (arXiv 1910.02054, 7.2).

    A reduce-scatter and an all-gather take (N-1) n numbers each. Stages up to 1 need each of them once per
    step.  From stage 2 on, a rank keeps no whole gradient, so gradients are summed for each micro-batch.  Stage
    3 also gathers weights for every forward and every backward pass.  So it sends 1.5 times as much, for each
    micro-batch.

    Raises
    ------
    ValueError
        If there is no such stage `zero`, or ranks or micro-batches are below 1.
    """
    if zero not in range(4):
        raise ValueError(f"zero: got {zero!r}, allowed is 0, 1, 2 or 3")
    from_one(ranks=ranks, microbatches=microbatches)
    return {2: microbatches + 1, 3: 3 * microbatches}.get(zero, 2) * (ranks - 1) * parameters * itemsize
