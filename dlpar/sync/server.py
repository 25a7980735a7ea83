"""Server side of the parameter server: hold a range of the weights, and answer clients.

Sources: Li et al. (OSDI 2014); Zhang et al. (IJCAI 2016) for the learning rate divided by staleness;
Chen et al., "Revisiting Distributed Synchronous SGD" (arXiv 1604.00981), for backup workers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dlpar.comm import ANY, Comm, Keeper, Packet, Recorder, Request, wait_all
from dlpar.compression import Codec, codec_of
from dlpar.compression.factors import FactorCode
from dlpar.config.experiment import Experiment
from dlpar.sync.averaging import outer
from dlpar.sync.consistency import Clocks, Consistency, consistency, of_group
from dlpar.sync.optim import Optimizer
from dlpar.sync.parameter_server import TAGS, Client, Kind, asks, check_servers, leaf_of


class Server:
    """Server of a range of the weights. It answers clients in the order of their messages.

    Parameters
    ----------
    comm : Comm
        All ranks.
    clients : sequence of int
        Ranks that push here.
    answer : Packet
        The weights this server holds, inside a packet ready to be sent.
    experiment : Experiment
        Defines update rule, pull, compression and steps.
    rule : Consistency
        Decides when pushes are applied and clients continue.
    bucket : int
        Number of the bucket whose range this is.
    is_first : bool
        Whether this server decides for all that the last step has started. Separate counts might disagree.
    """

    kept: tuple[str, ...] = ("weights", "optimizer", "version", "clock")

    def __init__(
        self,
        comm: Comm,
        clients: Sequence[int],
        answer: Packet,
        experiment: Experiment,
        rule: Consistency,
        bucket: int = 0,
        is_first: bool = True,
    ) -> None:
        self.comm, self.clients, self.answer, self.weights = comm, list(clients), answer, answer.body
        self.experiment, self.rule, self.is_first = experiment, rule, is_first
        self.separate, self.aware = asks(experiment), experiment.sync.staleness_aware
        self.read_by(codec_of(experiment.compression))
        # State on the device of the weights.
        self.inbox, self.first_tag = answer.wire, bucket * TAGS
        self.sum = torch.zeros_like(self.weights)
        # A sum's last bits depend on its order.  A run that may be resumed sums by rank, not by arrival, if each
        # update has one push of each client.
        resumes = experiment.snapshot.every or experiment.deaths.goes_on
        in_lockstep = Consistency(gather=len(clients), bound=0)
        self.parts: dict[int, Tensor] | None = {} if resumes and rule == in_lockstep else None
        self.optimizer = Optimizer(experiment.optimizer, self.weights, experiment.lr, experiment.momentum)
        self.pushes = self.version = self.gathered = 0
        self.clock, self.read = Clocks(clients), dict.fromkeys(clients, 0)
        self.taken = dict.fromkeys(clients, 0)  # pushes of each client since this program began
        self.staleness = dict.fromkeys(clients, 0)
        self.waiting: list[int] = []
        # Sends of the last answer. The next message may arrive meanwhile, but the answer is not changed
        # before it is sent.
        self.under_way: list[Request] = []
        self.judged: tuple[int, bool] | None = None  # the state at the last check of waiting clients
        self.left: list[int] = []
        # Pushes that may be under way: one of each client, or of each worker if leaves forward these separately.
        sync = experiment.sync
        pushing = experiment.workers if sync.group_consistency == "asp" else len(self.clients)
        self.total = pushing * experiment.steps // (sync.group_period or sync.push_every)
        self.per_answer = sync.steps_a_fetch // sync.push_every
        self.started = pushing * self.per_answer

    def form(self) -> None:
        """Form the chain of servers: each copies its predecessor's weights and optimizer state. Collective."""

    def resume(self, done: int) -> None:
        """Answer all clients of a run resumed after `done` global steps.

        The answers are those to their last pushes.
        """
        self.pushes = self.started = done * self.total // self.experiment.steps
        self.read = dict.fromkeys(self.clients, -1)
        if self.rule.bound == 0:
            self.clock.of = dict.fromkeys(self.clients, self.version)
        self._let_go(*self.clients)

    def read_by(self, codec: Codec | None) -> None:
        """Decode pushes with a codec from now on. With None, pushes are gradients."""
        self.codec, self.decoded, n = codec, torch.empty_like(self.weights), len(self.weights)
        self.wire_bytes = self.weights.nbytes if codec is None else codec.nbytes(n, self.weights.dtype)

    @property
    def done(self) -> int:
        """Return the number of global steps in the weights."""
        return self.counts(self.clients[0], 0)[-1]

    def go_back(self, done: int) -> None:
        """Undo the last update if other servers have not made it. Their `done` is then one less."""
        if self.counts(self.clients[0], 0)[-1] > done:
            weights, self.optimizer.state = self.before
            self.weights.copy_(weights)
            self.version -= 1

    def take(self, kind: int, client: int, inbox: Tensor) -> None:
        """Handle a client's message."""
        wait_all(self.under_way)
        self.inbox = inbox
        if kind != Kind.PULL:
            (self._push if kind == Kind.PUSH else self._leave)(client)
        # A client that has left gets no answer, and one that pulls gets it when it asks.
        self._let_go(*([client] if kind == (Kind.PULL if self.separate else Kind.PUSH) else []))

    def _push(self, client: int) -> None:
        age = self.staleness[client] = self.version - self.read[client]
        self.taken[client] += 1
        weight = 1 / max(1, age) if self.aware else 1.0
        rows = getattr(self.codec, "rows", 1)  # of factors, which are multiplied
        self.comm.compute(lambda: self._add(client, weight), cost=2 * rows * len(self.sum))
        self.pushes += 1
        self.clock.push(client)
        self.gathered += 1
        if self.gathered == self.rule.gather or self.pushes == self.total:
            self.advance()
            self.gathered = 0

    def advance(self) -> None:
        """Make an update that can be undone, and count it."""
        if self.parts is not None:
            self.before = self.weights.clone(), copy.deepcopy(self.optimizer.state)
        self.apply()
        self.version += 1

    def _add(self, client: int, weight: float) -> None:
        wire = self.inbox[: self.wire_bytes]
        gradient = self.codec.decode(wire, self.decoded) if self.codec else wire.view(self.weights.dtype)
        if self.parts is not None:
            self.parts[client] = gradient.clone()
            if len(self.parts) == self.rule.gather:
                torch.sum(torch.stack([self.parts[each] for each in sorted(self.parts)]), 0, out=self.sum)
                self.parts.clear()
        elif self.gathered:
            self.sum.add_(gradient, alpha=weight)
        else:
            torch.mul(gradient, weight, out=self.sum)

    def _leave(self, client: int) -> None:
        self.left.append(client)
        self.clock.leave(client)  # no client waits for a client that has stopped pushing

    def _let_go(self, *come: int) -> None:
        """Answer waiting and new clients that may continue."""
        state, asking = self.state(), list(come)
        if state != self.judged:  # otherwise nothing has changed for waiting clients
            asking, self.waiting, self.judged = [*self.waiting, *come], [], state
        # When no step is left to start, no client waits for the slowest, unless a death may undo the last update.
        go = dict.fromkeys(c for c in asking if (not state[1] and self.parts is None) or self.may_start(c))
        self.waiting += [c for c in asking if c not in go]
        for client in go:
            self._answer(client, self.clock[client] - self.clock.slowest)

    def _answer(self, client: int, lead: int) -> None:
        go = self.goes_on(client)
        head = torch.tensor([*self.counts(client, lead), go], dtype=self.answer.head.dtype)
        # Within a host, equal answers are under way together.  On a network they would share the wire, and the
        # first would arrive as late as the last.
        if not (self.comm.world.in_memory and torch.equal(head, self.answer.head)):
            wait_all(self.under_way)
            self.answer.head.copy_(head)
        self.started += go * self.per_answer
        self.read[client] = self.version
        self.under_way.append(self.comm.isend(self.answer.wire, client, self.first_tag + Kind.WEIGHTS))

    def state(self) -> tuple[int, bool]:
        """Return the facts that clients wait for: the slowest clock, and whether steps are left."""
        return self.clock.slowest, self.goes_on()

    def may_start(self, client: int) -> bool:
        """Return whether a client that has pushed may get weights for another step."""
        return self.rule.may_start(self.clock[client], self.clock.slowest)

    def apply(self) -> None:
        """Make one update from the gathered pushes."""
        self.comm.compute(lambda: self.optimizer.step(self.sum), cost=2 * len(self.sum))

    def goes_on(self, client: int | None = None) -> bool:
        """Return whether this client, or any, may start another step if it is answered now."""
        return self.started < self.total or not self.is_first

    def counts(self, client: int, lead: int) -> tuple[int, ...]:
        """Return the header of an answer: version of weights, staleness of the push, lead, and global steps."""
        done = (self.pushes - self.gathered) * self.experiment.steps // self.total
        return self.version, self.staleness[client], lead, done

    def finish(self) -> None:
        """Send the final weights to all clients after their last pushes."""
        for each in self.left:
            self._answer(each, 0)
        wait_all(self.under_way)


