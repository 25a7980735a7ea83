"""Ranks of a simulation: the same calls as on MPI, on a virtual clock.

One process holds all ranks.  Messages arrive as :mod:`dlpar.comm.simulation.network` says and a
computation takes as long as its cost on the platform's devices; nothing else takes
time.  Where ranks really compute, messages carry copies; else sizes only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dlpar.comm.base import ANY, Arrival, Collective, Comm, Packet, Request, check_peer
from dlpar.comm.own_library import OwnLibrary
from dlpar.comm.simulation.ghost import NUMBER, Ghost, GhostPacket, elements
from dlpar.comm.simulation.group import Group, packed
from dlpar.comm.simulation.mailbox import Mailbox, Message, Receive
from dlpar.comm.simulation.pace import Pace
from dlpar.comm.simulation.sending import Sending
from dlpar.comm.simulation.side import Lock, Side
from dlpar.comm.simulation.simulator import Activity, Simulator
from dlpar.comm.simulation.store import store, store_head
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
    eager : int
        Bytes up to which a send returns at once; of those sent, where others are charged in their place.
    """

    carrier, clock = "simulated", "virtual"
    device = torch.device("cpu")

    def __init__(
        self,
        simulator: Simulator,
        group: Group,
        rank: int,
        activity: Activity,
        pace: Pace,
        eager: int,
        traffic: VirtualTraffic | None = None,
    ) -> None:
        self.simulator, self.group, self.rank, self.size = simulator, group, rank, group.size
        self.activity, self.pace, self.eager = activity, pace, eager
        self.computes, network, member = simulator.computes, simulator.network, group.members[rank]
        self.sizes, self.least, keep = (
            not self.computes,
            network.least,
            store if self.computes else store_head,
        )
        self.sent_bytes = self.sent_messages = 0
        if not group.boxes:
            group.boxes += [Mailbox(simulator, keep, each) for each in group.members]
        self.boxes, self.box = group.boxes, group.boxes[rank].owned(activity)
        self.node, self.near, self.far = (
            self.box.node,
            network.inside[member].out,
            network.between[member].out,
        )
        self.traffic = traffic or VirtualTraffic(self.now)
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
        """What ``irecv(into, source, tag).wait()`` does, in one: posting and taking, unless others are posted."""
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
        if message.payload is not None or message.nbytes > into.nbytes:
            box.store(message, into)
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
        """Give a message to the network; it is on its way whatever its receiver does."""
        if not 0 <= dest < self.size:
            check_peer(self, dest, "dest")
        nbytes, now, box = tensor.nbytes, self.activity.clock, self.boxes[dest]
        self.sent_bytes += nbytes
        self.sent_messages += 1
        try:
            payload = tensor.head if self.sizes else tensor
        except AttributeError:
            payload = None
        if payload is not None:  # the sender may change it as soon as a short message is on its way
            payload = payload.detach().clone()
        message = Message()  # filled in here: a constructor would be called too often
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
        begins = mine.free
        if begins < now:
            begins = now
        arrives = begins + mine.latency
        busy = nbytes * mine.per_byte
        message.left = mine.free = begins + busy
        if not into.pending and arrives <= now + self.least:  # nobody's head can arrive before
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
        """A message to oneself keeps the port like any other, but is there at once."""
        near, box = self.near, self.box
        message.left = message.done = now = self.activity.clock
        near.free = max(near.free, now) + message.nbytes * near.per_byte
        box.in_order = False  # it is complete before others that are on their way
        box.deliver(message)
        return message

    # ---- time ----------------------------------------------------------------------------

    def compute(self, work: Callable[[], Any], cost: float | None = None, marks: Sequence = ()) -> Any:
        result = work() if self.computes else NUMBER
        if cost or marks:
            activity, pace = self.activity, self.pace
            seconds = (cost or 0.0) * pace.per_flop * pace.factor
            if marks or (self._side is not None and pace.overlap < 1):
                self._compute_beside(seconds, marks)
            else:
                self.simulator.advance(activity, activity.clock + seconds)
        return result

    def _compute_beside(self, seconds: float, marks: Sequence) -> None:
        """Compute for so long, making the calls of marks at their moments; they may start something beside."""
        done = 0.0
        for share, call in marks:
            self._compute(share * seconds - done)
            done = share * seconds
            call()
        if self._side is not None and self.pace.overlap < 1:
            self._compute(seconds - done)
        else:
            self.simulator.advance(self.activity, self.activity.clock + (seconds - done))

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


class _Counter:
    def __init__(self) -> None:
        self.number = -1

    def take(self) -> int:
        self.number += 1
        return self.number
