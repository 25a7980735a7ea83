"""Gossip: each replica averages its weights with a few other replicas, without a central node or a global sum.

Let W be the mixing matrix. A worker's step has one of two orders:

    adapt_then_combine    x_i = sum of W_ij (x_j - lr g_j): the averages wait for the gradients
    combine_then_adapt    x_i = sum of W_ij x_j - lr g_i: the old weights travel during the backward pass

In both orders the gradient g_i is computed at the worker's own weights before the step.  Sayed (Foundations
and Trends in Machine Learning 2014, chapter 7) calls the second order the consensus strategy. His own
combine-then-adapt computes the gradient at the averaged weights.

Sources: D-PSGD, Lian et al. (arXiv 1705.09056, algorithm 1), which combines first, with any symmetric doubly
stochastic W (ours has Metropolis weights); random peers, after GoSGD, Blot et al. (arXiv 1611.09726), where
workers never wait for each other; one peer, Ying et al. (arXiv 2110.13363).  The replicas differ, so tests use
worker 0's model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dlpar.comm import ANY, Comm, Request, wait_all
from dlpar.config.experiment import Experiment
from dlpar.config.generator import generator
from dlpar.graphs import metropolis, neighbours, one_peer_shift, partners, receivers, senders, warning
from dlpar.replica import Replica
from dlpar.sync.scheme import Scheme, Tickets
from dlpar.sync.sketch import Sketch

WEIGHTS = 1
"""Tag of weights. Tagged messages use MPI, because under NCCL the two directions would wait for each other.
"""


def gossip(experiment: Experiment, comm: Comm, replica: Replica) -> Scheme:
    """Make the experiment's kind of gossip, ready on this worker."""
    kinds = {"neighbours": Neighbours, "random": RandomPeers, "one_peer": OnePeer, "pairwise": Pairwise}
    return kinds.get(experiment.sync.exchange, PushSum)(experiment, comm, replica)


class Gossip(Scheme):
    """Base class of all kinds of gossip. It initialises the weights, adapts them and records facts."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        self.sketch = Sketch(replica.weights, experiment.seed)
        self.sketched: list[float] = []
        self.given = replica.weights  # before any draw: a resumed run has restored them
        if experiment.sync.start == "random":
            self.given = replica.weights.clone()
            comm.compute(self._draw_weights, cost=len(replica.weights))
        if comm.rank == 0 and (said := warning(experiment)):
            print(said, flush=True)

    def resume(self, own: int, done: int) -> None:
        super().resume(own, done)
        self.replica.weights.copy_(self.given)

    def _draw_weights(self) -> None:
        """Draw this worker's own weights from a normal distribution.

        Their standard deviation is that of the model's initial weights.
        """
        weights = self.replica.weights
        draw = generator(self.experiment.seed, "start", self.comm.rank)
        weights.copy_(torch.from_numpy(draw.normal(0.0, weights.std().item(), len(weights))))

    def adapt(self) -> None:
        """Update this worker's weights with its gradient. It was computed at these weights.

        In pairwise gossip, it was computed at older weights: averages have changed them meanwhile.
        """
        self.look()
        self.move()

    def look(self) -> None:
        """Sketch the weights, before this step's gradient changes them."""
        weights = self.replica.weights
        self.sketched = self.comm.compute(lambda: self.sketch.of(weights), cost=2 * len(weights))

    def move(self) -> None:
        """Update this worker's weights with N times its contribution to the global gradient.

        With equal shares this is its mean gradient.
        """
        gradient, self.begun = self.replica.gradient, True
        self.comm.compute(lambda: gradient.mul_(self.experiment.workers), cost=len(gradient))
        self.comm.compute(lambda: self.optimizer.step(gradient), cost=2 * len(gradient))

    def facts(self) -> dict[str, Any]:
        # The sketch is that of the weights before this step. So is the loss, except in pairwise gossip.
        return {"staleness": 0, "lead": 0, "sketch": self.sketched}


class InStep(Gossip):
    """Base class of schemes whose workers average in the same step, in either order."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        self.combines_first = experiment.sync.order == "combine_then_adapt"
        self.under_way: Request | None = None

    def average(self, comm: Comm, weights: Tensor) -> None:
        """Exchange `weights` with the peers of this step over `comm`."""
        raise NotImplementedError

    def mix(self) -> None:
        """Replace the replica's weights with the average of its own and the received weights."""
        raise NotImplementedError

    def steps(self) -> Iterator[int]:
        for step in super().steps():
            self.round = step
            if self.combines_first:  # no other code changes these weights before the update
                self.under_way = self.comm.start(self.average, self.replica.weights)
            yield step

    def combine(self) -> None:
        if self.under_way is None:
            self.adapt()
            self.average(self.comm, self.replica.weights)
        else:
            self.under_way.wait()
            self.look()

    def update(self) -> None:
        self.mix()
        if self.combines_first:
            self.move()
        self.begun = False