class Chained(Server):
    """Server whose successor copies its range, and takes over after its death (chain replication).

    A server passes on each update as one sum of pushes, and answers its clients once the successor has confirmed
    this update.  So the successor has every version that a client has seen (Li et al., OSDI 2014, section 4.4:
    replication after aggregation).
    """

    def __init__(
        self, keys: int, servers: Sequence[int], comm: Comm, clients: Sequence[int], *given: Any
    ) -> None:
        super().__init__(comm, clients, *given)
        place = servers.index(comm.rank)
        self.predecessor, self.successor = servers[place - 1], servers[(place + 1) % len(servers)]
        self.copy = Server(comm, clients, comm.packet(keys, self.weights.dtype), *given[1:])
        self.copy.pushes = -self.total  # its range has not come yet
        self.unconfirmed: list[Request] = []

    def form(self) -> None:
        self._pass_on(self.weights, self.copy.weights)
        for name, mine in self.optimizer.state.items():
            if hasattr(mine, "new_empty"):  # the momentum is only a number
                shape = self.copy.weights.shape if mine.dim() else ()
                theirs = self.copy.optimizer.state[name] = mine.new_empty(shape)
                self._pass_on(mine, theirs)
        self.copy.pushes = 0

    def _pass_on(self, mine: Tensor, theirs: Tensor) -> None:
        self.comm.sendrecv(mine, self.successor, theirs, self.predecessor, self.first_tag + Kind.UPDATE)

    def resume(self, done: int) -> None:
        super().resume(done)
        self.copy.pushes, self.copy.version = self.pushes, self.version

    @property
    def done(self) -> int:
        return min(super().done, self.copy.done)

    def go_back(self, done: int) -> None:
        super().go_back(done)
        self.copy.go_back(done)

    def apply(self) -> None:
        super().apply()
        tag = self.first_tag + Kind.UPDATE
        self.unconfirmed.append(self.comm.isend(self.sum.clone(), self.successor, tag))

    def take(self, kind: int, client: int, inbox: Tensor) -> None:
        if kind == Kind.UPDATE:
            theirs = self.copy.sum
            theirs.copy_(inbox[: theirs.nbytes].view(theirs.dtype))
            self.copy.pushes = min(self.copy.pushes + self.rule.gather, self.total)
            self.copy.advance()
            self.comm.send(self.comm.empty(0), self.predecessor, self.first_tag + Kind.CONFIRM)
        elif kind == Kind.CONFIRM:
            self.unconfirmed.pop(0).wait()
            self._let_go()
        else:
            super().take(kind, client, inbox)

    def _let_go(self, *come: int) -> None:
        if self.unconfirmed:
            self.waiting, self.judged = [*self.waiting, *come], None
        else:
            super()._let_go(*come)


