"""Parameter server: workers push gradients to servers that hold the weights, and get weights back.

Sources: Li et al. (OSDI 2014) for key ranges; Dean et al. "DistBelief" (NIPS
2012) for pushing and fetching every n steps; Ho et al. (NIPS 2013) for clocks;
Zhang et al., "Poseidon" (USENIX ATC 2017), section 3.1, for pushing a bucket while
the backward pass computes the next.  The servers' side is in ``server.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import partial
from itertools import accumulate, pairwise
from math import inf
from typing import Any

import torch
from torch import Tensor

from dlpar.comm import Comm, Request, wait_all
from dlpar.comm.base import Collective
from dlpar.compression import ErrorFeedback, codec_of
from dlpar.compression.factors import factored
from dlpar.config.experiment import BadExperiment, Experiment
from dlpar.replica import Replica
from dlpar.sync.scheme import Scheme


class ParameterServer(Scheme):
    """Scheme whose workers train on copies of the servers' weights. The consistency limits the copy's age.

    With overlap each bucket is served separately.  The communicator runs in parallel with the computation. It
    pushes a bucket once the backward pass has finished the bucket.  The answer may arrive before the backward
    pass has ended.  The replica takes all answers together after its backward pass.
    """

    kept = ("client", "accrued")

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        self.experiment, self.comm, self.replica, sync = experiment, comm, replica, experiment.sync
        self.every, self.fetch = sync.push_every, sync.steps_a_fetch // sync.push_every
        self.overlap, self.backup, self.separate = sync.overlap, experiment.backup, asks(experiment)
        self.under_way: list[Request] = []
        layers = factored(replica.model, experiment, 2 * sync.servers) if sync.factors else []
        replica.cut(sync.bucket_mb * 1e6 if self.overlap else inf, [each.layer for each in layers])
        if self.overlap:
            replica.when_ready(self._start)
        self.by_factors = {replica.bucket_of(each.layer): each for each in layers}
        if layers:
            self.chosen = {"factors": len(layers)}
        codes = {number: each.shape for number, each in self.by_factors.items()}
        lengths = [len(bucket) for bucket in replica.buckets]
        comm.broadcast((lengths, replica.weights.dtype, codes))  # servers know only keys, not the model
        check_servers(sync, lengths)
        roots = range(experiment.workers, experiment.workers + sync.servers)
        if comm.rank == 0:
            Client(comm, roots, replica.weights, experiment, lengths).initialise()
            for own in range(roots.stop, comm.size) if sync.group_period else ():
                Client(comm, [own], replica.weights, experiment, lengths).initialise()
        comm.barrier()  # the servers hold the initial weights, so all workers start together
        comm.traffic.take()  # no step has sent them
        ranks = roots if (leaf := leaf_of(experiment, comm.rank)) is None else [leaf]
        client = lambda comm, weights: Client(comm, ranks, weights, experiment, lengths)
        self.client: Client = self._run(client)
        self.accrued = torch.zeros_like(replica.gradient) if self.every > 1 else None

    def _run(self, collective: Collective) -> Any:
        """Run a call on the communicator that carries the pushes, and return its result."""
        weights = self.replica.weights
        return self.comm.start(collective, weights).wait() if self.overlap else collective(self.comm, weights)

    def _start(self, bucket: int) -> None:
        self.under_way.append(self.comm.start(partial(self._push, bucket), self.replica.buckets[bucket]))

    def _push(self, bucket: int, comm: Comm, gradient: Tensor) -> None:
        factors = self.by_factors.get(bucket)
        wire = None if factors is None else factors.take(gradient.dtype, factors.shape[0]).view(-1)
        self.client.push(bucket, gradient, answered=not self.separate, wire=wire)
        if self.separate and self.fetches:
            self.client.ask(bucket)

    def _push_all(self, buckets: list[Tensor], comm: Comm, _: Tensor) -> None:
        for number, bucket in enumerate(buckets):
            self._push(number, comm, bucket)

    def resume(self, own: int, done: int) -> None:
        self._run(lambda comm, weights: self.client.rejoin())
        self.first = self.client.version if self.backup else own
        if self.accrued is not None and own % self.every == 0:  # a death interrupted a push that was counted
            self.accrued.zero_()

    def steps(self) -> Iterator[int]:
        step = self.first
        while self.replica.agree(self.client.going_on):
            pushes = 0
            while pushes < self.fetch:
                self.due = (step + 1) % self.every == 0
                pushes += self.due
                self.fetches = pushes == self.fetch
                yield step
                # A worker whose push was dropped continues with the current step of the others.
                step = self.client.version if self.backup else step + 1
        self._run(lambda comm, weights: self.client.leave())

    def combine(self) -> None:
        # The sum is a new tensor, so that a death during a push leaves the steps before it as they were.
        buckets = self.replica.buckets if self.accrued is None else [self.accrued + self.replica.gradient]
        if not self.due:
            (self.accrued,) = buckets
            return
        if not self.under_way:  # otherwise the backward pass started all buckets
            self._run(partial(self._push_all, buckets))
        wait_all(self.under_way)
        if self.fetches:
            self._run(lambda comm, weights: self.client.receive())
        if self.accrued is not None:
            self.accrued.zero_()

    def update(self) -> None:
        if not self.fetches:  # Downpour continues with its own weights until it fetches the servers'
            self.replica.weights.add_(self.replica.gradient, alpha=-self.experiment.lr)

    def pushed(self, own: int) -> int:
        """Return the number of pushes, since this program began, in this worker's first `own` steps."""
        return own // self.every - self.first // self.every

    def done(self, own: int) -> int:
        return self.replica.agree(self.client.done) if self.experiment.sync.runs_free else self.client.done

    def state_bytes(self) -> int:
        """Return 0, because the servers make the updates."""
        return 0

    def facts(self) -> dict[str, Any]:
        # Steps between two pushes repeat the facts of the last push.
        client = self.client
        dropped = {"dropped": int(client.staleness > 0)} if self.backup else {}
        return {"staleness": client.staleness, "lead": client.lead, "version": client.version, **dropped}