class Neighbours(InStep):
    """D-PSGD: average with all graph neighbours in every step.

    A worker waits only for its neighbours, but they pass a delay on.
    """

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        e = experiment
        graph = comm.world.once(f"graph of {e.to_json()}", lambda: neighbours(e.sync, e.workers, e.seed))
        self.share = metropolis(graph, comm.rank)
        self.peers = in_turn(graph[comm.rank], comm)
        size, dtype = len(replica.weights), replica.weights.dtype
        self.arrived = {peer: comm.empty(size, dtype) for peer in self.peers}
        self.mixed = comm.empty(size, dtype)

    def average(self, comm: Comm, weights: Tensor) -> None:
        exchange(comm, weights, self.peers, self.arrived.values(), self.peers)

    def mix(self) -> None:
        self.comm.compute(self._mix, cost=2 * len(self.mixed) * (len(self.peers) + 1))

    def _mix(self) -> None:
        # Summed in the order of ranks, so that on a complete graph all replicas stay bit-equal.
        replicas = {**self.arrived, self.comm.rank: self.replica.weights}
        self.mixed.zero_()
        for worker in sorted(replicas):
            self.mixed.add_(replicas[worker], alpha=float(self.share[worker]))
        self.replica.weights.copy_(self.mixed)


class RandomPeers(InStep):
    """Average with random peers in every step. Each worker sends to k peers and receives from k peers.

    All workers exchange in the same step, and wait. GoSGD's workers send weighted sums, each at its own time.
    """

    most_peers = 0

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        self.peers = min(self.most_peers or experiment.sync.peers, experiment.workers - 1)
        self.arrived = [comm.empty(len(replica.weights), replica.weights.dtype) for _ in range(self.peers)]

    def average(self, comm: Comm, weights: Tensor) -> None:
        order, shifts = self.circle(self.experiment.workers)
        place, n = order.index(self.comm.rank), len(order)
        receivers, senders = ([order[(place + way * s) % n] for s in shifts] for way in (1, -1))
        exchange(comm, weights, receivers, self.arrived, senders)

    def circle(self, workers: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return a ring of the workers, and the distances to a worker's receivers in this round."""
        return circle(self.experiment.seed, self.round, workers, self.peers)

    def mix(self) -> None:
        self.comm.compute(self._mix, cost=len(self.replica.weights) * (self.peers + 1))

    def _mix(self) -> None:
        for theirs in self.arrived:
            self.replica.weights.add_(theirs)
        self.replica.weights.div_(self.peers + 1)


class OnePeer(RandomPeers):
    """One-peer exponential graph: send to distance 1, then 2, 4, …. If N is 2^k, k steps average exactly."""

    most_peers = 1

    def circle(self, workers: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the workers in order, and the distances to a worker's receivers in this round."""
        return range(workers), [one_peer_shift(self.round, workers)] * self.peers


def exchange(
    comm: Comm, mine: Tensor, receivers: Iterable[int], arrived: Iterable[Tensor], senders: Iterable[int]
) -> None:
    """Send `mine` to some workers, and receive a tensor from each of some others."""
    sending = [comm.isend(mine, peer, WEIGHTS) for peer in receivers]
    for into, peer in zip(arrived, senders):
        comm.recv(into, peer, WEIGHTS)
    wait_all(sending)


def in_turn(peers: Iterable[int], comm: Comm) -> list[int]:
    """Order this rank's peers from its own number upwards. Ranks then do not queue at the same peer."""
    return sorted(peers, key=lambda peer: (peer - comm.rank) % comm.size)


def circle(seed: int, round: int, workers: int, peers: int) -> tuple[list[int], list[int]]:
    """Draw a round's exchange: a ring of workers in random order, and `peers` random distances.

    Each worker sends to the workers at these distances. So every worker sends and receives `peers` times,
    never twice with the same worker and never with itself. Hence the mixing matrix is doubly stochastic.
    """
    draw = generator(seed, "peers", round)
    order, shifts = draw.permutation(workers), 1 + draw.permutation(workers - 1)[:peers]
    return order.tolist(), sorted(shifts.tolist())


AVERAGE, ANSWER, LEAVE = 1, 2, 3
"""Tags of a worker's weights, of the partner's weights in reply, and of a worker's last message."""


class Pairwise(Gossip):
    """Pairwise averaging. Each worker is active or passive (:func:`~dlpar.graphs.partners`).

    ``weights`` are the worker's own weights. An average may change them at any time. ``replica.weights`` is
    their copy for the current step. ``lead`` is relative to the slowest known partner.  ``staleness`` counts
    averages.
    """

    kept = ("optimizer", "averages", "read_at")

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        self.tickets = Tickets(experiment, comm)
        made = lambda: partners(neighbours(experiment.sync, experiment.workers, experiment.seed))
        active, kept = comm.world.once(f"partners of {experiment.to_json()}", made)
        self.active, self.partners = comm.rank in active, kept[comm.rank]
        self.weights, self.guard = replica.weights.clone(), comm.world.lock()
        self.mine, self.theirs = (comm.packet(len(self.weights), self.weights.dtype) for _ in range(2))
        self.averages = self.read_at = self.stale = self.clock = self.lead = 0
        self.heard = dict.fromkeys(self.partners, 0)

    def resume(self, own: int, done: int) -> None:
        """Go on from the restored weights of the last step. Later averages are lost."""
        super().resume(own, done)
        self.weights.copy_(self.replica.weights)
        self.clock, self.heard = own, dict.fromkeys(self.partners, own)
        self.tickets.resume(own, done)

    def steps(self) -> Iterator[int]:
        self.under_way = self.comm.start(self._average if self.active else self._answer, self.weights)
        yield from self.tickets.steps(self.replica.agree)
        # Wait for the last average. A passive worker stays until its active partners have left.
        self.under_way.wait()
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
        # The next gradient is computed at the weights just written.
        self.clock += 1
        self.lead = max(0, self.clock - min(self.heard.values(), default=self.clock))
        if self.under_way.test():
            self.under_way.wait()
            if self.active:
                self.under_way = self.comm.start(self._average, self.weights)

    def update(self) -> None:
        """Do nothing. :meth:`combine` has updated the weights under its lock."""
        self.begun = False

    def done(self, own: int) -> int:
        return self.replica.agree(self.tickets.done)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "staleness": self.stale, "lead": self.lead}

    def _average(self, comm: Comm, weights: Tensor) -> None:
        """Average with one partner while an active worker computes."""
        if not self.partners:
            return
        draw = generator(self.experiment.seed, "partner", comm.rank, self.averages)
        partner = int(draw.choice(self.partners))
        with self.guard:
            self._write(comm, weights)
        sending = comm.isend(self.mine.wire, partner, AVERAGE)
        # Receive from any source, though only one rank can send, because such a receive does not spin.
        comm.recv(self.theirs.wire, ANY, ANSWER)
        sending.wait()
        with self.guard:
            self._meet(comm, weights, partner)

    def _answer(self, comm: Comm, weights: Tensor) -> None:
        """Answer partners' requests while this passive worker computes, until all partners have left."""
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

    def _leave(self, comm: Comm, weights: Tensor) -> None:
        for partner in self.partners:
            comm.send(weights[:0], partner, LEAVE)

    def _write(self, comm: Comm, weights: Tensor) -> None:
        self.mine.head[0] = self.clock
        comm.compute(lambda: self.mine.body.copy_(weights), cost=len(weights))

    def _meet(self, comm: Comm, weights: Tensor, partner: int) -> None:
        """Add half of the difference between the received and the sent weights.

        One worker gains as much as the other loses, so the mean of all replicas does not change. This holds
        even if weights have changed since they were sent: the average is atomic.
        """
        self.heard[partner] = int(self.theirs.head[0])
        mine, theirs = self.mine.body, self.theirs.body
        comm.compute(lambda: weights.add_((theirs - mine).to(weights.device), alpha=0.5), cost=3 * len(mine))
        self.averages += 1


class PushSum(Gossip):
    """Average along directed edges (push-sum). ``replica.weights`` holds the ratio z = x / w."""

    kept = ("optimizer", "mass", "pushed")

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        e, once, key = experiment, comm.world.once, experiment.to_json()
        graph = once(f"graph of {key}", lambda: receivers(e.sync, e.workers, e.seed))
        self.to = in_turn(graph[comm.rank], comm)
        self.sources = in_turn(once(f"senders of {key}", lambda: senders(graph))[comm.rank], comm)
        self.mass = self.pushed = 1.0
        size, dtype = len(replica.weights), replica.weights.dtype
        # The push weight is an additional element of the message with the same arithmetic.
        self.share = comm.empty(size + 1, dtype)
        self.arrived = [comm.empty(size + 1, dtype) for _ in self.sources]
        self.before = comm.empty(size, dtype)

    def combine(self) -> None:
        weights = self.replica.weights
        self.comm.compute(lambda: self.before.copy_(weights), cost=len(weights))
        self.adapt()
        self.comm.compute(self._divide, cost=4 * len(weights))
        exchange(self.comm, self.share, self.to, self.arrived, self.sources)

    def update(self) -> None:
        self.comm.compute(self._sum, cost=(len(self.arrived) + 2) * len(self.before))
        self.begun = False

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "mass": self.pushed}

    def _divide(self) -> None:
        """Divide x and w into equal shares: one for each receiver and one to keep."""
        self.pushed = self.mass
        x = self.share[:-1].copy_(self.replica.weights)
        x.add_(self.before, alpha=self.mass - 1)  # the step from z to z' takes x = w z to w z + (z' - z)
        self.share[-1] = self.mass
        self.share.div_(len(self.to) + 1)

    def _sum(self) -> None:
        for theirs in self.arrived:
            self.share.add_(theirs)
        self.mass = self.share[-1].item()
        self.replica.weights.copy_(self.share[:-1]).div_(self.mass)