class WithBackup(Server):
    """Server that accepts only the first pushes of a step.

    Its rule sets how many pushes it accepts. The server drops later pushes.

    A client whose push is dropped gets the newest weights at once, or when it asks for them.  The others wait
    for the update of their step.
    """

    def _push(self, client: int) -> None:
        if self.read[client] == self.version:
            return super()._push(client)
        self.staleness[client] = self.version - self.read[client]
        self.pushes += 1

    def state(self) -> tuple[int, bool]:
        return self.version, self.goes_on()

    def may_start(self, client: int) -> bool:
        return self.read[client] < self.version

    def goes_on(self, client: int | None = None) -> bool:
        return self.version < self.experiment.steps

    def counts(self, client: int, lead: int) -> tuple[int, ...]:
        return self.version, self.staleness[client], 0, self.version


class Leaf(Server):
    """Server for a group of workers. It is their single client at the servers above."""

    kept = (*Server.kept, "above")
    has_model = False

    def __init__(self, above: Client, *given: Any) -> None:
        super().__init__(*given)
        self.above, self.is_free = above, self.experiment.sync.group_consistency == "asp"
        # Each client's version of the weights above, and whether a client of a free group may start a step.
        self.given, self.granted = dict.fromkeys(self.clients, 0), dict[int | None, bool]()

    def resume(self, done: int) -> None:
        own = self.weights.clone()
        self.above.rejoin()
        self.given = dict.fromkeys(self.clients, self.above.version)
        if self.has_model:
            self.weights.copy_(own)
        super().resume(done)

    def apply(self) -> None:
        known = self.above.version
        self._push_up(self.sum)
        if self.is_free:  # the push is from one client, and as old as its weights
            self.staleness[self.pushing] = self.above.staleness + known - self.given[self.pushing]
            self.granted[self.pushing] = self.above.going_on

    def _push_up(self, difference: Tensor) -> None:
        self.above.push(0, difference, answered=not self.separate)
        if self.separate:
            self.above.ask(0)
        self.above.receive()

    def _push(self, client: int) -> None:
        self.pushing = client
        super()._push(client)

    def _answer(self, client: int, lead: int) -> None:
        super()._answer(client, lead)
        self.given[client] = self.above.version

    def goes_on(self, client: int | None = None) -> bool:
        return self.granted.get(client, self.above.going_on)

    def counts(self, client: int, lead: int) -> tuple[int, ...]:
        above = self.above
        stale = self.staleness[client] if self.is_free else above.staleness
        return above.version, stale, lead if self.is_free else above.next_lead, above.done

    def _leave(self, client: int) -> None:
        super()._leave(client)
        # A wait for the final weights here would delay other buckets, and the leaves that wait for their
        # pushes.
        if not self.clock:
            self.above.ask(0, Kind.LEAVE)

    def finish(self) -> None:
        self.above.receive()
        super().finish()


