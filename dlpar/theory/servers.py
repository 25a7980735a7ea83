"""Closed forms of the parameter server: what a step takes where servers are the bottleneck, or are not.

Notation: N workers, S servers, latency a; b and c are the seconds in which a shard of
the gradient, and of the weights in answer, passes a port: nbytes / S / bandwidth.
Every rank has ports of its own, workers begin with different servers, and N >= S.
"""

from __future__ import annotations

from dlpar.theory.collectives import from_one, incast
from dlpar.worlds.platforms import Link


def ps_round_seconds(
    workers: int,
    servers: int,
    nbytes: float,
    link: Link,
    answer: float | None = None,
    colocated: bool = False,
    serving: float = 0.0,
) -> float:
    """Return the seconds from the moment all workers push until the last of them has the new weights (bsp).

    Dedicated servers: a + N b, for N shards come in at each server one after the other
    without a gap, and a + N c back: 2 a + 2 N/S nbytes / bandwidth.  Colocated servers share
    the port of a worker, whose own shard needs no network: N - 1 instead of N.

    Sources: Li et al. (OSDI 2014), section 4, for shards; Jiang et al., "BytePS" (OSDI
    2020), section 2, for dedicated and colocated servers.

    Parameters
    ----------
    workers, servers : int
        N and S, 1 <= S <= N.
    nbytes : float
        Bytes of the whole gradient as it is sent.
    link : Link
        Every rank's; full duplex.
    answer : float, optional
        Bytes of the whole weights as they are sent; default: `nbytes`.
    colocated : bool, default False
        Whether each server shares the node of a worker.
    serving : float, default 0
        Seconds a server computes for each push.

    Raises
    ------
    ValueError
        If a number is not allowed.
    """
    b, c = _shards(workers, servers, nbytes, answer, link)
    if servers > workers:
        raise ValueError(f"servers: got {servers}, allowed with {workers} workers is from 1 to {workers}")
    shards = workers - 1 if colocated else workers
    return incast(shards, link.latency, b, serving) + (link.latency + shards * c if shards else 0.0)


def ps_step_seconds(
    workers: int,
    servers: int,
    nbytes: float,
    link: Link,
    compute: float,
    answer: float | None = None,
    serving: float = 0.0,
) -> float:
    """Return the seconds a bsp step takes when step follows step, with dedicated servers.

    It is less than compute + :func:`ps_round_seconds`: workers that were answered first
    push first, so that the answers to the last overlap with the pushes of the first.

        compute + 2 a + serving + max(N c + S b, N b + S c)

    The worker that is answered last has waited for N answers and then pushes S shards; and
    a server takes in N pushes, of which none begins before a worker has its S answers.  So a
    step never takes less.  Where S divides N and all workers begin together it takes no
    more, as a rule: with b = c that is compute + 2 a + (N/S + 1) nbytes / bandwidth.  Servers
    that compute longer for a push than its bytes take set the pace: N pushes of `serving`.

    Source: follows from the network model.  Parameters and errors as there; `compute` is
    seconds of a worker's step.
    """
    b, c = _shards(workers, servers, nbytes, answer, link)
    of_ports = max(workers * c + servers * b, workers * b + servers * c) + serving
    of_servers = b + servers * c + workers * serving
    return compute + 2 * link.latency + max(of_ports, of_servers)


def ps_asp_seconds(
    workers: int,
    servers: int,
    nbytes: float,
    link: Link,
    compute: float,
    answer: float | None = None,
    serving: float = 0.0,
    blocking: bool = True,
) -> float:
    """Return the seconds in which N worker-steps are done if nobody waits for anybody (asp).

    A worker that is never in a queue takes compute + 2 a + S b + c + serving; a server
    that is always busy takes max(b, c + serving) a push.  The longer of one cycle and N
    pushes is what a step takes: asynchronous workers saturate a server all the same.

    Source: the asymptotic bounds of a closed queueing network; Lazowska et al.,
    "Quantitative System Performance" (1984), section 5.2.  Exact for equal workers of
    constant speed and one server.

    Parameters
    ----------
    workers, servers, nbytes, link, answer, serving
        As in :func:`ps_round_seconds`.
    compute : float
        Seconds of a worker's step.
    blocking : bool, default True
        Whether a server waits until an answer has left before it serves on (above the eager limit).
    """
    b, c = _shards(workers, servers, nbytes, answer, link)
    alone = compute + 2 * link.latency + servers * b + c + serving
    busy = max(b, c + serving if blocking else max(c, serving))
    return max(alone, workers * busy)


def _shards(
    workers: int, servers: int, nbytes: float, answer: float | None, link: Link
) -> tuple[float, float]:
    """Return b and c; raise `ValueError` if a number is not allowed."""
    from_one(workers=workers, servers=servers)
    back = nbytes if answer is None else answer
    return nbytes / servers / link.bandwidth, back / servers / link.bandwidth
