"""Closed forms of one collective, called by all ranks at the same moment.

They hold where every rank has ports of its own on equal links (`dlpar.worlds.platforms`):
latencies of messages to one rank overlap, their bytes come in one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlpar.worlds.platforms.platform import Link


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
    halving_doubling      2 log2 p a + 2 (p-1)/p b; not more than       Thakur 2005, 4.5
                          2 (a + b) + b/4 on top if N is not p,
                          the power of two below
    hierarchical          2 (a + (g-1) b) and a ring of ceil(N / g)     Jia 2018, 3.2
    ====================  ============================================  =======================

    `star_reduce`, `star_broadcast`, `tree_reduce` and `tree_broadcast` are the one or the other
    way of the whole.  On a half-duplex link a rank that sends and receives at once takes
    b + max(a, b) in place of a + b.

    Parameters
    ----------
    name : str
        As in the table; ``ring_allreduce`` is ``ring``, and so on.
    ranks : int
        N, from 1.
    nbytes : float
        Of the whole tensor on each rank; for ``ring_allgather`` of all chunks together.
    link : Link
        Every rank's.
    group : int, default 2
        g, ranks of a group, in `hierarchical`.
    depth : int, default 2
        Of `tree_aggregate`.
    between : Link, optional
        In `hierarchical`, between groups; default: `link`.
    adding : float, default 0
        Seconds to add a byte of a tensor to another: gamma (Thakur 2005, section 3).

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
    cost = _Cost.of(nbytes, link, adding)
    far = cost if between is None else _Cost.of(nbytes, between, adding)
    return _SECONDS[name](ranks, cost, far, group, depth)


@dataclass(frozen=True)
class _Cost:
    """Of the whole tensor, in seconds: latency, bytes, adding; and whether a port does both ways at once."""

    a: float
    b: float
    add: float
    full: bool

    @classmethod
    def of(cls, nbytes: float, link: Link, adding: float) -> _Cost:
        return cls(link.latency, nbytes / link.bandwidth, nbytes * adding, link.duplex == "full")

    def exchange(self, share: float) -> float:
        """Seconds until a rank that sends `share` of the tensor has received as much."""
        return share * self.b + (self.a if self.full else max(self.a, share * self.b))


def incast(messages: int, a: float, b: float, add: float) -> float:
    """Seconds until one rank has received and added so many messages that were sent to it at once.

    While it adds one, the next comes in: the slower of the two sets the pace.
    """
    return a + max(messages * b + add, b + messages * add) if messages else 0.0


def _star_reduce(n: int, c: _Cost, *_: object) -> float:
    return incast(n - 1, c.a, c.b, c.add)


def _star_broadcast(n: int, c: _Cost, *_: object) -> float:
    return c.a + (n - 1) * c.b


def _tree_reduce(n: int, c: _Cost, between: _Cost, group: int, _: int) -> float:
    """Child after child."""
    ready, distance = [0.0] * n, 1
    while distance < n:
        hop = c if distance < group else between
        for parent in range(0, n - distance, 2 * distance):
            ready[parent] = max(ready[parent + distance] + hop.a, ready[parent]) + hop.b + c.add
        distance *= 2
    return ready[0]


def _tree_broadcast(n: int, c: _Cost, *rest: object) -> float:
    """The reduction backwards, with nothing to add."""
    return _tree_reduce(n, replace(c, add=0.0), *rest)


def _tree_aggregate(n: int, c: _Cost, between: _Cost, group: int, depth: int) -> float:
    """Level by level; parents of one group share a port to other groups."""
    scale = max(math.ceil(n ** (1 / depth)), 2)
    partitions, total = n, 0.0
    while partitions > 1:
        kept = partitions // scale if partitions > scale + math.ceil(partitions / scale) else 1
        messages = math.ceil((partitions - kept) / kept)
        hop, sharing = (c, 1) if between is c or partitions <= group else (between, min(kept, group))
        total += incast(messages, hop.a, hop.b * sharing, c.add)
        partitions = kept
    return total


def _ring_allgather(n: int, c: _Cost, *_: object) -> float:
    return (n - 1) * c.exchange(1 / n)


def _ring_reduce_scatter(n: int, c: _Cost, *_: object) -> float:
    return (n - 1) * (c.exchange(1 / n) + c.add / n)


def _halving_doubling(n: int, c: _Cost, *_: object) -> float:
    rounds = n.bit_length() - 1
    p = 1 << rounds
    # Ranks that fold begin later: at their ports a message of a later round, a quarter of the tensor at most, may
    # get in front of one that all wait for.
    folded = 2 * (c.a + c.b) + c.add + c.b / 4 if n > p else 0.0
    return folded + 2 * sum(c.exchange(2.0**-i) for i in range(1, rounds + 1)) + (p - 1) / p * c.add


def _hierarchical(n: int, c: _Cost, between: _Cost, group: int, _: int) -> float:
    group, groups = min(group, n), -(-n // group)
    inside = _star_reduce(group, c) + _star_broadcast(group, c) if group > 1 else 0.0
    return inside + (_ring(groups, between) if groups > 1 else 0.0)


def _together(*halves):
    return lambda *given: sum(half(*given) for half in halves)


_ring = _together(_ring_reduce_scatter, _ring_allgather)

_SECONDS = {
    "star": _together(_star_reduce, _star_broadcast),
    "star_reduce": _star_reduce,
    "star_broadcast": _star_broadcast,
    "tree": _together(_tree_reduce, _tree_broadcast),
    "tree_reduce": _tree_reduce,
    "tree_broadcast": _tree_broadcast,
    "tree_aggregate": _tree_aggregate,
    "ring": _ring,
    "ring_reduce_scatter": _ring_reduce_scatter,
    "ring_allgather": _ring_allgather,
    "halving_doubling": _halving_doubling,
    "hierarchical": _hierarchical,
}


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
        raise ValueError(
            f"sizes: got {len(sizes)} for {len(seconds)} times, allowed are two different ones or more, "
            f"and a time above 0 for each"
        )
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
