"""AD-PSGD: asynchronous gossip, two workers at a time (Lian et al., arXiv 1710.06952).

While it computes gradients, an active worker averages its weights with those of one
passive neighbour, drawn at random; when that is done, and a step later at the earliest,
with the next.  Passive workers answer while they compute.  So nobody ever waits.  A
gradient is taken at the weights as they were read when the last step ended and applied
to the weights as they have become: what moved them in between is its staleness.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dlpar.comm import ANY, Comm
from dlpar.experiment import Experiment
from dlpar.sampling import generator
from dlpar.split.data import Replica
from dlpar.sync.gossip import Gossip
from dlpar.sync.sides import partners
from dlpar.sync.tickets import Tickets
from dlpar.sync.topology import neighbours

AVERAGE, ANSWER, LEAVE = 1, 2, 3
"""Tags: a worker's weights, the other's in return, and that a worker is done."""


class Pairwise(Gossip):
    """One active or passive worker (:func:`~dlpar.sync.sides.partners`).

    ``weights`` are its own, which averages change at any time; ``replica.weights`` are
    what it read of them for the present step.  ``lead`` is counted over the slowest
    partner as far as heard of, ``staleness`` in averages.
    """

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        self.tickets = Tickets(experiment, comm)
        sync, workers, seed = experiment.sync, experiment.workers, experiment.seed
        active, kept = comm.once("partners", lambda: partners(neighbours(sync, workers, seed)))
        self.active, self.partners = comm.rank in active, kept[comm.rank]
        self.draw = generator(experiment.seed, "partner", comm.rank)
        self.weights, self.guard = replica.weights.clone(), comm.lock()
        self.mine, self.theirs = (comm.packet(len(self.weights), self.weights.dtype) for _ in range(2))
        self.averages = self.read_at = self.stale = self.clock = self.lead = 0
        self.heard = dict.fromkeys(self.partners, 0)
        self.under_way = comm.start(self._average if self.active else self._answer, self.weights)

    def steps(self) -> Iterator[int]:
        yield from self.tickets.steps(self.agree)
        self.under_way.wait()  # for the last average; a passive worker stays until its active partners have left
        if self.active:
            self.comm.start(self._leave, self.weights).wait()
        self.replica.weights.copy_(self.weights)

    def combine(self) -> None:
        weights = self.replica.weights
        with self.guard:
            self.comm.compute(lambda: weights.copy_(self.weights), cost=len(weights))
            self.stale = self.averages - self.read_at
            self.adapt()
            self.comm.compute(lambda: self.weights.copy_(weights), cost=len(weights))
            self.read_at = self.averages
        # The weights just written are those the next gradient is taken at.
        self.clock += 1
        self.lead = max(0, self.clock - min(self.heard.values(), default=self.clock))
        if self.active and self.under_way.test():
            self.under_way.wait()
            self.under_way = self.comm.start(self._average, self.weights)

    def update(self) -> None:
        """Done in :meth:`combine`, where nobody else moves the weights."""

    def done(self, own: int) -> int:
        return self.agree(self.tickets.done)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "staleness": self.stale, "lead": self.lead}

    def _average(self, comm: Comm, weights: torch.Tensor) -> None:
        """Beside the computation of an active worker: average with one partner."""
        if not self.partners:
            return
        partner = int(self.draw.choice(self.partners))
        with self.guard:
            self._write(comm, weights)
        sending = comm.isend(self.mine.wire, partner, AVERAGE)
        comm.recv(
            self.theirs.wire, ANY, ANSWER
        )  # from any, though only one can: such a receive leaves the core alone
        sending.wait()
        with self.guard:
            self._meet(comm, weights, partner)

    def _answer(self, comm: Comm, weights: torch.Tensor) -> None:
        """Beside the computation of a passive worker: answer, until all partners have left."""
        present = len(self.partners)
        while present:
            arrival = comm.recv(self.theirs.wire, ANY, ANY)
            if arrival.tag == LEAVE:
                present -= 1
                continue
            with self.guard:
                self._write(comm, weights)
                self._meet(comm, weights, arrival.source)
            comm.send(self.mine.wire, arrival.source, ANSWER)

    def _leave(self, comm: Comm, weights: torch.Tensor) -> None:
        for partner in self.partners:
            comm.send(weights[:0], partner, LEAVE)

    def _write(self, comm: Comm, weights: torch.Tensor) -> None:
        self.mine.head[0] = self.clock
        comm.compute(lambda: self.mine.body.copy_(weights), cost=len(weights))

    def _meet(self, comm: Comm, weights: torch.Tensor, partner: int) -> None:
        """Go half the way from what was sent to what came.

        What one gains the other loses, so the mean of all replicas stays, also where the
        own weights have moved on since they were sent: the average is atomic.
        """
        self.heard[partner] = int(self.theirs.head[0])
        mine, theirs = self.mine.body, self.theirs.body
        comm.compute(
            lambda: weights.add_((theirs - mine).to(weights.device), alpha=0.5), cost=3 * len(weights)
        )
        self.averages += 1
