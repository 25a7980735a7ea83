"""Gossip: no centre, no global sum; each replica averages its weights with a few others'.

Every worker first moves its weights by its own gradient (adapt), then averages
(combine).  Sources: D-PSGD, Lian et al. (arXiv 1705.09056), with Metropolis
weights; random peers, GoSGD, Blot et al. (arXiv 1611.09726).  The replicas differ;
the model that is tested is worker 0's own.
"""

from __future__ import annotations

from typing import Any

import torch

from dlpar.comm import Comm
from dlpar.experiment import Experiment
from dlpar.sampling import generator
from dlpar.split.data import Replica
from dlpar.sync.scheme import Scheme
from dlpar.sync.sketch import Sketch
from dlpar.sync.topology import metropolis, neighbours, warning

WEIGHTS = 1
"""Tag of weights on their way.  Tagged messages go by MPI: NCCL would have the two directions wait for each other."""


def gossip(experiment: Experiment, comm: Comm, replica: Replica) -> Scheme:
    """The kind of gossip an experiment names, ready on this worker."""
    exchange = experiment.sync.exchange
    if exchange == "pairwise":
        from dlpar.sync.pairwise import Pairwise as kind
    elif exchange == "push_sum":
        from dlpar.sync.push_sum import PushSum as kind
    else:
        kind = RandomPeers if exchange == "random" else Neighbours
    return kind(experiment, comm, replica)


class Gossip(Scheme):
    """What all kinds of gossip share: how weights start, how they adapt, what is recorded."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        self.sketch = Sketch(replica.weights, experiment.seed)
        self.sketched: list[float] = []
        if experiment.sync.start == "random":
            comm.compute(self._draw_weights, cost=len(replica.weights))
        if comm.rank == 0 and (said := warning(experiment)):
            print(said, flush=True)

    def _draw_weights(self) -> None:
        """Weights of this worker alone: normal, with the standard deviation of the model's first weights."""
        weights = self.replica.weights
        draw = generator(self.experiment.seed, "start", self.comm.rank)
        weights.copy_(torch.from_numpy(draw.normal(0.0, weights.std().item(), len(weights))))

    def adapt(self) -> None:
        """Move the own weights by the own mean gradient: N times the contribution to the global one."""
        weights, gradient = self.replica.weights, self.replica.gradient
        self.sketched = self.comm.compute(lambda: self.sketch.of(weights), cost=2 * len(weights))
        self.comm.compute(lambda: gradient.mul_(self.experiment.workers), cost=len(gradient))
        self.comm.compute(lambda: self.optimizer.step(gradient), cost=2 * len(gradient))

    def facts(self) -> dict[str, Any]:
        # Of the weights the gradient was taken at, as the loss is: before this step moved them.
        return {"staleness": 0, "lead": 0, "sketch": self.sketched}


class Neighbours(Gossip):
    """D-PSGD: average with all neighbours in a graph, every step; who is slow delays its neighbours only."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        graph = comm.once("graph", lambda: neighbours(experiment.sync, experiment.workers, experiment.seed))
        self.peers, self.share = graph[comm.rank], metropolis(graph, comm.rank)
        size, dtype = len(replica.weights), replica.weights.dtype
        self.arrived = {peer: comm.empty(size, dtype) for peer in self.peers}
        self.mixed = comm.empty(size, dtype)

    def combine(self) -> None:
        self.adapt()
        sending = [self.comm.isend(self.replica.weights, peer, WEIGHTS) for peer in self.peers]
        for peer, into in self.arrived.items():
            self.comm.recv(into, peer, WEIGHTS)
        for request in sending:
            request.wait()

    def update(self) -> None:
        self.comm.compute(self._mix, cost=2 * len(self.mixed) * (len(self.peers) + 1))

    def _mix(self) -> None:
        # In the order of ranks, so that on a complete graph all replicas stay equal to the last bit.
        replicas = {**self.arrived, self.comm.rank: self.replica.weights}
        self.mixed.zero_()
        for worker in sorted(replicas):
            self.mixed.add_(replicas[worker], alpha=float(self.share[worker]))
        self.replica.weights.copy_(self.mixed)


class RandomPeers(Gossip):
    """Average with other peers every step: each worker sends to k of them and hears from k."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        self.rounds = 0
        self.peers = min(experiment.sync.peers, experiment.workers - 1)
        self.arrived = [comm.empty(len(replica.weights), replica.weights.dtype) for _ in range(self.peers)]

    def combine(self) -> None:
        self.adapt()
        order, shifts = circle(self.experiment.seed, self.rounds, self.experiment.workers, self.peers)
        self.rounds += 1
        place, n = order.index(self.comm.rank), len(order)
        sending = [self.comm.isend(self.replica.weights, order[(place + s) % n], WEIGHTS) for s in shifts]
        for into, shift in zip(self.arrived, shifts):
            self.comm.recv(into, order[(place - shift) % n], WEIGHTS)
        for request in sending:
            request.wait()

    def update(self) -> None:
        self.comm.compute(self._mix, cost=len(self.replica.weights) * (self.peers + 1))

    def _mix(self) -> None:
        for theirs in self.arrived:
            self.replica.weights.add_(theirs)
        self.replica.weights.div_(self.peers + 1)


def circle(seed: int, round: int, workers: int, peers: int) -> tuple[list[int], list[int]]:
    """Who meets whom in a round: workers on a circle in random order, and `peers` random distances.

    Each sends that many places on, so that every worker sends and hears `peers` times,
    never twice to the same and never to itself: the mixing matrix is doubly stochastic.
    """
    draw = generator(seed, "peers", round)
    order, shifts = draw.permutation(workers), 1 + draw.permutation(workers - 1)[:peers]
    return order.tolist(), sorted(shifts.tolist())