class OwnLeaf(Leaf):
    """Leaf with a separate model of its group. Every few updates, the servers above average these models.

    The leaf pushes the change since the last average, divided by the number of groups, as a gradient with
    learning rate 1. In between, each group trains separately, like SINGA's server groups (Ooi et al. 2015).
    """

    kept = (*Leaf.kept, "agreed")
    has_model = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.agreed, self.groups = self.weights.clone(), self.experiment.sync.groups
        self.period = self.experiment.sync.group_period

    def apply(self) -> None:
        # Workers' pushes add up to the gradient of a global batch.  A group's part is scaled to a mean.
        self.sum.mul_(self.groups)
        super(Leaf, self).apply()
        if (self.version + 1) % self.period == 0:
            self._push_up(self.agreed.sub_(self.weights).div_(self.groups))
            self.agreed.copy_(self.weights)

    def goes_on(self, client: int | None = None) -> bool:
        return self.above.going_on or self.version % self.period != 0

    def counts(self, client: int, lead: int) -> tuple[int, ...]:
        version, stale, above, done = super().counts(client, lead)
        done = min(done + self.version % self.period, self.experiment.steps)
        return version, stale, above * self.period, done


def serve(comm: Comm, experiment: Experiment, record: Recorder, keeper: Keeper) -> None:
    """Run this rank as a server or a leaf."""
    steps, experiment = experiment.steps, outer(experiment)
    block = steps // experiment.steps  # steps of a worker per step of this server
    sync, workers = experiment.sync, experiment.workers
    # Servers above leaves with their own models add up differences of models.
    centre = experiment.replace(optimizer="sgd", lr=1.0) if sync.group_period else experiment
    lengths, dtype, codes = comm.broadcast(None)
    check_servers(sync, lengths)
    roots, leaves = range(workers, workers + sync.servers), range(workers + sync.servers, comm.size)
    is_leaf, first = comm.rank in leaves, comm.rank == workers
    if is_leaf:  # a leaf holds all weights
        clients = [worker for worker in range(workers) if leaf_of(experiment, worker) == comm.rank]
        parts, mine = 1, 0
    else:
        clients = list(leaves) or list(range(workers))
        parts, mine = sync.servers, comm.rank - workers
    keys_of = lambda place, bucket: lengths[bucket] // parts + (place < lengths[bucket] % parts)
    mine_of = partial(keys_of, mine)
    answers = {bucket: comm.packet(mine_of(bucket), dtype) for bucket in filter(mine_of, range(len(lengths)))}
    if not is_leaf or sync.group_period:
        for bucket, answer in answers.items():
            comm.recv(answer.body, 0, bucket * TAGS + Kind.INITIAL)
    comm.barrier()

    def of_bucket(comm: Comm, bucket: int) -> Server:
        answer = answers[bucket]
        if is_leaf:
            above = Client(comm, roots, answer.body, experiment, [len(answer.body)], bucket)
            leaf = OwnLeaf if sync.group_period else Leaf
            return leaf(above, comm, clients, answer, experiment, of_group(sync, len(clients)), bucket)
        rule = consistency(sync, len(clients))
        kind: Any = WithBackup if experiment.backup else Server
        if sync.replicas:
            kind = partial(Chained, keys_of((mine - 1) % parts, bucket), roots)
        server = kind(comm, clients, answer, centre, rule, bucket, first and bucket == 0)
        if bucket in codes:
            server.read_by(FactorCode(mine, parts, *codes[bucket]))
        return server

    def run(comm: Comm, _: Tensor) -> Server:
        """Serve until every client has left. Return the server of the first bucket."""
        servers = {bucket: of_bucket(comm, bucket) for bucket in answers}
        longest = max(max(server.wire_bytes, server.weights.nbytes) for server in servers.values())
        inbox = wire.new_empty(longest + dtype.itemsize)  # a copied range may be longer by one

        def keep(at_end: bool = False) -> None:
            done = block * min(server.done for server in servers.values())
            keeper.after(done, done, at_end)

        keeper.hold(**{f"bucket {bucket}": server for bucket, server in servers.items()})
        for server in servers.values():
            server.form()
        for server in servers.values() if keeper.resumed else ():
            server.resume(keeper.done // block)
        watched = comm.world.watches
        while clients_left := max(len(server.clock) for server in servers.values()):
            # As many workers as there are backups may be dead without effect, until the others have left.
            comm.world.watches = watched and min(1 + experiment.backup, clients_left)
            arrival = comm.recv(inbox, ANY, ANY)
            bucket, kind = divmod(arrival.tag, TAGS)
            servers[bucket].take(kind, arrival.source, inbox)
            keep()
        for server in servers.values():
            server.finish()
        keep(at_end=True)
        return servers[min(servers)]

    wire = next(iter(answers.values())).wire
    served = comm.start(run, wire).wait() if sync.overlap else run(comm, wire)
    record.event("served", version=served.version, pushes=served.pushes, **comm.traffic.take())
    record.end(served.pushes)
