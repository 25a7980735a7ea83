"""Push-sum gossip (SGP, Assran et al., arXiv 1811.10792): directed edges, nobody waits for an answer.

A worker gives its receivers equal shares of its weights x and of a push weight w,
and keeps one.  It cannot know how many shares reach whom, so x alone drifts from
the mean; the ratio z = x / w does not (Kempe, Dobra and Gehrke 2003), and gradients
are taken at z.  The sums of x and of w over workers, the mass, are conserved.
"""

from __future__ import annotations

from typing import Any

from dlpar.comm import Comm
from dlpar.experiment import Experiment
from dlpar.split.data import Replica
from dlpar.sync.gossip import WEIGHTS, Gossip
from dlpar.sync.topology import receivers, senders


class PushSum(Gossip):
    """Average along directed edges; ``replica.weights`` holds z."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        graph = receivers(experiment.sync, experiment.workers, experiment.seed)
        self.to, self.sources = graph[comm.rank], senders(graph)[comm.rank]
        self.mass = self.pushed = 1.0
        size, dtype = len(replica.weights), replica.weights.dtype
        # The push weight travels as one more number: the same arithmetic is done to it.
        self.share, self.arrived = (
            comm.empty(size + 1, dtype),
            [comm.empty(size + 1, dtype) for _ in self.sources],
        )
        self.before = comm.empty(size, dtype)

    def combine(self) -> None:
        weights = self.replica.weights
        self.comm.compute(lambda: self.before.copy_(weights), cost=len(weights))
        self.adapt()
        self.comm.compute(self._divide, cost=4 * len(weights))
        sending = [self.comm.isend(self.share, peer, WEIGHTS) for peer in self.to]
        for into, source in zip(self.arrived, self.sources):
            self.comm.recv(into, source, WEIGHTS)
        for request in sending:
            request.wait()

    def update(self) -> None:
        self.comm.compute(self._sum, cost=(len(self.arrived) + 2) * len(self.before))

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "mass": self.pushed}

    def _divide(self) -> None:
        """Cut x and w into equal shares, one for every receiver and one to keep."""
        self.pushed = self.mass
        x = self.share[:-1].copy_(self.replica.weights)
        x.add_(self.before, alpha=self.mass - 1)  # the step that took z to z' takes x = w z to w z + (z' - z)
        self.share[-1] = self.mass
        self.share.div_(len(self.to) + 1)

    def _sum(self) -> None:
        for theirs in self.arrived:
            self.share.add_(theirs)
        self.mass = self.share[-1].item()
        self.replica.weights.copy_(self.share[:-1]).div_(self.mass)
