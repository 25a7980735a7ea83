"""Parameter server: workers push gradients to servers that hold the weights, and get the weights back.

Sources: Li et al. (OSDI 2014) for key ranges; Dean et al. "DistBelief" (NIPS
2012) for pushing and fetching every n steps; Ho et al. (NIPS 2013) for clocks.
The servers' side is in ``server.py``, what both say to each other in ``client.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dlpar.comm import Comm, Request
from dlpar.compression import ErrorFeedback, codec_of
from dlpar.config.experiment import Experiment
from dlpar.replica import Replica
from dlpar.sync.scheme import Scheme


class ParameterServer(Scheme):
    """A worker whose weights are a copy of the servers'; how old a copy, its consistency says."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        self.experiment, self.comm, self.replica, sync = experiment, comm, replica, experiment.sync
        self.separate, self.every = sync.pull == "separate", sync.push_every
        comm.broadcast((len(replica.weights), replica.weights.dtype))  # servers know no model, only keys
        roots = range(experiment.workers, experiment.workers + sync.servers)
        if comm.rank == 0:
            Client(comm, roots, replica.weights, experiment).initialise()
        leaf = leaf_of(experiment, comm.rank)
        self.client = Client(comm, roots if leaf is None else [leaf], replica.weights, experiment)
        self.accrued = torch.zeros_like(replica.gradient) if self.every > 1 else replica.gradient
        comm.barrier()  # the servers hold the initial weights, so all workers start together

    def steps(self) -> Iterator[int]:
        step = 0
        while self.replica.agree(self.client.going_on):
            for _ in range(self.every):
                self.due = (step + 1) % self.every == 0
                yield step
                step += 1
        self.client.leave()

    def combine(self) -> None:
        if self.every > 1:
            self.accrued += self.replica.gradient
        if not self.due:
            return
        self.client.push(self.accrued, answered=not self.separate)
        if self.separate:
            self.client.ask()
        self.client.receive()
        if self.every > 1:
            self.accrued.zero_()

    def update(self) -> None:
        if not self.due:  # Downpour continues with its own weights until it fetches the servers'
            self.replica.weights.add_(self.replica.gradient, alpha=-self.experiment.lr)

    def done(self, own: int) -> int:
        return self.replica.agree(self.client.done) if self.experiment.sync.runs_free else self.client.done

    def state_bytes(self) -> int:
        """None: the servers update."""
        return 0

    def facts(self) -> dict[str, Any]:
        # Facts of the last push: a step between two pushes repeats them.
        client = self.client
        return {"staleness": client.staleness, "lead": client.lead, "version": client.version}


def leaf_of(experiment: Experiment, worker: int) -> int | None:
    """The rank of a worker's leaf server; None where workers talk to the servers themselves."""
    sync, workers = experiment.sync, experiment.workers
    if not sync.groups:
        return None
    return workers + sync.servers + worker * sync.groups // workers


INITIAL, PUSH, PULL, WEIGHTS, LEAVE = range(1, 6)
"""Tags: what a message between a client and a server is."""

VERSION, STALENESS, LEAD, DONE, GO = range(5)
"""What the head of an answer says: the weights' version; how many updates came between the client's read and
its push; how many clocks it is ahead of the slowest; global steps done; whether to do another."""


def key_ranges(parameters: int, servers: int) -> list[slice]:
    """The range of the flat weights each server holds; the first ones are longer by one where it does not divide."""
    if servers > parameters:
        raise ValueError(
            f"sync.servers: got {servers}, allowed with {parameters} parameters is at most {parameters}"
        )
    share, rest = divmod(parameters, servers)
    starts = [server * share + min(server, rest) for server in range(servers + 1)]
    return [slice(*pair) for pair in pairwise(starts)]


