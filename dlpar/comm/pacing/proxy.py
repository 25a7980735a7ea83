"""What stands for a paced rank in its referee's simulation: it does what the rank calls for, in logical order.

The simulation passes sizes only.  It waits for a rank where the rank's turn has come,
so nothing is decided before all who could still decide it otherwise have said what they
do: that makes any-source receives conservative.  But what becomes of a call is told as
soon as it is certain, not when its moment comes: so ranks go on side by side.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import count
from struct import pack
from typing import TYPE_CHECKING, Any

from dlpar.comm.base import ANY
from dlpar.comm.pacing import frames
from dlpar.comm.pacing.frames import Call, Link
from dlpar.comm.pacing.refereed import Parcel, RefereedComm, Room
from dlpar.comm.simulation.mailbox import Receive
from dlpar.comm.simulation.side import Lock
from dlpar.comm.simulation.simulator import Activity

if TYPE_CHECKING:
    from dlpar.comm.pacing.referee import Referee


class Proxy:
    """Plays one activity of a rank.

    Parameters
    ----------
    referee : Referee
        Whose simulation it is.
    rank : int
        In the whole world.
    link : Link
        To the rank's process.
    locks : dict, optional
        Of the rank, shared by its activities.
    """

    def __init__(self, referee: Referee, rank: int, link: Link, locks: dict[int, Lock] | None = None) -> None:
        self.referee, self.rank, self.link = referee, rank, link
        self.comms: list[RefereedComm] = []
        self.requests: dict[int, tuple[Receive | None, Any]] = {}
        self.started: dict[int, Any] = {}
        self.beside: dict[int, Proxy] = {}
        self.locks = {} if locks is None else locks
        self.waits: tuple[Receive | None, Any] | None = None  # of a call that has not been answered
        self.acts = {getattr(frames, name.upper()[1:]): getattr(self, name) for name in _ACTS}

    def play(self, comm: RefereedComm, _: Any = None) -> None:
        """Do what the rank calls for with `comm`, and with what it splits off, until it returns."""
        if not self.comms:
            self.comms.append(comm)
            self.activity: Activity = comm.activity
            comm.simulator.proxies[self.activity] = self
        link, acts, referee = self.link, self.acts, self.referee
        while True:
            if referee.zero is None and self.activity.clock > 0:
                referee.begin()
            call = link.call()
            if call.op >= frames.RETURN:
                break
            acts[call.op](call)
        if call.op == frames.END:
            for comm in self.comms:
                comm.close()

    def answer(
        self, clock: float, source: int = 0, tag: int = 0, nbytes: int = 0, key: int = 0, body: bytes = b""
    ) -> None:
        """Tell the rank what became of its call, which ends at `clock`."""
        self.referee.answer(self.link, clock, self.activity.clock, (source, tag, nbytes, key), body)

    # ---- messages -----------------------------------------------------------------------

    def _send(self, call: Call) -> None:
        self._wait_for(None, self._post(call))

    def _isend(self, call: Call) -> None:
        sending = self._post(call)
        if call.nbytes > sending.comm.eager:  # nobody waits for a short one
            self.requests[call.key] = None, sending

    def _recv(self, call: Call) -> None:
        self._wait_for(self._expect(call), None)

    def _irecv(self, call: Call) -> None:
        self.requests[call.key] = self._expect(call), None

    def _sendrecv(self, call: Call) -> None:
        sending = self._post(call)
        self._wait_for(self._expect(call), sending)

    def _wait(self, call: Call) -> None:
        self._wait_for(*self.requests.pop(call.key))

    def _test(self, call: Call) -> None:
        receive, sending = self.requests[call.key]
        self.answer(self.activity.clock, key=(receive or sending).test())

    def _post(self, call: Call) -> Any:
        return self.comms[call.comm].isend(Parcel(call.nbytes, call.key), call.peer, call.tag)

    def _expect(self, call: Call) -> Receive:
        comm = self.comms[call.comm]
        receive = comm.irecv(Room, call.source, call.tag)
        if receive.message is not None:
            comm.box.settle(receive.message)
        return receive

    def _wait_for(self, receive: Receive | None, sending: Any) -> None:
        """Block until both are complete; the rank is told when that will be as soon as it is certain."""
        self.waits = receive, sending
        self.settle()
        if receive is not None:
            receive.wait()
        if sending is not None:
            sending.wait()
        if self.waits is not None:
            self._complete(self.activity.clock)

    def settle(self) -> None:
        """Tell the rank when the call it waits in will end, if nothing can change that any more."""
        if self.waits is None:
            return
        end, (receive, sending) = self.activity.clock, self.waits
        if receive is not None:
            message = receive.message
            if message is None or (receive.source == ANY and not receive.box.in_order):
                return
            end = max(end, message.done)
        if sending is not None and sending.message.nbytes > sending.comm.eager:
            message = sending.message
            if message.met is None:
                return
            end = max(end, message.left, message.met)
        self._complete(end)

    def _complete(self, end: float) -> None:
        (receive, sending), self.waits = self.waits, None
        if receive is None:
            self.answer(end)
        else:
            message = receive.message
            body = b"" if sending is None else pack(frames.CAME_BODY, message.done)
            self.answer(end, message.source, message.tag, message.nbytes, message.payload.key, body=body)

    # ---- time ----------------------------------------------------------------------------

    def _begin(self, call: Call) -> None:
        self.referee.tell_zero(self.link)

    def _advance(self, call: Call) -> None:
        self.referee.simulator.advance(self.activity, call.time)

    def _compute(self, call: Call) -> None:
        self.comms[0].compute(_nothing, call.time)
        self.answer(self.activity.clock)

    def _new_step(self, call: Call) -> None:
        self.comms[0].pace.new_step(
            call.key
        )  # for what runs beside; the rank itself has said how long it takes

    def _traffic(self, call: Call) -> None:
        sent = self.comms[0].traffic
        self.answer(
            self.activity.clock, body=pack(frames.TRAFFIC_BODY, sent.bytes, sent.messages, sent.waited)
        )

    # ---- all together ----------------------------------------------------------------------

    def _gather(self, call: Call) -> None:
        def tell(proxies: list[Proxy], things: list[bytes]) -> None:
            whole = pickle.dumps(things)
            for rank, proxy in enumerate(proxies):
                proxy.answer(self.activity.clock, body=whole if rank == call.peer else b"")

        self._meet(call, self.link.read(call.size), tell)

    def _broadcast(self, call: Call) -> None:
        def tell(proxies: list[Proxy], things: list[bytes]) -> None:
            for proxy in proxies:
                proxy.answer(self.activity.clock, body=things[call.peer])

        self._meet(call, self.link.read(call.size), tell)

    def _barrier(self, call: Call) -> None:
        self._meet(call, None, lambda proxies, _: [proxy.answer(self.activity.clock) for proxy in proxies])

    def _counter(self, call: Call) -> None:
        def tell(proxies: list[Proxy], _: Any) -> None:
            self.referee.counters.append(count().__next__)
            for proxy in proxies:
                proxy.answer(self.activity.clock, key=len(self.referee.counters) - 1)

        self._meet(call, None, tell)

    def _take(self, call: Call) -> None:
        self.answer(self.activity.clock, key=self.referee.counters[call.key]())

    def _split(self, call: Call) -> None:
        whole = self.comms[call.comm]

        def tell(proxies: list[Proxy], asked: list[tuple[int, int]]) -> None:
            parts = whole.group.parts(asked)
            for rank, (proxy, (color, _)) in enumerate(zip(proxies, asked)):
                group = parts[color]
                place = group.members.index(whole.group.members[rank])
                root = proxy.comms[0]
                part = RefereedComm(
                    root.simulator, group, place, proxy.activity, root.pace, root.eager, root.traffic
                )
                proxy.comms.append(part)
                body = pickle.dumps((place, group.members))
                proxy.answer(self.activity.clock, key=len(proxy.comms) - 1, body=body)

        self._meet(call, (call.peer, call.key), tell)

    def _meet(self, call: Call, thing: Any, tell: Callable[[list[Proxy], list[Any]], None]) -> None:
        """Wait for all ranks of the group; the last one tells all of them what comes of it."""
        comm = self.comms[call.comm]
        comm.group.together(comm, (self, thing), lambda pairs: tell(*zip(*pairs)))

    # ---- beside ------------------------------------------------------------------------------

    def _start(self, call: Call) -> None:
        if call.peer not in self.beside:
            link = self.referee.link(self.rank, call.peer)
            self.beside[call.peer] = Proxy(self.referee, self.rank, link, self.locks)
        self.started[call.key] = self.comms[call.comm].start(self.beside[call.peer].begin, None)

    def begin(self, comm: RefereedComm, _: Any) -> None:
        """Play one collective: tell the rank's other activity when it begins, and do what it calls for."""
        self.referee.answer(self.link, comm.activity.clock, comm.activity.clock)
        self.play(comm)

    def _join(self, call: Call) -> None:
        self.started.pop(call.key).wait()
        self.answer(self.activity.clock)

    def _joined(self, call: Call) -> None:
        self.answer(self.activity.clock, key=self.started[call.key].test())

    def _lock(self, call: Call) -> None:
        self.locks.setdefault(call.key, Lock(self.referee.simulator)).__enter__()
        self.answer(self.activity.clock)

    def _unlock(self, call: Call) -> None:
        self.locks[call.key].__exit__()


_ACTS = """_send _isend _recv _irecv _sendrecv _wait _test _begin _advance _compute _new_step
           _gather _broadcast _barrier _split _counter _take _start _join _joined _lock _unlock _traffic""".split()


def _nothing() -> None:
    """The rank itself does what there is to do."""
