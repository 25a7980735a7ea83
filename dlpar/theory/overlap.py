"""Closed forms of communicating less often, with fewer ranks, or while others compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlpar.worlds.platforms.platform import Link


class Overlapped(NamedTuple):
    """When computing has ended, and when the last bucket has been sent; seconds from a common start."""

    computed: float
    sent: float


def overlapped(
    ready: Sequence[float], taking: Sequence[float], computed: float, beside: float = 1.0
) -> Overlapped:
    """A computation that gives buckets away on its way, which one progress thread sends in order.

    Bucket k begins when its gradients are there and bucket k-1 has been sent,

        end_k = max(ready_k, end_(k-1)) + taking_k

    and while anything is sent the computation goes on at the speed `beside`.

    Sources: Zhang et al., "Poseidon" (USENIX ATC 2017), section 3.1; Shi, Chu and Li, "MG-WFBP"
    (arXiv 1811.11141), section III, for the recurrence; Li et al., "PyTorch Distributed" (VLDB
    2020), section 3.2, for buckets.

    Parameters
    ----------
    ready : sequence of float
        After how many seconds of undisturbed computing each bucket's gradients are there, ascending.
    taking : sequence of float
        Seconds of each bucket's all-reduce.
    computed : float
        Seconds of the whole computation, undisturbed.
    beside : float, default 1
        Speed of computing beside communication, from 0 (it stands still) to 1 (it is not disturbed).

    Raises
    ------
    ValueError
        If `ready` and `taking` differ in number, or `beside` is not from 0 to 1.
    """
    if len(ready) != len(taking):
        raise ValueError(f"taking: got {len(taking)} buckets, allowed is {len(ready)}, as many as are ready")
    if not 0 <= beside <= 1:
        raise ValueError(f"beside: got {beside}, allowed is a number from 0 to 1")
    now = done = sent = 0.0
    for until, seconds in zip([*ready, computed], [*taking, None]):
        work, disturbed = until - done, max(0.0, sent - now)
        now += work / beside if work < disturbed * beside else work + (1 - beside) * disturbed
        done = until
        if seconds is not None:
            sent = max(now, sent) + seconds
    return Overlapped(now, sent)


def exposed_seconds(
    ready: Sequence[float], taking: Sequence[float], computed: float, beside: float = 1.0
) -> float:
    """By how many seconds communication that hides behind a computation makes it longer.

    Source, parameters and errors as of :func:`overlapped`.

    Examples
    --------
    >>> exposed_seconds(ready=[1.0, 2.0, 3.0], taking=[2.0, 1.0, 0.5], computed=3.0)
    1.5
    """
    return max(overlapped(ready, taking, computed, beside)) - computed


def buckets(sizes: Sequence[int], most: float) -> list[range]:
    """Which tensors share a bucket: in order, as many as fit into `most`; one that is larger has its own.

    Source: Li et al., "PyTorch Distributed" (VLDB 2020), section 3.2.3.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of the tensors, in the order in which the backward pass finishes them.
    most : float
        Bytes of a bucket.

    Examples
    --------
    >>> buckets([10, 10, 50, 5], most=25)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    found, start, held = [], 0, 0
    for i, size in enumerate(sizes):
        if held and held + size > most:
            found.append(range(start, i))
            start, held = i, 0
        held += size
    return [*found, range(start, len(sizes))]


def local_sgd_seconds(compute: float, communicate: float, period: int) -> float:
    """Seconds a step of local SGD takes on average: compute + communicate / period.

    Source: Wang and Joshi, "Adaptive communication strategies" (arXiv 1810.08313), section 3.1;
    Stich (ICLR 2019).  Where the times of steps vary, `compute` is the expected maximum of the
    workers' means over a period (:func:`~dlpar.theory.waiting.expected_slowest`).

    Parameters
    ----------
    compute, communicate : float
        Seconds of a local step, and of an exchange.
    period : int
        Local steps between two exchanges, from 1.
    """
    if period < 1:
        raise ValueError(f"period: got {period}, allowed is a whole number from 1")
    return compute + communicate / period


def gossip_seconds(degree: int, nbytes: float, link: Link) -> float:
    """Seconds in which every worker exchanges `nbytes` with `degree` neighbours: a + degree b, however many workers.

    Workers that begin with the same neighbour queue at its port: then up to
    a + (2 degree - 1) b.  On a half-duplex link both directions share a port.

    Source: Lian et al. (arXiv 1705.09056), table 1: the busiest node's communication is its degree.
    """
    if degree < 0:
        raise ValueError(f"degree: got {degree}, allowed is a whole number from 0")
    if not degree:
        return 0.0
    b = nbytes / link.bandwidth
    return degree * b + (link.latency if link.duplex == "full" else max(link.latency, degree * b))
