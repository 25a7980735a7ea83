"""Closed forms of one collective, called by all ranks at the same moment.

They hold where every rank has ports of its own on equal links (`dlpar.worlds.platforms`):
latencies of messages to one rank overlap, their bytes come in one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlpar.worlds.platforms import Link


def collective_seconds(
    name: str,
    ranks: int,
    nbytes: float,
    link: Link,
    group: int = 2,
    depth: int = 2,
    between: Link | None = None,
    adding: float = 0.0,
) -> float:
    """Return the seconds from the moment all ranks call a collective until the last of them has the result.

    ====================  ============================================  =======================
    name                  seconds; a = latency, b = nbytes / bandwidth  source
    ====================  ============================================  =======================
    star                  2 a + 2 (N-1) b
    tree                  2 log2 N (a + b) if N is a power of two,      Thakur 2005, 4.2, 4.4
                          not more than 2 ceil(log2 N) (a + b) else
    tree_aggregate        a + k b a level, of k messages to a rank      Spark, treeAggregate
    ring                  2 (N-1) (a + b / N)                           Patarasuk 2009
    ring_reduce_scatter   (N-1) (a + b / N); all-gather likewise        Patarasuk 2009
    halving_doubling      2 log2 p a + 2 (p-1)/p b; not more than       Thakur 2005, 4.5
                          2 (a + b) + b/4 on top if N is not p,
                          the power of two below
    hierarchical          2 (a + (g-1) b) and a ring of ceil(N / g)     Jia 2018, 3.2
    ====================  ============================================  =======================

    `star_reduce`, `star_broadcast`, `tree_reduce` and `tree_broadcast` are one of the two directions.
    On a half-duplex link a rank that sends and receives at once takes b + max(a, b) instead of a + b.

    Parameters
    ----------
    name : str
        As in the table; ``ring_allreduce`` is ``ring``, and so on.
    ranks : int
        N, from 1.
    nbytes : float
        Bytes of the whole tensor on each rank; for ``ring_allgather`` of all chunks together.
    link : Link
        Every rank's.
    group : int, default 2
        g, ranks of a group, in `hierarchical`; in trees, ranks of a node, if `between` is given.
    depth : int, default 2
        Levels of `tree_aggregate`.
    between : Link, optional
        Link between groups, in `hierarchical` and in trees; default: `link`.
    adding : float, default 0
        Seconds to add a byte of a tensor to another: gamma (Thakur 2005, section 3).

    Raises
    ------
    ValueError
        If the name is none of these, or a number is below 1.
    """
    name = name.removesuffix("_allreduce")
    if name not in NAMES:
        raise ValueError(f"name: got {name!r}, allowed is one of {', '.join(NAMES)}")
    from_one(ranks=ranks, group=group, depth=depth)
    if ranks == 1:
        return 0.0
    near = _Cost.of(nbytes, link, adding)
    far = near if between is None else _Cost.of(nbytes, between, adding)
    return sum(_seconds(half, ranks, near, far, group, depth) for half in HALVES.get(name, (name,)))


def from_one(**numbers: float) -> None:
    """Raise `ValueError` if one of some numbers is below 1."""
    for field, value in numbers.items():
        if value < 1:
            raise ValueError(f"{field}: got {value}, allowed is a whole number from 1")


HALVES = {
    "star": ("star_reduce", "star_broadcast"),
    "tree": ("tree_reduce", "tree_broadcast"),
    "ring": ("ring_reduce_scatter", "ring_allgather"),
}
"""Collectives that are two others, one after the other."""

NAMES = [
    *(name for whole, halves in HALVES.items() for name in (whole, *halves)),
    "tree_aggregate", "halving_doubling", "hierarchical",
]  # fmt: skip
"""Collectives that have a form."""


@dataclass(frozen=True)
class _Cost:
    """Seconds of a whole tensor: latency, bytes, adding; and whether a port does both ways at once."""

    a: float
    b: float
    add: float
    full: bool

    @classmethod
    def of(cls, nbytes: float, link: Link, adding: float) -> _Cost:
        return cls(link.latency, nbytes / link.bandwidth, nbytes * adding, link.duplex == "full")

    def exchange(self, share: float) -> float:
        """Return the seconds until a rank that sends `share` of the tensor has received as much."""
        return share * self.b + (self.a if self.full else max(self.a, share * self.b))


def incast(messages: int, a: float, b: float, add: float) -> float:
    """Return the seconds until one rank has received and added so many messages that were sent to it at once.

    While it adds one, the next comes in: the slower of the two sets the pace.
    """
    return a + max(messages * b + add, b + messages * add) if messages else 0.0


def _seconds(name: str, n: int, c: _Cost, far: _Cost, group: int, depth: int) -> float:
    """Return the seconds of a collective that is not two others, on two ranks or more."""
    forms: dict[str, Callable[[], float]] = {
        "star_reduce": lambda: incast(n - 1, c.a, c.b, c.add),
        "star_broadcast": lambda: c.a + (n - 1) * c.b,
        "tree_reduce": lambda: _binomial(n, c, far, group, c.add),
        "tree_broadcast": lambda: _binomial(n, c, far, group, 0.0),  # the reduction backwards, nothing to add
        "tree_aggregate": lambda: _aggregate(n, c, far, group, depth),
        "ring_reduce_scatter": lambda: (n - 1) * (c.exchange(1 / n) + c.add / n),
        "ring_allgather": lambda: (n - 1) * c.exchange(1 / n),
        "halving_doubling": lambda: _halving_doubling(n, c),
        "hierarchical": lambda: _hierarchical(n, c, far, group),
    }
    return forms[name]()


def _binomial(n: int, near: _Cost, far: _Cost, group: int, add: float) -> float:
    """Return the seconds of a binomial tree: child after child."""
    ready, distance = [0.0] * n, 1
    while distance < n:
        hop = near if distance < group else far
        for parent in range(0, n - distance, 2 * distance):
            ready[parent] = max(ready[parent + distance] + hop.a, ready[parent]) + hop.b + add
        distance *= 2
    return ready[0]


def _aggregate(n: int, near: _Cost, far: _Cost, group: int, depth: int) -> float:
    """Return the seconds of Spark's tree, level by level; parents of one group share a port to other groups."""
    scale = max(math.ceil(n ** (1 / depth)), 2)
    partitions, total = n, 0.0
    while partitions > 1:
        kept = partitions // scale if partitions > scale + math.ceil(partitions / scale) else 1
        messages = math.ceil((partitions - kept) / kept)
        hop, sharing = (near, 1) if near is far or partitions <= group else (far, min(kept, group))
        total += incast(messages, hop.a, hop.b * sharing, hop.add)
        partitions = kept
    return total


