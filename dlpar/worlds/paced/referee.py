"""The referee of a paced world: a simulation of sizes only in which every rank is played by a real process.

Ports, queues, any-source receives, locks and deadlocks are those of the simulated world
because the same code decides them.  It runs on a thread of rank 0's process and
hears every rank over a socket of the job's own folder.
"""

from __future__ import annotations

import math
import os
import pickle
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from struct import pack
from typing import Any

from dlpar.comm.base import ANY
from dlpar.worlds.logical import Pace
from dlpar.worlds.paced import protocol as frames
from dlpar.worlds.paced.protocol import ANSWER, DEADLOCK, FAILED, OK, WHERE, Call, Ended, Link
from dlpar.worlds.platforms import Platform
from dlpar.worlds.simulated.comm import Group, Lock, SimulatedComm, SimulatedWorld
from dlpar.worlds.simulated.mailbox import Mailbox, Message, Receive
from dlpar.worlds.simulated.network import Network
from dlpar.worlds.simulated.simulator import Activity, Deadlock, Simulator, story

HELLO = 16
"""Bytes of the first message on a link: the rank and the number of its activity."""

NO_FACTS = (0, 0, 0, 0)
"""Source, tag, bytes and key of an answer that has none of them."""

JOINING = 60.0
"""Seconds within which ranks must call."""


class RefereedSimulator(Simulator):
    """A simulator that knows the proxy of each activity."""

    def __init__(self, network: Network) -> None:
        super().__init__(network, computes=False)
        self.proxies: dict[Activity, Proxy] = {}