def asks(experiment: Experiment) -> bool:
    """Return whether weights come on request instead of with the answer to a push."""
    return experiment.sync.pull == "separate" or bool(experiment.sync.fetch_every)


def leaf_of(experiment: Experiment, worker: int) -> int | None:
    """Return the rank of a worker's leaf server, or None if workers communicate directly with the servers."""
    sync, workers = experiment.sync, experiment.workers
    return workers + sync.servers + worker * sync.groups // workers if sync.groups else None


class Kind(IntEnum):
    """Kinds of messages between a client and a server."""

    INITIAL, PUSH, PULL, WEIGHTS, LEAVE, UPDATE, CONFIRM = range(1, 8)


TAGS = 8
"""Tags of a bucket, one for each kind of message. 0 stands for no tag."""

VERSION, STALENESS, LEAD, DONE, GO = range(5)
"""Fields in the header of an answer: the weights' version, the push's staleness, the lead in clocks, global
steps done, and 1 if there is another step."""


def check_servers(sync: Any, lengths: Sequence[int]) -> None:
    """Raise `BadExperiment` if some server would hold no part of the longest bucket.

    With copies each server needs a part of each bucket.
    """
    most, which = (min(lengths), "smallest") if sync.replicas else (max(lengths), "largest")
    if sync.servers > most:
        of = "parameters" if len(lengths) == 1 else f"parameters of the {which} bucket"
        raise BadExperiment(f"sync.servers: got {sync.servers}, allowed with {most} {of} is at most {most}")


class Shard:
    """A client's view of one server's key range of a bucket.

    Parameters
    ----------
    comm : Comm
        Carries the messages.
    server : int
        Rank that holds the range.
    place : int
        Number of the range within the bucket, which is cut into equal ranges. The first ranges may be longer
        by one.
    weights : Tensor
        The client's own weights of this range.
    bucket : int
        Number of the bucket.
    experiment : Experiment
        Its ``compression`` encodes gradients on the wire.
    """

    kept = ("memory",)

    def __init__(
        self, comm: Comm, server: int, place: int, weights: Tensor, bucket: int, experiment: Experiment
    ) -> None:
        self.comm, self.server, self.place, self.weights = comm, server, place, weights
        self.first_tag, self.answer = bucket * TAGS, comm.packet(len(weights), weights.dtype)
        codec = codec_of(experiment.compression)
        self.memory = ErrorFeedback(codec) if codec else None

    def encode(self, gradient: Tensor) -> Tensor:
        """Encode this range of a gradient for the wire."""
        memory, n = self.memory, len(gradient)
        if memory is None:
            return gradient
        wire = self.comm.empty(memory.codec.nbytes(n, gradient.dtype), torch.uint8)
        self.comm.compute(lambda: wire.copy_(memory.encode(gradient)), cost=4 * n)
        return wire

    def send(self, wire: Tensor, kind: Kind) -> Request:
        """Start sending a message."""
        return self.comm.isend(wire, self.server, self.first_tag + kind)

    def expect(self) -> Request:
        """Post the receive of the server's next answer."""
        return self.comm.irecv(self.answer.wire, self.server, self.first_tag + Kind.WEIGHTS)


