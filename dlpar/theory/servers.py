"""Closed forms of the parameter server's step time, with and without a bottleneck at servers."""

from __future__ import annotations

from dataclasses import dataclass

from dlpar.theory.collectives import EAGER, incast, leaving
from dlpar.theory.counts import from_one
from dlpar.worlds.platforms import Link


@dataclass(frozen=True)
class Servers:
    """Parameter servers and their workers. Every rank has its own ports.

    In formulas, a is the latency, and o is its part during which a processor is busy.  A shard of the
    gradient passes a port in b seconds, and a shard of the weights in c seconds: nbytes / S / bandwidth.
    Workers begin with different servers, and N >= S. With more servers, the times of steps are lower bounds.

    Parameters
    ----------
    workers, servers : int
        N and S, at least 1.
    nbytes : float
        Bytes of the whole gradient, as sent.
    link : Link
        Link of every rank.
    answer : float, optional
        Bytes of the whole weights, as sent; default: `nbytes`.
    serving : float, default 0
        Seconds that a server computes for each push.
    eager : float, default 65536
        Bytes up to which a rank continues before its message has left.

    Raises
    ------
    ValueError
        If a number is below 1.
    """

    workers: int
    servers: int
    nbytes: float
    link: Link
    answer: float | None = None
    serving: float = 0.0
    eager: float = EAGER

    def __post_init__(self) -> None:
        from_one(workers=self.workers, servers=self.servers)

    def round_seconds(self, colocated: bool = False) -> float:
        """Return the seconds from the push of all workers until the last worker has new weights (bsp).

        Dedicated servers: N shards arrive at each server one after the other without a gap, in
        a + N b, and answers take a + N c.  With b = c this is 2 a + 2 N/S nbytes / bandwidth.

        Sources: Li et al. (OSDI 2014), section 4, for shards; Jiang et al., "BytePS" (OSDI
        2020), section 2, for dedicated and colocated servers.

        Parameters
        ----------
        colocated : bool, default False
            Whether each server shares a worker's port.  This worker's own shard needs no network, so N - 1
            replaces N.

        Raises
        ------
        ValueError
            If there are more servers than workers.
        """
        if self.servers > self.workers:
            allowed = f"allowed with {self.workers} workers is from 1 to {self.workers}"
            raise ValueError(f"servers: got {self.servers}, {allowed}")
        shards = self.workers - colocated
        into = incast(shards, self.link, self.nbytes / self.servers, self.serving)
        return into + leaving(shards, self.link, self._answer(), self.eager)

    def step_seconds(self, compute: float = 0.0) -> float:
        """Return the time of a bsp step in a sequence of steps, in seconds, with dedicated servers.

        The time is less than compute + :meth:`round_seconds`. Workers that are answered first push first, so their
        pushes overlap with the answers to the last workers.

            compute + 2 a + serving + max(c + (N-1) d + S b, N b + S c, b + S c + (N-1) (o + serving))

        Answers leave a server every d seconds. d is the longer of o and c, or their sum if the server waits
        until an answer has left.  The worker that is answered last has waited for N answers and then pushes S
        shards.  A server takes in N pushes, and none begins before a worker has its S answers.  So a step
        never takes less. If S divides N and all workers begin together, it usually takes no more.  It also
        takes at least N (2 o + serving).  If a server waits until each answer has left, it takes N c more, less the o
        for which it already takes the next push.
        With b = c the time is compute + 2 a + (N/S + 1) nbytes / bandwidth.  A server sets the pace if it is
        busy with a push for longer than the transfer of its bytes.

        Source: follows from the network model.

        Parameters
        ----------
        compute : float, default 0
            Seconds of a worker's step.
        """
        (b, c), n, s, o = self._shards(), self.workers, self.servers, self.link.overhead
        of_ports = max(c + (n - 1) * (max(o, c) if self._sends_on() else o + c) + s * b, n * b + s * c)
        of_servers = b + s * c + (n - 1) * (o + self.serving)
        in_turn = compute + 2 * self.link.latency + self.serving + max(of_ports, of_servers)
        waiting = 0.0 if self._sends_on() else n * c - min(o, c)
        return max(in_turn, waiting + n * (2 * o + self.serving))

    def asp_seconds(self, compute: float = 0.0) -> float:
        """Return the seconds for N worker-steps if no worker waits for another (asp).

        A worker that never queues takes compute + 2 a + S b + c + serving.  A server that is
        always busy takes max(b, c, 2 o + serving) per push, or max(b, o + max(o, c) + serving) if it waits
        until an answer has left: the next push arrives while an answer leaves. A step takes the longer of one
        cycle and N pushes. So asynchronous workers also saturate a server.

        Source: the asymptotic bounds of a closed queueing network; Lazowska et al.,
        "Quantitative System Performance" (1984), section 5.2.  The result is exact for equal workers of
        constant speed and one server.

        Parameters
        ----------
        compute : float, default 0
            Seconds of a worker's step.
        """
        (b, c), o = self._shards(), self.link.overhead
        alone = compute + 2 * self.link.latency + self.servers * b + c + self.serving
        return max(alone, self.workers * max(b, c, o + (o if self._sends_on() else max(o, c)) + self.serving))

    def _shards(self) -> tuple[float, float]:
        """Return b and c, the seconds that a link needs to carry a shard's push and an answer."""
        return self.nbytes / self.servers / self.link.bandwidth, self._answer() / self.link.bandwidth

    def _answer(self) -> float:
        """Return the bytes of an answer."""
        return (self.nbytes if self.answer is None else self.answer) / self.servers

    def _sends_on(self) -> bool:
        """Return whether a server continues before an answer has left."""
        return self._answer() <= self.eager
