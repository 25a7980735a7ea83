"""The referee of a paced world: a simulation of sizes only in which every rank is played by a real process.

Ports, queues, any-source receives, locks and deadlocks are those of the simulated world
because they are decided by the same lines.  It runs on a thread of rank 0's process and
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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dlpar.comm.pacing.frames import ANSWER, DEADLOCK, FAILED, OK, WHERE, Ended, Link
from dlpar.comm.pacing.proxy import Proxy
from dlpar.comm.pacing.refereed import RefereedComm
from dlpar.comm.simulation.group import Group
from dlpar.comm.simulation.network import Network
from dlpar.comm.simulation.pace import Pace
from dlpar.comm.simulation.simulator import Activity, Deadlock, Simulator, story
from dlpar.launcher.processes import is_ours
from dlpar.platforms import Platform

HELLO = 16
"""Bytes by which a rank's end of a link says whose it is: the rank and the number of its activity."""

JOINING = 60.0
"""Seconds within which ranks must call."""


class RefereedSimulator(Simulator):
    """A simulator that knows who plays which activity."""

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
        Of times that vary.

    Attributes
    ----------
    address : str
        Where ranks call.
    zero : float or None
        ``time.monotonic()`` when the first rank's time went on.
    counters : list
        That ranks count up together.
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
            Whether MPI needs the help of senders; with the others it is what every rank is told first.
        """
        self.scale, self.flops = scale, flops
        self.greeting = pickle.dumps((scale, flops, helped))
        threading.Thread(target=self._run, name="dlpar-referee", daemon=True).start()

    def link(self, rank: int, activity: int) -> Link:
        """The link to an activity of a rank, as soon as it has called."""
        while (rank, activity) not in self.links:
            end, _ = self.door.accept()
            if not is_ours(end):
                end.close()
                continue
            end.settimeout(None)
            link = Link(end)
            hello = link.read(HELLO)
            self.links[int.from_bytes(hello[:8], "little"), int.from_bytes(hello[8:], "little")] = link
        return self.links[rank, activity]

    # ---- answers --------------------------------------------------------------------------

    def answer(
        self,
        link: Link,
        clock: float,
        now: float,
        facts: tuple[int, ...] = (0, 0, 0, 0),
        body: bytes = b"",
        kind: int = OK,
    ) -> None:
        """Answer a call that ends at `clock`, which is certain since `now`."""
        if self.zero is None and now > 0:
            self.begin()
        if self.zero is None and clock > 0:
            self._held.append((link, partial(self._pack, clock, facts, body, kind)))
        else:
            link.send(self._pack(clock, facts, body, kind))

    def tell_zero(self, link: Link) -> None:
        """Answer with the wall's second 0 alone, once there is one."""
        if self.zero is None:
            self._held.append((link, partial(self._pack, 0.0)))
        else:
            link.send(self._pack(0.0))

    def begin(self) -> None:
        """Time goes on for the first rank: all others wait for something, so the wall's second 0 is now."""
        self.zero = time.monotonic()
        for link, pack in self._held:
            link.send(pack())
        self._held.clear()

    def _pack(
        self, clock: float, facts: tuple[int, ...] = (0, 0, 0, 0), body: bytes = b"", kind: int = OK
    ) -> bytes:
        return (
            ANSWER.pack(kind, *facts, clock, math.nan if self.zero is None else self.zero, len(body)) + body
        )

    # ---- the simulation ---------------------------------------------------------------------

    def _run(self) -> None:
        """The thread: from the first call to the last."""
        try:
            self._play()
            self._tell_all(OK, "")
        except Deadlock:
            self._tell_all(DEADLOCK, story(self.simulator.activities, "logical", self._place))
        except Ended:
            pass  # a rank has died: whoever guards the job ends the others, and knows better why
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
            comm = RefereedComm(self.simulator, group, rank, Activity(rank), pace, eager)
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
        """The line of one that waits for ever: it is asked, and has nothing else to do."""
        link = self.simulator.proxies[activity].link
        link.send(self._pack(0.0, kind=WHERE))
        return link.read(link.call().size).decode() if link.waits(2.0) else "a line it does not tell"
