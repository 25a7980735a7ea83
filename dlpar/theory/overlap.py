"""Closed forms of overlapped communication: buckets, and the time at which each has been sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Overlapped(NamedTuple):
    """Ends of the computation and of the last bucket's transfer, in seconds from a common start."""

    computed: float
    sent: float


def overlapped(
    ready: Sequence[float], taking: Sequence[float], computed: float, beside: float = 1.0
) -> Overlapped:
    """Return the times of a computation that produces buckets, and of one thread that sends them in order.

    Bucket k begins when its gradients are ready and bucket k-1 has been sent,

        end_k = max(ready_k, end_(k-1)) + taking_k

    and during a transfer the computation continues at the speed `beside`.

    Sources: Zhang et al., "Poseidon" (USENIX ATC 2017), section 3.1; Shi, Chu and Li, "MG-WFBP"
    (arXiv 1811.11141), section III, for the recurrence; Li et al., "PyTorch Distributed" (VLDB
    2020), section 3.2, for buckets.

    Parameters
    ----------
    ready : sequence of float
        Seconds of undisturbed computation after which each bucket's gradients are ready, ascending.
    taking : sequence of float
        Seconds of each bucket's all-reduce.
    computed : float
        Seconds of the whole computation, undisturbed.
    beside : float, default 1
        Speed of computation during communication, from 0 (blocked) to 1 (not disturbed).

    Raises
    ------
    ValueError
        If `ready` and `taking` differ in number, or `beside` is not from 0 to 1.

    Examples
    --------
    >>> overlapped(ready=[1.0, 2.0, 3.0], taking=[2.0, 1.0, 0.5], computed=3.0)
    Overlapped(computed=3.0, sent=4.5)
    """
    if len(ready) != len(taking):
        raise ValueError(f"taking: got {len(taking)} buckets, allowed is {len(ready)}, as many as are ready")
    if not 0 <= beside <= 1:
        raise ValueError(f"beside: got {beside}, allowed is a number from 0 to 1")
    now = done = sent = 0.0
    for until, seconds in zip([*ready, computed], [*taking, None]):
        work, disturbed = until - done, max(0.0, sent - now)
        stalled = (1 - beside) * disturbed if work else 0.0
        now += work / beside if work < disturbed * beside else work + stalled
        done = until
        if seconds is not None:
            sent = max(now, sent) + seconds
    return Overlapped(now, sent)


def buckets(sizes: Sequence[int], most: float) -> list[range]:
    """Group tensors into buckets in order, as many as fit into `most`. A larger tensor has its own bucket.

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