class Shard:
    """One server's key range, as a client sees it.

    Parameters
    ----------
    comm : Comm
        Carries the messages.
    server : int
        Rank that holds the range.
    keys : slice
        The range of the flat weights.
    experiment : Experiment
        Its ``compression`` is how gradients are written on the wire.
    dtype : torch.dtype
        Type of weights and gradients.
    """

    def __init__(
        self, comm: Comm, server: int, keys: slice, experiment: Experiment, dtype: torch.dtype
    ) -> None:
        self.comm, self.server, self.keys = comm, server, keys
        self.answer = comm.packet(keys.stop - keys.start, dtype)
        codec = codec_of(experiment.compression)
        self.memory = ErrorFeedback(codec) if codec else None

    def encode(self, gradient: Tensor) -> Tensor:
        """Write this range of a gradient as it goes on the wire."""
        memory, n = self.memory, len(gradient)
        if memory is None:
            return gradient
        wire = self.comm.empty(memory.codec.nbytes(n, gradient.dtype), torch.uint8)
        self.comm.compute(lambda: wire.copy_(memory.encode(gradient)), cost=4 * n)
        return wire

    def expect(self) -> Request:
        """Make known where the server's next answer lands."""
        return self.comm.irecv(self.answer.wire, self.server, WEIGHTS)


class Client:
    """Pushes gradients and gets weights: a worker, or a leaf server on behalf of its group.

    Parameters
    ----------
    comm : Comm
        All ranks.
    servers : sequence of int
        Ranks to talk to, in the order of their key ranges.
    weights : Tensor, shape (parameters,)
        Overwritten by every answer.
    experiment : Experiment
        Its ``compression`` is how gradients are written on the wire.
    """

    def __init__(self, comm: Comm, servers: Sequence[int], weights: Tensor, experiment: Experiment) -> None:
        self.comm, self.weights = comm, weights
        ranges = key_ranges(len(weights), len(servers))
        shards = [Shard(comm, *pair, experiment, weights.dtype) for pair in zip(servers, ranges)]
        # Clients start with different servers; if all started with the same one, they would queue (22 to 44 % slower).
        first = comm.rank % len(servers)
        self.shards = shards[first:] + shards[:first]
        self.authority = shards[0]
        self.coming: list[Request] = []
        self.staleness = self.lead = self.next_lead = self.version = self.done = 0
        self.going_on = True

    def initialise(self) -> None:
        """Give the servers their first weights; one client does it for all."""
        self._send([(shard, self.weights[shard.keys]) for shard in self.shards], INITIAL)

    def push(self, gradient: Tensor, answered: bool = True) -> None:
        """Send each server its range of a gradient, of the weights' shape; `answered`: then :meth:`receive`."""
        # Receives are posted first: a server that blocks in a send could make all wait for each other.
        if answered:
            self._expect()
        self._send([(shard, shard.encode(gradient[shard.keys])) for shard in self.shards], PUSH)

    def ask(self, tag: int = PULL) -> None:
        """Ask every server for its weights; they come with :meth:`receive`."""
        self._expect()
        for shard in self.shards:
            self.comm.send(self.comm.empty(0), shard.server, tag)

    def receive(self) -> None:
        """Take the servers' answers: weights, and what was counted."""
        for request in self.coming:
            request.wait()
        for shard in self.shards:
            self.weights[shard.keys].copy_(shard.answer.body)
        heads = [shard.answer.head.tolist() for shard in self.shards]
        self.staleness, self.lead = max(head[STALENESS] for head in heads), self.next_lead
        self.version, _, self.next_lead, self.done, go = self.authority.answer.head.tolist()
        self.going_on = bool(go)

    def leave(self) -> None:
        """Push no more, and take the last weights, once everybody has pushed the last time."""
        self.ask(LEAVE)
        self.receive()

    def _expect(self) -> None:
        self.coming = [shard.expect() for shard in self.shards]

    def _send(self, messages: list[tuple[Shard, Tensor]], tag: int) -> None:
        # All sends start before any answer is awaited: a client that blocks in a send could hold up a server.
        for request in [self.comm.isend(wire, shard.server, tag) for shard, wire in messages]:
            request.wait()