class Referee:
    """Decides when things happen in a world of paced ranks.

    Parameters
    ----------
    nodes : sequence of int
        Node of each rank.
    platform : Platform
        Its links, device and timing.
    seed : int
        Seed of times that vary.

    Attributes
    ----------
    address : str
        The socket that ranks call.
    zero : float or None
        ``time.monotonic()`` when the first rank's time went on.
    counters : list
        Shared counters of the ranks.
    """

    def __init__(self, nodes: Sequence[int], platform: Platform, seed: int) -> None:
        self.nodes, self.platform, self.seed = nodes, platform, seed
        self.folder = tempfile.mkdtemp(prefix="pace-")  # nobody else may read it
        self.address = os.path.join(self.folder, "referee")
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.door.settimeout(JOINING)
        self.door.bind(self.address)
        self.door.listen(2 * len(nodes) + 8)
        self.links: dict[tuple[int, int], Link] = {}
        self.zero: float | None = None
        self.counters: list[Callable[[], int]] = []
        self._held: list[tuple[Link, Callable[[], bytes]]] = []  # answers that have to wait for second 0

    def start(self, scale: float, flops: float, helped: bool) -> None:
        """Begin, on a thread of its own.

        Parameters
        ----------
        scale, flops : float
            Bytes charged for a byte sent, and FLOP/s of a device on the model.
        helped : bool
            Whether MPI needs the help of senders; every rank is first told this and the charges.
        """
        self.scale, self.flops = scale, flops
        self.greeting = pickle.dumps((scale, flops, helped))
        threading.Thread(target=self._run, name="dlpar-referee", daemon=True).start()

    def link(self, rank: int, activity: int) -> Link:
        """Give the link to an activity of a rank, as soon as it has called."""
        while (rank, activity) not in self.links:
            end, _ = self.door.accept()
            end.settimeout(None)
            link = Link(end)
            hello = link.read(HELLO)
            self.links[int.from_bytes(hello[:8], "little"), int.from_bytes(hello[8:], "little")] = link
        return self.links[rank, activity]

    # ---- answers --------------------------------------------------------------------------

    def answer(
        self, link: Link, clock: float, now: float, facts: tuple[int, ...] = NO_FACTS, body: bytes = b""
    ) -> None:
        """Answer a call that ends at `clock`; this is certain since `now`."""
        if self.zero is None and now > 0:
            self.begin()
        if self.zero is None and clock > 0:
            self._held.append((link, partial(self._pack, clock, facts, body)))
        else:
            link.send(self._pack(clock, facts, body))

    def tell_zero(self, link: Link) -> None:
        """Answer with the wall's second 0 alone, once there is one."""
        if self.zero is None:
            self._held.append((link, partial(self._pack, 0.0)))
        else:
            link.send(self._pack(0.0))

    def begin(self) -> None:
        """Set the wall's second 0 to now: time goes on for the first rank, and all others wait."""
        self.zero = time.monotonic()
        for link, packed in self._held:
            link.send(packed())
        self._held.clear()

    def _pack(
        self, clock: float, facts: tuple[int, ...] = NO_FACTS, body: bytes = b"", kind: int = OK
    ) -> bytes:
        zero = math.nan if self.zero is None else self.zero
        return ANSWER.pack(kind, *facts, clock, zero, len(body)) + body

    # ---- the simulation ---------------------------------------------------------------------

    def _run(self) -> None:
        """Serve ranks from the first call to the last, on the thread."""
        try:
            self._play()
            self._tell_all(OK, "")
        except Deadlock:
            self._tell_all(DEADLOCK, story(self.simulator.activities, "logical", self._place))
        except Ended:
            pass  # a rank has died: the guard of the job ends the others, and knows better why
        except BaseException as error:
            self._tell_all(FAILED, f"the referee of the paced world failed: {type(error).__name__}: {error}")
            raise

    def _play(self) -> None:
        try:
            self._simulate()
        finally:
            self.door.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _simulate(self) -> None:
        ranks = range(len(self.nodes))
        network = Network(self.platform, self.nodes, self.scale)
        self.simulator, group = RefereedSimulator(network), Group(ranks, network)
        for rank in ranks:
            self.link(rank, 0).send(self._pack(0.0, body=self.greeting))
        eager = self.platform.eager / self.scale  # of bytes sent, as others are charged
        for rank in ranks:
            pace = Pace(self.platform, self.flops, rank, self.seed)
            comm = RefereedComm(SimulatedWorld(self.simulator, pace, eager), group, rank, Activity(rank))
            self.simulator.add(comm.activity, partial(Proxy(self, rank, self.links[rank, 0]).play, comm))
        self.simulator.run()

    def _tell_all(self, kind: int, what: str) -> None:
        if self.zero is None:
            self.begin()
        for link in self.links.values():
            try:
                link.send(self._pack(0.0, body=what.encode(), kind=kind))
            except Ended:
                pass

    def _place(self, activity: Any) -> str:
        """Ask an activity that waits for ever for its line; it has nothing else to do."""
        link = self.simulator.proxies[activity].link
        link.send(self._pack(0.0, kind=WHERE))
        return link.read(link.call().size).decode() if link.waits(2.0) else "a line it does not tell"