class Client:
    """Client that pushes gradients and gets weights. It is a worker, or a leaf server for its group.

    Parameters
    ----------
    comm : Comm
        All ranks.
    servers : sequence of int
        Ranks of the servers, in the order of their key ranges.
    weights : Tensor, shape (parameters,)
        Overwritten by every answer.
    experiment : Experiment
        Its ``compression`` encodes gradients on the wire.
    lengths : sequence of int
        Lengths of the buckets that make up the weights. Each bucket is divided among all servers.
    first : int
        Number of the first of these buckets.
    """

    def __init__(
        self,
        comm: Comm,
        servers: Sequence[int],
        weights: Tensor,
        experiment: Experiment,
        lengths: Sequence[int],
        first: int = 0,
    ) -> None:
        self.comm, self.servers = comm, len(servers)
        self.kept = ("buckets",) if codec_of(experiment.compression) else ()
        # Clients start with different servers. If all started with the same one, they would queue (22 to 44 %
        # slower).
        turn = comm.rank % self.servers
        self.buckets: list[list[Shard]] = []
        for number, (start, end) in enumerate(pairwise(accumulate(lengths, initial=0)), first):
            ranges = enumerate(zip(servers, weights[start:end].tensor_split(self.servers)))
            shards = [Shard(comm, server, n, keys, number, experiment) for n, (server, keys) in ranges]
            if number == first:
                self.authority = shards[0]
            self.buckets.append([shard for shard in shards[turn:] + shards[:turn] if len(shard.weights)])
        self.coming: list[Request] = []
        self.staleness = self.lead = self.next_lead = self.version = self.done = 0
        self.going_on = True

    def initialise(self) -> None:
        """Send the servers their initial weights. One client does this for all."""
        for shards in self.buckets:
            wait_all([shard.send(shard.weights, Kind.INITIAL) for shard in shards])

    def rejoin(self) -> None:
        """Receive the first answers of the servers in a resumed run."""
        for shards in self.buckets:
            self._expect(shards)
        self.receive()

    def push(self, bucket: int, gradient: Tensor, answered: bool = True, wire: Tensor | None = None) -> None:
        """Send each server its range of a bucket's gradient.

        Alternatively, send one `wire` for all ranges.

        If `answered`, the servers' weights come with :meth:`receive`.
        """
        shards, ranges = self.buckets[bucket], gradient.tensor_split(self.servers)
        # Receives are posted first, because a server that blocks in a send could cause a deadlock.
        if answered:
            self._expect(shards)
        # All sends start before any wait for an answer, because a client that blocks in a send could delay a
        # server.
        wires = [shard.encode(ranges[shard.place]) if wire is None else wire for shard in shards]
        wait_all([shard.send(wire, Kind.PUSH) for shard, wire in zip(shards, wires)])

    def ask(self, bucket: int, kind: Kind = Kind.PULL) -> None:
        """Ask every server for its weights of a bucket. They arrive with :meth:`receive`."""
        shards = self.buckets[bucket]
        self._expect(shards)
        wait_all([shard.send(self.comm.empty(0), kind) for shard in shards])

    def receive(self) -> None:
        """Receive the servers' answers, which hold weights and counts."""
        wait_all(self.coming)
        answered = [shard for shards in self.buckets for shard in shards]
        for shard in answered:
            shard.weights.copy_(shard.answer.body)
        self.staleness = max(int(shard.answer.head[STALENESS]) for shard in answered)
        self.lead = self.next_lead
        self.version, _, self.next_lead, self.done, go = self.authority.answer.head.tolist()
        self.going_on = bool(go)

    def leave(self) -> None:
        """Stop pushing. Take the final weights after every client's last push."""
        for bucket in range(len(self.buckets)):
            self.ask(bucket, Kind.LEAVE)
        self.receive()

    def _expect(self, shards: Sequence[Shard]) -> None:
        self.coming += [shard.expect() for shard in shards]