def _halving_doubling(n: int, c: _Cost) -> float:
    rounds = n.bit_length() - 1
    p = 1 << rounds
    # Ranks that fold begin later: at their ports a message of a later round, a quarter of the tensor at most, may
    # get in front of one that all wait for.
    folded = 2 * (c.a + c.b) + c.add + c.b / 4 if n > p else 0.0
    return folded + 2 * sum(c.exchange(2.0**-i) for i in range(1, rounds + 1)) + (p - 1) / p * c.add


def _hierarchical(n: int, c: _Cost, far: _Cost, group: int) -> float:
    group, groups = min(group, n), -(-n // group)
    inside = incast(group - 1, c.a, c.b, c.add) + c.a + (group - 1) * c.b if group > 1 else 0.0
    return inside + (groups - 1) * (2 * far.exchange(1 / groups) + far.add / groups)


def fitted(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """Fit the link on which messages of `sizes` bytes would take about `seconds`.

    Least squares of the relative error, so that short messages fix the latency and
    long ones the bandwidth.

    Raises
    ------
    ValueError
        Unless there are two sizes or more and a positive time for each, longer for more bytes.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or not min(seconds) > 0:
        raise ValueError(
            f"sizes: got {len(sizes)} for {len(seconds)} times, allowed are two different ones or more, "
            f"and a time above 0 for each"
        )
    from scipy.optimize import nnls  # here: takes longer to load than all else of this room

    # Minimise the sum of (latency / t + slope B / t - 1)^2; in microseconds and megabytes numbers are alike.
    rows = [(1e-6 / t, 1e-6 * size / t) for size, t in zip(sizes, seconds)]
    (latency, slope), _ = nnls(rows, [1.0] * len(rows))
    if slope <= 0:
        raise ValueError("seconds: got times that do not grow with the bytes, so there is no bandwidth")
    return Link(float(f"{1e-6 * latency:.9g}"), float(f"{1e6 / slope:.9g}"))  # without rounding errors
