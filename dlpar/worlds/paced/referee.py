"""Referee of a paced world: a simulator that handles only message sizes for ranks in real processes.

The code of the simulated world decides ports, queues, any-source receives, locks and deadlocks.  The referee
runs on a thread of rank 0's process. It receives the calls of all ranks over a socket in the job's folder.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

from dlpar.comm.base import ANY
from dlpar.worlds.paced.protocol import WHERE, Link
from dlpar.worlds.platforms import Platform
from dlpar.worlds.simulated.comm import Lock, SimulatedComm
from dlpar.worlds.simulated.mailbox import Mailbox, Message, Receive
from dlpar.worlds.simulated.run import simulated_world
from dlpar.worlds.simulated.simulator import Activity, Deadlock, LostRank, story

JOINING = 60.0
"""Seconds that the referee waits for ranks to connect."""


class Referee:
    """Simulator that decides when events happen in a world of paced ranks.

    Parameters
    ----------
    nodes : sequence of int
        Node of each rank.
    platform : Platform
        Its links, device and timing.
    seed : int
        Seed of times that vary.
    survives : bool
        Whether the others continue when a rank dies.

    Attributes
    ----------
    address : str
        The socket to which ranks connect.
    zero : float or None
        ``time.monotonic()`` when the first rank's clock advanced.
    counters, locks : dict
        Counters that ranks share, and locks between a rank's activities. The keys are a rank and its number
        for each of them.
    proxies : dict
        The proxy of each activity.
    """

    def __init__(self, nodes: Sequence[int], platform: Platform, seed: int, survives: bool) -> None:
        self.nodes, self.platform, self.seed, self.survives = nodes, platform, seed, survives
        self.folder = tempfile.TemporaryDirectory(prefix="pace-")  # no other account may read it
        self.address = os.path.join(self.folder.name, "referee")
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.door.settimeout(JOINING)
        self.door.bind(self.address)
        self.door.listen(2 * len(nodes) + 8)
        self.links: dict[tuple[int, int], Link] = {}
        self.proxies: dict[Activity, Proxy] = {}
        self.zero: float | None = None
        self.counters: defaultdict[tuple[int, int], Iterator[int]] = defaultdict(count)
        self.locks: dict[tuple[int, int], Lock] = {}
        self._held: list[tuple[Any, ...]] = []  # answers that have to wait for second 0

    def start(self, scale: float, flops: float, helped: bool) -> None:
        """Start the referee on its own thread.

        Parameters
        ----------
        scale, flops : float
            Bytes charged for a byte sent, and FLOP/s of a device on the model.
        helped : bool
            Whether MPI needs the help of senders.  Every rank first receives this value and the charges.
        """
        self.greeting = scale, flops, helped
        self.thread = threading.Thread(target=self._run, name="dlpar-referee", daemon=True)
        self.thread.start()

    def link(self, rank: int, activity: int) -> Link:
        """Return the link to a rank's activity, once it has connected."""
        while (rank, activity) not in self.links:
            link = Link(self.door.accept()[0])  # blocking, unlike the door
            self.links[link.receive()] = link
        return self.links[rank, activity]

    # ---- answers --------------------------------------------------------------------------

    def answer(self, link: Link, clock: float, now: float, result: Any = None) -> None:
        """Answer a call by a result or an exception. Its end, `clock`, became certain at `now`."""
        if self.zero is None and now > 0:
            self.begin()
        if self.zero is None and clock > 0:
            self._held.append((link, clock, now, result))
        else:
            with suppress(ConnectionError):  # its rank has died, which is noticed at its next call
                link.send((clock, self.zero, result))

    def begin(self) -> None:
        """Set the wall clock's second 0 to now.

        This happens when the first rank's time advances and all others wait.
        """
        self.zero = time.monotonic()
        for held in self._held:
            self.answer(*held)
        self._held.clear()

    # ---- the simulation ---------------------------------------------------------------------

    def _run(self) -> None:
        """Serve ranks from the first call to the last. This runs on the referee's thread."""
        try:
            with self.folder, self.door:
                self._simulate()
            self._tell_all(None)
        except Deadlock:
            self._tell_all(Deadlock(story(self.simulator.alive(), "logical", self._place)))
        except ConnectionError:
            pass  # a rank has died: the job's guardian ends the others, and knows the cause
        except BaseException as error:
            what = f"the referee of the paced world failed: {type(error).__name__}: {error}"
            self._tell_all(RuntimeError(what))
            raise

    def _simulate(self) -> None:
        given = *self.greeting[:2], self.seed, RefereedComm
        self.simulator, comms = simulated_world(self.nodes, self.platform, False, *given)
        for comm in comms:
            link = self.link(comm.rank, 0)
            link.send((0.0, None, self.greeting))
            self.simulator.add(comm.activity, Proxy(self, comm.rank, link, comm).serve)
        self.simulator.run()

    def _tell_all(self, end: Exception | None) -> None:
        if self.zero is None:
            self.begin()
        for link in self.links.values():
            with suppress(ConnectionError):
                link.send((0.0, self.zero, end))

    def _place(self, activity: Activity) -> str:
        """Ask for the line of code of an activity that waits forever."""
        link = self.proxies[activity].link
        link.send(WHERE)
        return link.receive() if link.waits(2.0) else "a line it does not tell"


