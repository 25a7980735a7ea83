"""Simulated ranks on a virtual clock. They have the same calls as MPI ranks.

One process holds all ranks. :mod:`dlpar.worlds.simulated.network` decides when messages arrive.  A
computation takes as long as its cost on the platform's devices. Nothing else takes time. If ranks compute
values, messages carry copies. Otherwise they carry only sizes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch

from dlpar.comm.base import ANY, Arrival, Collective, Comm, Packet, Request, T, Traffic, check_peer
from dlpar.comm.ghost import NUMBER, Ghost, GhostPacket, elements
from dlpar.worlds.logical import RESTARTING, LogicalComm, LogicalWorld, Marks, Pace
from dlpar.worlds.simulated.mailbox import Mailbox, Message, Receive, store
from dlpar.worlds.simulated.simulator import Activity, Died, LostRank, Simulator


class SimulatedWorld(LogicalWorld):
    """Environment of one simulated rank: its clock in the simulator, and whether ranks compute."""

    clock = "virtual"

    def __init__(self, simulator: Simulator, pace: Pace, eager: int) -> None:
        super().__init__("simulated", pace, eager)
        self.simulator, self.computes, self.traffic = simulator, simulator.computes, VirtualTraffic()

    def once(self, name: str, make: Callable[[], T]) -> T:
        made = self.simulator.made
        if name not in made:
            made[name] = make()
        return made[name]

    def build(self, make: Callable[[], T]) -> T:
        return make() if self.computes else self.once("outline", make)

    def pause(self, seconds: float) -> None:
        if seconds > 0:
            activity = self.simulator.running
            self.simulator.advance(activity, activity.clock + seconds)

    def lock(self) -> Lock:
        return Lock(self.simulator)

    def before_death(self, why: str) -> None:
        rank = self.simulator.running.rank
        if self.watches and any(other.rank != rank for other in self.simulator.alive()):
            self.simulator.die(rank)
        raise Died(why)

    def survivors(self, comm: Comm) -> Comm:
        assert isinstance(comm, SimulatedComm)
        simulator, activity, known = self.simulator, comm.activity, self.simulator.known
        while True:
            activity.lost = False
            living = lambda: Group([member for member in comm.group.members if member not in known])
            part = comm.within(self.once(f"survivors of {len(known)} deaths", living))
            with suppress(LostRank):  # one more has died
                part.barrier()
                break
        simulator.made.clear()  # these objects may depend on the number of ranks
        self.pause(RESTARTING)
        return part


class SimulatedComm(LogicalComm):
    """One rank of a group. It runs on one activity of a simulator.

    Parameters
    ----------
    world : SimulatedWorld
        Environment of the rank.
    group : Group
        The ranks that are numbered together.
    rank : int
        Number in the group.
    activity : Activity
        Task that makes the calls.
    """

    mailbox = Mailbox

    def __init__(self, world: SimulatedWorld, group: Group, rank: int, activity: Activity) -> None:
        self.world, self.group, self.rank, self.size = world, group, rank, group.size
        simulator = self.simulator = world.simulator
        self.activity, self.pace, self.eager = activity, world.pace, world.eager
        self.computes, network, member = simulator.computes, simulator.network, group.members[rank]
        self.sizes, self.charged = not self.computes, network.charged
        self.sent_bytes = self.sent_messages = 0
        if not group.boxes:
            group.boxes += [self.mailbox(simulator, each) for each in group.members]
        self.boxes, self.box = group.boxes, group.boxes[rank]
        self.box.owner = activity  # the activity that receives from this mailbox
        self.near, self.far = network.inside[member].out, network.between[member].out
        self.node, self.traffic = self.box.node, world.traffic
        self.traffic.comms.append(self)
        self._side: Side | None = None

    def now(self) -> float:
        return self.activity.clock

    # ---- messages -----------------------------------------------------------------------

    def send(self, tensor: Any, dest: int, tag: int = 0) -> None:
        message = self._post(tensor, dest, tag)
        if message.nbytes > self.eager:
            Sending(self, message, dest).wait()

    def isend(self, tensor: Any, dest: int, tag: int = 0) -> Request:
        return Sending(self, self._post(tensor, dest, tag), dest)

    def recv(self, into: Any, source: int = ANY, tag: int = ANY) -> Arrival:
        """Receive like ``irecv(into, source, tag).wait()``, in one step unless other receives are posted."""
        box, activity = self.box, self.activity
        if box.posted or (source == ANY and not box.in_order):
            return self.irecv(into, source, tag).wait()
        since, inbox, place = activity.clock, box.inbox, 0
        for message in inbox:
            if (source == message.source or source == ANY) and (tag == message.tag or tag == ANY):
                del inbox[place]
                message.met = since
                if message.sender is not None:
                    box.release(message, since)
                if message.done > since:
                    self.simulator.advance(activity, message.done)
                    box.waited += activity.clock - since
                break
            place += 1
        else:
            if not -1 <= source < self.size:
                check_peer(self, source, "source")
            box.source = source
            box.tag = tag
            box.blocked = True
            activity.waits_for = box
            self.simulator.next().switch()
            message = box.message
            box.waited += activity.clock - since
        if self.charged:
            self.simulator.advance(activity, activity.clock + message.overhead)
        if message.payload is not None or message.nbytes > into.nbytes:
            store(message, into)
        return message

    def irecv(self, into: Any, source: int = ANY, tag: int = ANY) -> Receive:
        if not -1 <= source < self.size:
            check_peer(self, source, "source")
        return self.box.post(into, source, tag)

    def sendrecv(self, tensor: Any, dest: int, into: Any, source: int, tag: int = 0) -> Arrival:
        message = self._post(tensor, dest, tag)
        arrival = self.recv(into, source, tag)
        if message.nbytes > self.eager and (message.met is None or message.left > self.activity.clock):
            Sending(self, message, dest).wait()
        return arrival

    def _post(self, tensor: Any, dest: int, tag: int) -> Message:
        """Pass a message to the network. The network carries it independently of its receiver."""
        if not 0 <= dest < self.size:
            check_peer(self, dest, "dest")
        nbytes, box = tensor.nbytes, self.boxes[dest]
        self.sent_bytes += nbytes
        self.sent_messages += 1
        try:
            payload = tensor.head if self.sizes else tensor
        except AttributeError:
            payload = None
        if payload is not None:  # the sender may change its tensor once a short message is on its way
            payload = payload.detach().clone()
        message = Message()  # filled in here, because a constructor call would cost too much
        message.source = self.rank
        message.tag = tag
        message.nbytes = nbytes
        message.payload = payload
        message.sender = message.met = None
        if box.node != self.node:
            mine, into = self.far, box.far
        elif box is not self.box:
            mine, into = self.near, box.near
        else:
            return self._keep(message)
        if self.charged:
            message.overhead = mine.overhead
            self.simulator.advance(self.activity, self.activity.clock + mine.overhead)
        now = self.activity.clock
        begins = mine.free
        if begins < now:
            begins = now
        arrives = begins + mine.latency
        busy = nbytes * mine.per_byte
        message.left = mine.free = begins + busy
        # No head can arrive there before: all of this port's messages have one latency, and begin from now on.
        if begins == now and not into.pending:
            if arrives < into.free:
                arrives = into.free
            into.free = message.done = arrives + busy
            if box.blocked or box.posted:
                box.deliver(message)
            else:
                box.inbox.append(message)
        else:
            into.pending += 1
            message.box, message.port, message.busy = box, into, busy
            self.simulator.plan(arrives, message)
        return message

    def _keep(self, message: Message) -> Message:
        """Deliver a rank's message to itself at once. The message occupies the port like any other."""
        near, box, message.overhead = self.near, self.box, 0.0
        message.left = message.done = now = self.activity.clock
        near.free = max(near.free, now) + message.nbytes * near.per_byte
        box.in_order = False  # it is complete before messages that are under way
        box.deliver(message)
        return message

    # ---- time ----------------------------------------------------------------------------

    def compute(self, work: Callable[[], Any], cost: float | None = None, marks: Marks = ()) -> Any:
        result = work() if self.computes else NUMBER
        if cost or marks:
            activity, pace = self.activity, self.pace
            # Inline pace.seconds(cost), which would be called for each message of a reduction.
            seconds, done = (cost or 0.0) * pace.per_flop * pace.factor, 0.0
            for share, call in marks:
                self.slowed(share * seconds - done)
                done = share * seconds
                call()
            if pace.overlap < 1:
                self.slowed(seconds - done)
            else:
                self.simulator.advance(activity, activity.clock + (seconds - done))
        return result

    def slowed(self, seconds: float) -> None:
        """Compute for this time. Simultaneous communication may extend it."""
        activity = self.activity
        while seconds > 0:
            before = activity.communicated()
            self.simulator.advance(activity, activity.clock + seconds)
            # The missing share was lost while the rank's other activities communicated.
            lost = (1 - self.pace.overlap) * (activity.communicated() - before)
            seconds = lost if lost > 1e-12 else 0.0

    # ---- buffers ---------------------------------------------------------------------------

    def empty(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> Any:
        return torch.empty(shape, dtype=dtype) if self.computes else Ghost(elements(shape), dtype)

    def packet(self, length: int, dtype: torch.dtype = torch.float32) -> Packet:
        return Packet(length, dtype) if self.computes else GhostPacket(length, dtype)

    def shared(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> Any:
        return self.group.together(self, None, lambda _: self.empty(shape, dtype).zero_())

    # ---- all together ----------------------------------------------------------------------

    def meet(self, thing: Any, to: int = ANY) -> list[Any]:
        return self.group.together(self, thing)

    def counter(self) -> Any:
        return self.group.together(self, None, lambda _: SimpleNamespace(take=count().__next__))

    def split(self, color: int, key: int = 0) -> Comm:
        return self.within(self.group.together(self, (color, key), self.group.parts)[color])

    def within(self, group: Group) -> SimulatedComm:
        """Return this rank in a group of some of this group's ranks."""
        rank = group.members.index(self.group.members[self.rank])
        return type(self)(self.world, group, rank, self.activity)

    def start(self, collective: Collective, bucket: Any) -> Request:
        self._side = self._side or Side(self)
        return self._side.start(collective, bucket)

    def close(self) -> None:
        if self._side is not None:
            self._side.close()


class Group:
    """Group of ranks, numbered from 0, that exchange messages only among themselves.

    Parameters
    ----------
    members : sequence of int
        Their numbers in the whole simulation.
    """

    def __init__(self, members: Sequence[int]) -> None:
        self.members, self.size = list(members), len(members)
        # The first rank that takes its mailbox makes all mailboxes, because some ranks get messages before
        # they listen.
        self.boxes: list[Mailbox] = []
        self._meeting = Meeting(self.size)

    @cached_property
    def beside(self) -> Group:
        """Return a group of the same ranks for messages during computation. Only its own messages match."""
        return Group(self.members)

    def together(self, comm: SimulatedComm, thing: Any, result: Callable[[list[Any]], Any] = list) -> Any:
        """Wait for all ranks, and return ``result(things)`` to every rank.

        The result is computed once from all ranks' objects.
        """
        meeting, activity = self._meeting, comm.activity
        meeting.things[comm.rank] = thing
        meeting.present.append(activity)
        if len(meeting.present) == self.size:
            self._meeting = Meeting(self.size)
            meeting.result = result(meeting.things)
            for other in meeting.present[:-1]:
                comm.simulator.wake(other, activity.clock)
        else:
            since = activity.clock
            activity.waits_for = meeting
            comm.simulator.next().switch()
            comm.box.waited += activity.clock - since
        return meeting.result

    def parts(self, asked: list[tuple[int, int]]) -> dict[int, Group]:
        """Return the groups of ranks by their (color, key), as MPI_Comm_split does."""
        members: dict[int, list[int]] = {}
        for color, _, rank in sorted((color, key, rank) for rank, (color, key) in enumerate(asked)):
            members.setdefault(color, []).append(self.members[rank])
        return {color: Group(part) for color, part in members.items()}


class Meeting:
    """Call that all ranks of a group make: those present, their objects, and the result."""

    def __init__(self, size: int) -> None:
        self.things, self.present, self.result = [None] * size, list[Activity](), None

    def __str__(self) -> str:
        return "a meeting of all ranks (barrier, gather or broadcast)"

    def give_up(self, activity: Activity) -> None:
        """Leave the call because of a death."""
        self.present.remove(activity)


class Sending:
    """Pending send. Its `str` describes the wait of a rank.

    Parameters
    ----------
    comm : SimulatedComm
        The sender.
    message : Message
        The message under way.
    dest : int
        Its receiver.
    """

    __slots__ = ("comm", "dest", "message")

    def __init__(self, comm: SimulatedComm, message: Message, dest: int) -> None:
        self.comm, self.message, self.dest = comm, message, dest

    def __str__(self) -> str:
        return f"send of {self.message.nbytes:,} bytes to rank {self.dest} (tag {self.message.tag})"

    def give_up(self, activity: Activity) -> None:
        """Stop waiting because of a death."""
        self.message.sender = None

    def wait(self) -> None:
        """Block until a long message has left and its receive is posted."""
        comm, message = self.comm, self.message
        if message.nbytes <= comm.eager:
            return
        activity = comm.activity
        if message.met is None:
            message.sender, activity.waits_for = activity, self
            comm.simulator.next().switch()
        elif message.left > activity.clock:
            comm.simulator.advance(activity, message.left)

    def test(self) -> bool:
        message, now = self.message, self.comm.activity.clock
        is_gone = message.met is not None and max(message.left, message.met) <= now
        return message.nbytes <= self.comm.eager or is_gone


class Side:
    """Second activity of a rank, which runs collectives in the order in which they were started.

    Parameters
    ----------
    comm : SimulatedComm
        The rank's communicator, whose ports it uses.
    """

    def __init__(self, comm: SimulatedComm) -> None:
        self.computing, self.simulator = comm.activity, comm.simulator
        self.activity = Activity(comm.activity.rank, comm.activity.clock)
        self.activity.lost = comm.activity.lost
        self.comm = type(comm)(comm.world, comm.group.beside, comm.rank, self.activity)
        self.queue, self.open = deque[_Started](), True
        self.simulator.add(self.activity, self._run)

    def start(self, collective: Collective, bucket: Any) -> _Started:
        """Queue ``collective(comm, bucket)``. It begins now, or when the collectives before it have ended."""
        started = _Started(self, collective, bucket)
        self.queue.append(started)
        self._rouse()
        return started

    def close(self) -> None:
        """End the activity after its queue."""
        self.open = False
        self._rouse()

    def _rouse(self) -> None:
        if self.activity.idle:
            self.activity.idle = False
            self.simulator.wake(self.activity, self.computing.clock)

    def _run(self) -> None:
        computing = self.computing
        while True:
            while self.queue:
                computing.since = computing.since if computing.beside else self.activity.clock
                computing.beside += 1
                self.queue.popleft().run(self.comm)
                computing.beside -= 1
                computing.busy += 0.0 if computing.beside else self.activity.clock - computing.since
            if not self.open:
                return
            self.activity.idle = True
            self.simulator.next().switch()


class _Started(Future):
    """Pending collective. It carries its result, or its exception, back to the rank that waits."""

    def __init__(self, side: Side, collective: Collective, bucket: Any) -> None:
        super().__init__()
        self._side, self._collective, self._bucket, self._waiter = side, collective, bucket, None
        self.test = self.done

    def run(self, comm: SimulatedComm) -> None:
        try:
            self.set_result(self._collective(comm, self._bucket))
        except Exception as error:  # re-raised in wait(), where it can be handled
            self.set_exception(error)
        if self._waiter is not None:
            self._side.simulator.wake(self._waiter, comm.activity.clock)

    def wait(self) -> Any:
        if not self.done():
            activity = self._waiter = self._side.computing
            activity.waits_for = "the end of what it started beside its computation"
            self._side.simulator.next().switch()
        return self.result()


class Lock:
    """Mutual exclusion between activities on the virtual clock. A waiting activity lets others run."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator, self.owner, self.waiting = simulator, None, deque()

    def __enter__(self) -> None:
        activity = self.simulator.running
        if self.owner is not None:
            self.waiting.append(activity)
            activity.waits_for = "a lock"
            self.simulator.next().switch()
        self.owner = activity

    def __exit__(self, *error: object) -> None:
        self.owner = self.waiting.popleft() if self.waiting else None
        if self.owner is not None:
            self.simulator.wake(self.owner, self.simulator.running.clock)


class VirtualTraffic(Traffic):
    """Counts of one rank in all its groups. For speed, they are taken within send and receive."""

    def __init__(self) -> None:
        self._hidden = False
        self.comms: list[SimulatedComm] = []

    def _total(self, count: str) -> int | None:
        return None if self._hidden else sum(getattr(comm, count) for comm in self.comms)

    bytes = property(lambda self: self._total("sent_bytes"))
    messages = property(lambda self: self._total("sent_messages"))

    @property
    def waited(self) -> float:
        return sum(comm.box.waited for comm in self.comms)

    def waiting(self, blocked: Callable[[], T]) -> T:
        """Run a call that blocks. The mailbox already counts its seconds."""
        return blocked()

    def hidden(self) -> None:
        self._hidden = True

    def take(self) -> dict[str, int | None]:
        taken, self._hidden = {"bytes": self.bytes, "messages": self.messages}, False
        for comm in self.comms:
            comm.sent_bytes = comm.sent_messages = 0
        return taken
