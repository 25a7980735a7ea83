"""Closed forms of time: what a message and a collective take on links that are known by two numbers.

A message of B bytes takes ``latency + B / bandwidth`` seconds (Hockney 1994: alpha
and beta).  Every rank has a link of its own that carries one message out and one in
at a time.  Messages to one rank may be under way together, so their latencies
overlap, but their bytes come in one after the other (as in LogGP, Alexandrov et al.
1995).  Adding numbers takes no time here, and ranks do not share cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence


@dataclass(frozen=True)
class Link:
    """What carries a rank's messages.

    Attributes
    ----------
    latency : float
        Seconds a message takes however short it is: alpha.
    bandwidth : float
        Bytes a second: beta.
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency: got {self.latency!r}, allowed is a number of seconds from 0")
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth: got {self.bandwidth!r}, allowed is a number of bytes a second above 0")

    def seconds(self, nbytes: float) -> float:
        """Seconds of one message of `nbytes`."""
        return self.latency + nbytes / self.bandwidth


def fitted(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """The link on which messages of `sizes` bytes would take about `seconds`.

    Least squares of the relative error, so that short messages fix the latency and
    long ones the bandwidth.

    Raises
    ------
    ValueError
        Unless there are two sizes or more and a positive time for each, longer for more bytes.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or not min(seconds) > 0:
        raise ValueError(f"sizes: got {len(sizes)} for {len(seconds)} times, allowed are two different ones or more, "
                         f"and a time above 0 for each")  # fmt: skip
    # Minimise the sum of (latency / t + slope B / t - 1)^2.
    rows = [(1 / t, size / t) for size, t in zip(sizes, seconds)]
    aa, ab, bb = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(r[i] for r in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    latency, slope = (bb * a - ab * b) / determinant, (aa * b - ab * a) / determinant
    if latency < 0:
        latency, slope = 0.0, b / bb
    if slope <= 0:
        raise ValueError("seconds: got times that do not grow with the bytes, so there is no bandwidth")
    return Link(latency, 1 / slope)


def collective_seconds(name: str, ranks: int, nbytes: float, link: Link, group: int = 2, depth: int = 2) -> float:
    """Seconds from the moment all ranks call a collective until the last of them has the result.

    ====================  ============================================  =======================
    name                  seconds; a = latency, b = nbytes / bandwidth  source
    ====================  ============================================  =======================
    star                  2 a + 2 (N-1) b
    tree                  2 log2 N (a + b) if N is a power of two,      Thakur 2005, 4.2, 4.4
                          not more than 2 ceil(log2 N) (a + b) else
    tree_aggregate        a + k b a level, of k messages to a rank      Spark, treeAggregate
    ring                  2 (N-1) (a + b / N)                           Patarasuk 2009
    ring_reduce_scatter   (N-1) (a + b / N); all-gather likewise        Patarasuk 2009
    halving_doubling      2 log2 p a + 2 (p-1)/p b, and 2 (a + b)       Thakur 2005, 4.5
                          if N is not p, the power of two below
    hierarchical          2 (a + (g-1) b) and a ring of ceil(N / g)     Jia 2018, 3.2
    ====================  ============================================  =======================

    `star_reduce`, `star_broadcast`, `tree_reduce` and `tree_broadcast` take half of the whole.

    Parameters
    ----------
    name : str
        As in the table; ``ring_allreduce`` is ``ring``, and so on.
    ranks : int
        N, from 1.
    nbytes : float
        Of the whole tensor on each rank.
    link : Link
        Every rank's.
    group : int
        g, ranks of a group, in `hierarchical`.
    depth : int
        Of `tree_aggregate`.

    Raises
    ------
    ValueError
        If the name is none of these, or a number is below 1.
    """
    name = name.removesuffix("_allreduce")
    if name not in _SECONDS:
        raise ValueError(f"name: got {name!r}, allowed is one of {', '.join(_SECONDS)}")
    for field, value in {"ranks": ranks, "group": group, "depth": depth}.items():
        if value < 1:
            raise ValueError(f"{field}: got {value}, allowed is a whole number from 1")
    if ranks == 1:
        return 0.0
    return _SECONDS[name](ranks, link.latency, nbytes / link.bandwidth, group, depth)


def _halving_doubling(n: int, a: float, b: float, *_: int) -> float:
    rounds = n.bit_length() - 1
    p = 1 << rounds
    return 2 * rounds * a + 2 * (p - 1) / p * b + (2 * (a + b) if n > p else 0)


def _hierarchical(n: int, a: float, b: float, group: int, _: int) -> float:
    group, groups = min(group, n), -(-n // group)
    inside = 2 * (a + (group - 1) * b) if group > 1 else 0
    return inside + (_ring(groups, a, b) if groups > 1 else 0)


def _tree_aggregate(n: int, a: float, b: float, _: int, depth: int) -> float:
    scale = max(math.ceil(n ** (1 / depth)), 2)
    partitions, total = n, 0.0
    while partitions > scale + math.ceil(partitions / scale):
        total += a + math.ceil((partitions - partitions // scale) / (partitions // scale)) * b
        partitions //= scale
    return total + a + (partitions - 1) * b


def _ring(n: int, a: float, b: float, *_: int) -> float:
    return 2 * (n - 1) * (a + b / n)


def _star(n: int, a: float, b: float, *_: int) -> float:
    return 2 * a + 2 * (n - 1) * b


def _tree(n: int, a: float, b: float, *_: int) -> float:
    """Up, child after child; down takes as long, being the same backwards."""
    ready, distance = [0.0] * n, 1
    while distance < n:
        for parent in range(0, n - distance, 2 * distance):
            ready[parent] = max(ready[parent + distance] + a, ready[parent]) + b
        distance *= 2
    return 2 * ready[0]


def _half(whole):
    return lambda *given: whole(*given) / 2


_SECONDS = {
    "star": _star,
    "star_reduce": _half(_star),
    "star_broadcast": _half(_star),
    "tree": _tree,
    "tree_reduce": _half(_tree),
    "tree_broadcast": _half(_tree),
    "tree_aggregate": _tree_aggregate,
    "ring": _ring,
    "ring_reduce_scatter": _half(_ring),
    "ring_allgather": _half(_ring),
    "halving_doubling": _halving_doubling,
    "hierarchical": _hierarchical,
}