class Proxy:
    """Proxy for one activity of a rank. Ranks name the methods below `play` in their calls.

    Parameters
    ----------
    referee : Referee
        The referee that simulates.
    rank : int
        Number in the whole world.
    link : Link
        The link to the rank's process.
    comm : RefereedComm
        The activity's first communicator, its group 0.
    """

    def __init__(self, referee: Referee, rank: int, link: Link, comm: RefereedComm) -> None:
        self.referee, self.rank, self.link, self.activity = referee, rank, link, comm.activity
        self.comms: list[RefereedComm] = []
        self.take_part(comm)
        self.requests: dict[int, Any] = {}
        self.waits: tuple[Receive | None, Any] | None = None  # of an unanswered call
        self.has_failed = False  # a collective during the computation
        referee.proxies[self.activity] = self

    def take_part(self, comm: RefereedComm) -> int:
        """Join a group and return the group's number for the rank's calls."""
        comm.box.proxy = self
        self.comms.append(comm)
        return len(self.comms) - 1

    def serve(self) -> None:
        """Serve the rank from its first call to its last, or to its death."""
        try:
            self.play()
        except ConnectionError:
            if not self.referee.survives:
                raise
            self.referee.simulator.die(self.rank)
        for comm in self.comms:
            comm.close()

    def play(self) -> None:
        """Serve the calls of the rank, or of a collective during its computation, until it returns."""
        link, referee, activity = self.link, self.referee, self.activity
        while True:
            if referee.zero is None and activity.clock > 0:
                referee.begin()
            for name, *arguments in link.receive():
                if name == "end":  # the last call of its batch
                    self.has_failed = any(arguments)
                    return
                try:
                    getattr(self, name)(*arguments)
                except LostRank:
                    self.waits = None
                    self.referee.answer(link, activity.clock, activity.clock, LostRank())

    def answer(self, result: Any = None, end: float | None = None) -> None:
        """Tell the rank the result of its call. The call ends now or at a later moment."""
        now = self.activity.clock
        self.referee.answer(self.link, now if end is None else end, now, result)

    # ---- messages -----------------------------------------------------------------------

    def isend(self, comm: int, dest: int, tag: int, nbytes: int, key: int) -> None:
        sending = self.comms[comm].isend(Parcel(nbytes, key, self), dest, tag)
        if nbytes > sending.comm.eager:  # nothing waits for a short message
            self.requests[key] = sending

    def irecv(self, comm: int, source: int, tag: int, key: int) -> None:
        receive = self.requests[key] = self.comms[comm].irecv(ROOM, source, tag)
        if receive.message is not None:
            receive.box.settle(receive.message)

    def test(self, key: int) -> None:
        self.answer(self.requests[key].test())

    def wait(self, receiving: int | None, sending: int | None) -> None:
        """Block until both messages are complete. Tell the rank the moment as soon as it is certain."""
        self.waits = both = tuple(self.requests.pop(key, None) for key in (receiving, sending))
        self.settle()
        for request in filter(None, both):
            request.wait()
        if self.waits is not None:
            self._complete(self.activity.clock)

    def settle(self) -> None:
        """Tell the rank the end of its waiting call once nothing can change it."""
        if self.waits is None:
            return
        end, (receive, sending) = self.activity.clock, self.waits
        if receive is not None:
            message = receive.message
            if message is None or (receive.source == ANY and not receive.box.in_order):
                return
            end = max(end, message.done)
            end += message.overhead if receive.box.charged and receive.arrival is None else 0.0
        if sending is not None:
            message = sending.message
            if message.met is None:
                return
            end = max(end, message.left, message.met)
        self._complete(end)

    def _complete(self, end: float) -> None:
        (receive, _), self.waits = self.waits, None
        message = receive and receive.message
        self.answer(message and (*message, message.payload.key, message.done), end)

    # ---- time ----------------------------------------------------------------------------

    def advance_first(self, end: float) -> None:
        self.answer(end=end)
        self.advance(end)

    def advance(self, end: float) -> None:
        self.referee.simulator.advance(self.activity, end)

    def compute(self, cost: float) -> None:
        self.comms[0].compute(lambda: None, cost)
        self.answer()

    def slowed(self, comm: int, seconds: float) -> None:
        self.comms[comm].slowed(seconds)
        self.answer()

    def new_step(self, step: int) -> None:
        # For the communicating activity. The rank itself reports the times of its computing activity.
        self.comms[0].pace.new_step(step)

    def traffic(self) -> None:
        sent = self.comms[0].traffic
        self.answer((sent.bytes, sent.messages, sent.waited))

    # ---- all together ----------------------------------------------------------------------

    def meet(self, comm: int, thing: Any, to: int) -> None:
        heard = lambda rank, things: things if to in (rank, ANY) else None
        self._meet(comm, thing, lambda things: [heard(rank, things) for rank in range(len(things))])

    def take(self, counter: tuple[int, int]) -> None:
        self.answer(next(self.referee.counters[counter]))

    def split(self, comm: int, color: int, key: int) -> None:
        whole = self.comms[comm]

        def answers(asked: list[Any]) -> Iterator[tuple[int, int, list[int]]]:
            groups = whole.group.parts([(color, key) for *_, color, key in asked])
            for proxy, comm, color, _ in asked:
                part = comm.within(groups[color])
                yield proxy.take_part(part), part.rank, part.group.members

        self._meet(comm, (self, whole, color, key), answers)

    def survivors(self, comm: int) -> None:
        for other in list(self.referee.proxies.values()):
            if other.link.is_closed:  # of a rank that waited when it was killed
                self.referee.simulator.die(other.rank)
        part = self.comms[comm].world.survivors(self.comms[comm])
        self.answer((self.take_part(part), part.rank, part.group.members))

    def _meet(self, comm: int, thing: Any, answers: Callable[[list[Any]], Iterable[Any]]) -> None:
        """Wait for all ranks of the group. The last one answers all of them."""

        def tell(pairs: list[tuple[Proxy, Any]]) -> None:
            proxies, things = zip(*pairs)
            for proxy, result in zip(proxies, answers(things)):
                proxy.answer(result, self.activity.clock)

        self.comms[comm].group.together(self.comms[comm], (self, thing), tell)

    # ---- beside ------------------------------------------------------------------------------

    def start(self, comm: int, activity: int, key: int) -> None:
        link = self.referee.link(self.rank, activity)

        def play(beside: RefereedComm, _: Any) -> None:
            proxy = self.referee.proxies.get(beside.activity) or Proxy(self.referee, self.rank, link, beside)
            if proxy.has_failed:  # then the rank starts nothing more
                raise LostRank
            proxy.answer()  # it begins
            proxy.play()

        self.requests[key] = self.comms[comm].start(play, None)

    def join(self, key: int) -> None:
        self.requests.pop(key).wait()
        self.answer()

    def lock(self, key: int) -> None:
        self.referee.locks.setdefault((self.rank, key), Lock(self.referee.simulator)).__enter__()
        self.answer()

    def unlock(self, key: int) -> None:
        self.referee.locks[self.rank, key].__exit__()


class Parcel:
    """Stand-in for a paced tensor and for its header: number of bytes, parcel number and sender."""

    def __init__(self, nbytes: int, key: int, sender: Proxy) -> None:
        self.nbytes, self.key, self.sender = nbytes, key, sender

    detach = clone = lambda self: self
    head = property(detach)


ROOM = SimpleNamespace(nbytes=1 << 62)
"""Buffer that is large enough for any message. The rank itself checks its own buffer."""


class WatchedMailbox(Mailbox):
    """Mailbox that notifies proxies when a message matches a receive."""

    proxy: Proxy | None = None
    """The proxy that receives here, once it takes part."""

    def deliver(self, message: Message) -> None:
        super().deliver(message)
        self.settle(message)

    def settle(self, message: Message) -> None:
        """Settle the calls of a message's receiver and sender if they waited only for this message."""
        if self.proxy is not None:
            self.proxy.settle()
        message.payload.sender.settle()


class RefereedComm(SimulatedComm):
    """Simulated rank whose messages carry the numbers of parcels."""

    mailbox = WatchedMailbox
