"""Closed forms of one collective that all ranks call at the same moment.

They hold if every rank has its own ports on equal links (`dlpar.worlds.platforms`). Latencies of
messages to one rank overlap, and their bytes arrive one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dlpar.collectives.tree import levels
from dlpar.theory.counts import named
from dlpar.worlds.platforms import Link

EAGER = 65_536
"""Default bytes of a short message, equal to a platform's default."""


def collective_seconds(
    name: str,
    ranks: int,
    nbytes: float,
    link: Link,
    group: int = 2,
    depth: int = 2,
    between: Link | None = None,
    adding: float = 0.0,
    eager: float = EAGER,
) -> float:
    """Return the seconds from the moment all ranks call a collective until the last rank has the result.

    ====================  ============================================  =======================
    name                  seconds; a = latency, b = nbytes / bandwidth  source
    ====================  ============================================  =======================
    star                  2 a + 2 (N-1) b
    tree                  2 log2 N (a + b) if N is a power of two,      Thakur 2005, 4.2, 4.4
                          not more than 2 ceil(log2 N) (a + b) else
    tree_aggregate        a + k b per level, of k messages to a rank    Spark, treeAggregate
    torrent_broadcast     (N-1) a + (2 N - 3) b / (N-1)                 Thakur 2005, 4.2
    ring                  2 (N-1) (a + b / N)                           Patarasuk 2009
    ring_reduce_scatter   (N-1) (a + b / N); all-gather likewise        Patarasuk 2009
    halving_doubling      2 log2 p a + 2 (p-1)/p b; about             Thakur 2005, 4.5
                          2 (a + b) + b/4 on top if N is not p,
                          the power of two below
    hierarchical          2 (a + (g-1) b) and a ring of ceil(N / g)     Jia 2018, 3.2
    ====================  ============================================  =======================

    `star_reduce`, `star_broadcast`, `tree_reduce` and `tree_broadcast` each cover one of the two directions.
    If messages keep processors busy, consecutive messages at one rank also wait for its processor
    (:func:`incast`, :func:`leaving`).

    Parameters
    ----------
    name : str
        Name in the table: ``ring_allreduce`` is ``ring``, and so on.
    ranks : int
        N, at least 1.
    nbytes : float
        Bytes of the whole tensor on each rank. For ``ring_allgather``, bytes of all chunks together.
    link : Link
        Link of every rank.
    group : int, default 2
        g, ranks of a group, in `hierarchical`.
    depth : int, default 2
        Levels of `tree_aggregate`.
    between : Link, optional
        Link between groups, in `hierarchical`; default: `link`.
    adding : float, default 0
        Seconds to add one byte of a tensor to another tensor: gamma (Thakur 2005, section 3).
    eager : float, default 65536
        Bytes up to which a rank continues before its message has left.

    Raises
    ------
    ValueError
        If the name is not in the table, a number is below 1, or there are fewer than 0 bytes.
    """
    name = named(name, ranks=ranks, group=group, depth=depth)
    if nbytes < 0:
        raise ValueError(f"nbytes: got {nbytes}, allowed is a number from 0")
    if name == "hierarchical":
        inside = _seconds("star", min(group, ranks), nbytes, link, adding, eager)
        return inside + _seconds("ring", -(-ranks // group), nbytes, between or link, adding, eager)
    return _seconds(name, ranks, nbytes, link, adding, eager, depth)


HALVES = {
    "star": ("star_reduce", "star_broadcast"),
    "tree": ("tree_reduce", "tree_broadcast"),
    "ring": ("ring_reduce_scatter", "ring_allgather"),
}
"""Collectives that consist of two others, one after the other."""


def incast(messages: int, link: Link, nbytes: float, add: float = 0.0) -> float:
    """Return the time in seconds in which one rank receives and adds messages that were sent at the same time.

    While the rank takes and adds one message, the next one arrives: the slower of the two sets the pace.
    """
    b, add = nbytes / link.bandwidth, link.overhead + add
    return link.latency - link.overhead + max(messages * b + add, b + messages * add) if messages else 0.0


def leaving(messages: int, link: Link, nbytes: float, eager: float = EAGER) -> float:
    """Return the seconds until the last of one rank's messages to several ranks arrives."""
    if nbytes <= eager:  # it prepares one message while another leaves
        return incast(messages, link, nbytes)
    a_message = link.overhead + nbytes / link.bandwidth
    return link.latency - link.overhead + messages * a_message if messages else 0.0


def _seconds(
    name: str, n: int, nbytes: float, link: Link, adding: float, eager: float, depth: int = 2
) -> float:
    """Return the time of a collective whose ranks have equal links, in seconds."""
    if name in HALVES:
        return sum(_seconds(half, n, nbytes, link, adding, eager) for half in HALVES[name])
    if n == 1:
        return 0.0
    a, b, add = link.latency, nbytes / link.bandwidth, nbytes * adding
    chunk, block = link.seconds(nbytes / n), nbytes / (n - 1)
    forms: dict[str, Callable[[], float]] = {
        "star_reduce": lambda: incast(n - 1, link, nbytes, add),
        "star_broadcast": lambda: leaving(n - 1, link, nbytes, eager),
        "tree_reduce": lambda: _binomial(n, a, b + add, link.overhead),
        # The reduction in reverse, without additions.
        "tree_broadcast": lambda: _binomial(n, a, b, link.overhead),
        "tree_aggregate": lambda: _aggregate(n, link, nbytes, add, depth),
        "torrent_broadcast": lambda: leaving(n - 1, link, block, eager) + (n - 2) * link.seconds(block),
        "ring_reduce_scatter": lambda: (n - 1) * (chunk + add / n),
        "ring_allgather": lambda: (n - 1) * chunk,
        "halving_doubling": lambda: _halving_doubling(n, nbytes, link, add),
    }
    if name not in forms:
        allowed = ", ".join([*HALVES, "hierarchical", *forms])
        raise ValueError(f"name: got {name!r}, allowed is one with a closed form: {allowed}")
    return forms[name]()


def _binomial(n: int, a: float, b: float, busy: float) -> float:
    """Return the time of a binomial tree, in seconds.

    Each child occupies a parent of several children for `busy` seconds.
    """
    ready, distance = [0.0] * n, 1
    while distance < n:
        for parent in range(0, n - distance, 2 * distance):
            ready[parent] = max(ready[parent + distance] + a, ready[parent] and ready[parent] + busy) + b
        distance *= 2
    return ready[0]


def _aggregate(n: int, link: Link, nbytes: float, add: float, depth: int) -> float:
    """Return the time of Spark's tree in seconds, computed level by level."""
    messages = (math.ceil((before - after) / after) for before, after in levels(n, depth))
    return sum(incast(to_a_rank, link, nbytes, add) for to_a_rank in messages)


def _halving_doubling(n: int, nbytes: float, link: Link, add: float) -> float:
    rounds = n.bit_length() - 1
    p = 1 << rounds
    # Folding ranks begin later. So at their ports messages of later rounds, a quarter of the tensor or somewhat
    # more, may overtake a message for which all ranks wait.
    folded = 2 * link.seconds(nbytes) + add + nbytes / 4 / link.bandwidth if n > p else 0.0
    return folded + 2 * sum(link.seconds(nbytes / 2**i) for i in range(1, rounds + 1)) + (p - 1) / p * add


def fitted(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """Fit a link on which messages of `sizes` bytes take about `seconds`.

    The fit is least squares of the relative error, so that short messages fix the
    latency and long ones the bandwidth.

    Raises
    ------
    ValueError
        Unless there are at least two sizes, each with a positive time that grows with the bytes.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or not min(seconds) > 0:
        allowed = "allowed are two different ones or more, and a time above 0 for each"
        raise ValueError(f"sizes: got {len(sizes)} for {len(seconds)} times, {allowed}")
    from scipy.optimize import nnls  # here: it loads more slowly than the rest of this package

    # Minimise the sum of (latency / t + slope B / t - 1)^2. In microseconds and megabytes, the numbers have
    # similar sizes.
    rows = [(1e-6 / t, 1e-6 * size / t) for size, t in zip(sizes, seconds)]
    (latency, slope), _ = nnls(rows, [1.0] * len(rows))
    if slope <= 0:
        raise ValueError("seconds: got times that do not grow with the bytes, so there is no bandwidth")
    return Link(float(f"{1e-6 * latency:.9g}"), float(f"{1e6 / slope:.9g}"))  # without rounding errors
