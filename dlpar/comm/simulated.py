"""Ranks of a simulation: the same calls as on MPI, on a virtual clock.

One process holds all ranks.  Messages arrive as :mod:`dlpar.comm.simulation.network` says and a
computation takes as long as its cost on the platform's devices; nothing else takes
time.  Where ranks really compute, messages carry copies; else sizes only.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from dlpar.comm.base import ANY, Arrival, Collective, Comm, Packet, Request, check_peer
from dlpar.comm.simulation.ghost import NUMBER, Ghost, GhostPacket, elements
from dlpar.comm.simulation.group import Group, packed
from dlpar.comm.simulation.mailbox import Mailbox, Message, Receive
from dlpar.comm.own_library import OwnLibrary
from dlpar.comm.simulation.pace import Pace
from dlpar.comm.simulation.side import Lock, Side
from dlpar.comm.simulation.simulator import Activity, Simulator
from dlpar.comm.simulation.traffic import VirtualTraffic


class SimulatedComm(OwnLibrary):
    """One rank of a group, on one activity of a simulator.

    Parameters
    ----------
    simulator : Simulator
        Its clock, and whether ranks really compute.
    group : Group
        Who belongs together.
    rank : int
        In the group.
    activity : Activity
        What runs the calls.
    pace : Pace
        Seconds of a computation on this rank's device.
    eager : float
        Bytes up to which a send returns at once; of those sent, where others are charged in their place.
    """

    carrier, clock = "simulated", "virtual"
    device = torch.device("cpu")

    def __init__(self, simulator: Simulator, group: Group, rank: int, activity: Activity, pace: Pace, eager: float,
                 traffic: VirtualTraffic | None = None) -> None:  # fmt: skip
        self.simulator, self.group, self.rank, self.size = simulator, group, rank, group.size
        self.activity, self.pace, self.eager = activity, pace, eager
        self.computes, network, member = simulator.computes, simulator.network, group.members[rank]
        self.sizes, self.least, store = not self.computes, network.least, _store if self.computes else _store_head
        self.sent_bytes = self.sent_messages = 0
        if not group.boxes:
            group.boxes += [Mailbox(simulator, store, each) for each in group.members]
        self.box = group.boxes[rank].owned(activity)
        self.node, self.near, self.far = self.box.node, network.inside[member].out, network.between[member].out
        self.traffic = traffic or VirtualTraffic(self.now)
        self.traffic.comms.append(self)
        self._side: Side | None = None

    def now(self) -> float:
        return self.activity.clock

    # ---- messages -----------------------------------------------------------------------

    def send(self, tensor: Any, dest: int, tag: int = 0) -> None:
        message = self._post(tensor, dest, tag)
        if message.nbytes > self.eager:
            self._sent(message, dest)

    def isend(self, tensor: Any, dest: int, tag: int = 0) -> Request:
        return _Sending(self, self._post(tensor, dest, tag), dest)

    def recv(self, into: Any, source: int = ANY, tag: int = ANY) -> Arrival:
        if not -1 <= source < self.size:
            check_peer(self, source, "source")
        return self.box.receive(into, source, tag)

    def irecv(self, into: Any, source: int = ANY, tag: int = ANY) -> Receive:
        if not -1 <= source < self.size:
            check_peer(self, source, "source")
        return self.box.post(into, source, tag)

    def sendrecv(self, tensor: Any, dest: int, into: Any, source: int, tag: int = 0) -> Arrival:
        if not -1 <= source < self.size:
            check_peer(self, source, "source")
        message = self._post(tensor, dest, tag)
        arrival = self.box.receive(into, source, tag)
        if message.nbytes > self.eager and (message.met is None or message.left > self.activity.clock):
            self._sent(message, dest)
        return arrival

    def _post(self, tensor: Any, dest: int, tag: int) -> Message:
        """Give a message to the network; it is on its way whatever its receiver does."""
        if not 0 <= dest < self.size:
            check_peer(self, dest, "dest")
        nbytes, now, box = tensor.nbytes, self.activity.clock, self.group.boxes[dest]
        self.sent_bytes += nbytes
        self.sent_messages += 1
        try:
            payload = tensor.head if self.sizes else tensor
        except AttributeError:
            payload = None
        if payload is not None:  # the sender may change it as soon as a short message is on its way
            payload = payload.detach().clone()
        if box.node == self.node:
            mine, into = self.near, box.near
        else:
            mine, into = self.far, box.far
        busy = nbytes * mine.per_byte
        begins = mine.free
        if begins < now:
            begins = now
        arrives = begins + mine.latency
        message = Message()  # filled in here: a constructor would be called too often
        message.source = self.rank
        message.tag = tag
        message.nbytes = nbytes
        message.payload = payload
        message.left = mine.free = begins + busy
        message.sender = message.met = None
        if dest == self.rank:
            message.left = message.done = now
            box.in_order = False  # it is complete before others that are on their way
            box.deliver(message)
        elif not into.pending and arrives <= now + self.least:  # nobody's head can arrive before
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

    def _sent(self, message: Message, dest: int) -> None:
        """Block until a long message has left and its receive is posted."""
        activity, simulator = self.activity, self.simulator
        if message.met is None:
            message.sender = activity
            activity.waits_for = f"send of {message.nbytes:,} bytes to rank {dest} (tag {message.tag})"
            simulator.sleep(activity)
        elif message.left > activity.clock:
            simulator.advance(activity, message.left)

    # ---- time ----------------------------------------------------------------------------

    def compute(self, work: Callable[[], Any], cost: float | None = None, marks: Sequence = ()) -> Any:
        result = work() if self.computes else NUMBER
        if cost or marks:
            activity, pace, done = self.activity, self.pace, 0.0
            seconds = (cost or 0.0) * pace.per_flop * pace.factor
            for share, call in marks:
                self._compute(share * seconds - done)
                done = share * seconds
                call()
            if self._side is not None and pace.overlap < 1:
                self._compute(seconds - done)
            else:
                self.simulator.advance(activity, activity.clock + (seconds - done))
        return result

    def _compute(self, seconds: float) -> None:
        """Compute for so long; what is communicated beside that may slow it down."""
        activity, side, overlap = self.activity, self._side, self.pace.overlap
        while seconds > 0:
            busy = side.busy() if side else 0.0
            self.simulator.advance(activity, activity.clock + seconds)
            # What is missing: the share that was lost while the other activity communicated.
            seconds = (1 - overlap) * (side.busy() - busy) if side and overlap < 1 else 0.0
            seconds = seconds if seconds > 1e-12 else 0.0

    def inside(self, call: Callable[[], None]) -> None:
        """Nothing: the marks of :meth:`compute` make the calls, at their moments of the virtual clock."""

    def pause(self, seconds: float) -> None:
        if seconds > 0:
            self.simulator.advance(self.activity, self.activity.clock + seconds)

    def new_step(self, step: int) -> None:
        self.pace.new_step(step)
        self.pause(self.pace.overhead)

    # ---- buffers ---------------------------------------------------------------------------

    def empty(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> Any:
        return torch.empty(shape, dtype=dtype) if self.computes else Ghost(elements(shape), dtype)

    def packet(self, length: int, dtype: torch.dtype = torch.float32) -> Packet:
        return Packet(length, dtype) if self.computes else GhostPacket(length, dtype)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        return self.group.once(name, make)

    def build(self, make: Callable[[], Any], outline: Callable[[], Any]) -> Any:
        return make() if self.computes else self.group.once("outline", outline)

    def lock(self) -> Lock:
        return Lock(self.simulator)

    def shared(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> Any:
        zeros = torch.zeros if self.computes else lambda shape, dtype: Ghost(elements(shape), dtype)
        return self.group.together(self, None, lambda _: zeros(shape, dtype=dtype))

    # ---- all together ----------------------------------------------------------------------

    def barrier(self) -> None:
        self.group.together(self, None)

    def gather(self, thing: Any, root: int = 0) -> list[Any] | None:
        check_peer(self, root, "root")
        things = self.group.together(self, packed(thing), list)
        return [copy() for copy in things] if self.rank == root else None

    def broadcast(self, thing: Any, root: int = 0) -> Any:
        check_peer(self, root, "root")
        return self.group.together(self, packed(thing) if self.rank == root else None)[root]()

    def counter(self) -> Any:
        return self.group.together(self, None, lambda _: _Counter())

    def split(self, color: int, key: int = 0) -> Comm:
        group = self.group.together(self, (color, key), self.group.parts)[color]
        rank = group.members.index(self.group.members[self.rank])
        return SimulatedComm(self.simulator, group, rank, self.activity, self.pace, self.eager, self.traffic)

    def start(self, collective: Collective, bucket: Any) -> Request:
        if self._side is None:
            self._side = Side(self)
        return self._side.start(collective, bucket)

    def close(self) -> None:
        if self._side is not None:
            self._side.close()


class _Sending:
    """A send under way."""

    __slots__ = ("comm", "message", "dest")

    def __init__(self, comm: SimulatedComm, message: Message, dest: int) -> None:
        self.comm, self.message, self.dest = comm, message, dest

    def wait(self) -> None:
        if self.message.nbytes > self.comm.eager:
            self.comm._sent(self.message, self.dest)

    def test(self) -> bool:
        message, now = self.message, self.comm.activity.clock
        return message.nbytes <= self.comm.eager or message.met is not None and max(message.left, message.met) <= now


class _Counter:
    def __init__(self) -> None:
        self.number = -1

    def take(self) -> int:
        self.number += 1
        return self.number


def _store(message: Message, into: torch.Tensor) -> None:
    """Copy what came into a buffer that has room for it."""
    _check_room(message, into)
    payload, into = message.payload, into.detach()
    if payload.dtype == into.dtype and payload.shape == into.shape:
        into.copy_(payload)
    elif into.is_contiguous():
        into.view(-1).view(torch.uint8)[: message.nbytes] = payload.contiguous().view(-1).view(torch.uint8)
    else:
        whole = into.contiguous()
        _store(message, whole)
        into.copy_(whole)


def _store_head(message: Message, into: Ghost) -> None:
    """Of a message that carries sizes only, its head is all there is to keep."""
    _check_room(message, into)
    if getattr(into, "head", None) is not None:
        into.head.copy_(message.payload)


def _check_room(message: Message, into: Any) -> None:
    if message.nbytes > into.nbytes:
        raise ValueError(f"recv: there is room for {into.nbytes:,} bytes, but rank {message.source} sent "
                         f"{message.nbytes:,} (tag {message.tag})")  # fmt: skip