class Proxy:
    """Plays one activity of a rank.

    Parameters
    ----------
    referee : Referee
        The referee that simulates.
    rank : int
        Number in the whole world.
    link : Link
        The link to the rank's process.
    locks : dict, optional
        Locks of the rank, shared by its activities.
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
        """Serve the rank's calls on `comm`, and on its parts, until the rank returns."""
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
        """Tell the rank the result of its call, which ends at `clock`."""
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
        """Block until both are complete; tell the rank the moment as soon as it is certain."""
        self.waits = receive, sending
        self.settle()
        if receive is not None:
            receive.wait()
        if sending is not None:
            sending.wait()
        if self.waits is not None:
            self._complete(self.activity.clock)

    def settle(self) -> None:
        """Tell the rank the end of the call it waits in, if nothing can change that any more."""
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
        # For the activity beside; the rank itself tells the times of the other.
        self.comms[0].pace.new_step(call.key)

    def _traffic(self, call: Call) -> None:
        sent = self.comms[0].traffic
        body = pack(frames.TRAFFIC_BODY, sent.bytes, sent.messages, sent.waited)
        self.answer(self.activity.clock, body=body)

    # ---- all together ----------------------------------------------------------------------

    def _gather(self, call: Call) -> None:
        def answers(_: list[Proxy], things: list[bytes]) -> list[dict[str, Any]]:
            whole = pickle.dumps(things)
            return [{"body": whole if rank == call.peer else b""} for rank in range(len(things))]

        self._meet(call, self.link.read(call.size), answers)

    def _broadcast(self, call: Call) -> None:
        self._meet(
            call, self.link.read(call.size), lambda _, things: [{"body": things[call.peer]}] * len(things)
        )

    def _barrier(self, call: Call) -> None:
        self._meet(call, None, lambda _, things: [{}] * len(things))

    def _counter(self, call: Call) -> None:
        def answers(_: list[Proxy], things: list[Any]) -> list[dict[str, Any]]:
            self.referee.counters.append(count().__next__)
            return [{"key": len(self.referee.counters) - 1}] * len(things)

        self._meet(call, None, answers)

    def _take(self, call: Call) -> None:
        self.answer(self.activity.clock, key=self.referee.counters[call.key]())

    def _split(self, call: Call) -> None:
        whole = self.comms[call.comm].group

        def answers(proxies: list[Proxy], asked: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
            parts = whole.parts(asked)
            for proxy, member, (color, _) in zip(proxies, whole.members, asked):
                group = parts[color]
                place = group.members.index(member)
                proxy.comms.append(RefereedComm(proxy.comms[0].world, group, place, proxy.activity))
                yield {"key": len(proxy.comms) - 1, "body": pickle.dumps((place, group.members))}

        self._meet(call, (call.peer, call.key), answers)

    def _meet(
        self, call: Call, thing: Any, answers: Callable[[list[Proxy], list[Any]], Iterable[dict[str, Any]]]
    ) -> None:
        """Wait for all ranks of the group; the last one gives all of them their answers."""

        def tell(pairs: list[tuple[Proxy, Any]]) -> None:
            proxies, things = zip(*pairs)
            for proxy, facts in zip(proxies, answers(proxies, things)):
                proxy.answer(self.activity.clock, **facts)

        comm = self.comms[call.comm]
        comm.group.together(comm, (self, thing), tell)

    # ---- beside ------------------------------------------------------------------------------

    def _start(self, call: Call) -> None:
        if call.peer not in self.beside:
            link = self.referee.link(self.rank, call.peer)
            self.beside[call.peer] = Proxy(self.referee, self.rank, link, self.locks)
        self.started[call.key] = self.comms[call.comm].start(self.beside[call.peer].begin, None)

    def begin(self, comm: RefereedComm, _: Any) -> None:
        """Play one collective: tell the rank's other activity that it begins, and serve its calls."""
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
    """Compute nothing: the rank itself does."""


class Parcel:
    """A tensor by its bytes, with the number under which its values are sent: both ghost and head."""

    __slots__ = ("key", "nbytes")

    def __init__(self, nbytes: int, key: int) -> None:
        self.nbytes, self.key = nbytes, key

    @property
    def head(self) -> Parcel:
        return self

    detach = clone = lambda self: self


class Room:
    """A buffer for any message; the rank checks whether its own is large enough."""

    nbytes = 1 << 62


class WatchedMailbox(Mailbox):
    """A mailbox that tells proxies when a message has met a receive."""

    __slots__ = ("boxes", "proxies")

    def deliver(self, message: Message) -> None:
        super().deliver(message)
        self.settle(message)

    def settle(self, message: Message) -> None:
        """Settle the calls of its receiver and its sender, if they waited for this message alone."""
        for box in (self, self.boxes[message.source]):
            proxy = self.proxies.get(getattr(box, "owner", None))
            if proxy is not None:
                proxy.settle()


class RefereedComm(SimulatedComm):
    """A simulated rank whose messages carry the numbers of parcels."""

    def __init__(self, world: SimulatedWorld, group: Group, rank: int, activity: Activity) -> None:
        if not group.boxes:
            simulator = world.simulator
            for member in group.members:
                box = WatchedMailbox(simulator, lambda *_: None, member)
                box.proxies, box.boxes = simulator.proxies, group.boxes
                group.boxes.append(box)
        super().__init__(world, group, rank, activity)
