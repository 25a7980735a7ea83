"""Ranks paced by a platform on paper: real processes and messages, and a logical clock for each rank.

The referee (:mod:`dlpar.worlds.paced.referee`) decides when things happen, and MPI carries the tensors.  A
computation runs at once, and takes the logical time of the platform's device.  A rank sleeps until the wall
clock catches up.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import torch
from mpi4py import MPI

from dlpar.comm.base import ANY, Arrival, Collective, Comm, Request, Traffic, check_peer, too_long
from dlpar.config.experiment import Experiment
from dlpar.worlds.logical import LogicalComm, LogicalWorld, Marks, Pace
from dlpar.worlds.mpi import MPIComm
from dlpar.worlds.paced.parcels import Parcels
from dlpar.worlds.paced.protocol import AHEAD, Line, Link, Wall
from dlpar.worlds.paced.referee import Referee
from dlpar.worlds.platforms import Platform, nodes_of, platform_of
from dlpar.worlds.platforms.lookup import charges
from dlpar.worlds.progress import ProgressThread

PROMPT = 2e-4
"""Seconds of the shortest computation that is announced before its end, so that others need not wait."""


def of_experiment(experiment: Experiment) -> PacedComm:
    """Return this rank's communicator in the experiment's paced world. Collective.

    Raises
    ------
    ValueError
        On every rank, if ranks are on several machines.
    """
    mpi, platform, seed = MPIComm(), platform_of(experiment), experiment.seed
    machines = len(set(mpi.mpi.allgather(socket.gethostname())))
    if machines > 1:
        raise ValueError(f"cluster.hostfile: got {machines} machines, allowed in the paced world is one")
    nodes = nodes_of(experiment)
    referee = Referee(nodes, platform, seed, experiment.deaths.goes_on) if mpi.rank == 0 else None
    world = PacedWorld(mpi, platform, nodes, referee)
    # From here on no rank waits in MPI, because a waiting rank would keep a core from a working rank.
    # A first product and backward pass are slow in a new process, so they run before second 0.
    weight = torch.ones(8, 8, requires_grad=True)
    (weight @ weight).sum().backward()
    helped = world.parcels.probe()
    if referee:
        referee.start(*charges(experiment), helped)  # only rank 0 determines the charges
    scale, flops, world.parcels.helped = world.line.answer()
    world.pace, world.eager = Pace(platform, flops, mpi.rank, seed), platform.eager / scale
    return PacedComm(world, world.line, mpi.rank, list(range(mpi.size)))


class PacedWorld(LogicalWorld):
    """Environment of one paced rank.

    Parameters
    ----------
    mpi : MPIComm
        All ranks, for shared memory, which the paced world does not carry.
    platform : Platform
        The cluster.
    nodes : list of int
        Node of each rank.
    referee : Referee or None
        The referee, if it runs in this process.

    Attributes
    ----------
    parcels : Parcels
        Messages of this rank.
    line : Line
        The line of the activity that computes.
    number : callable
        Returns a new number at each call, for messages, requests, locks and activities.
    current : threading.local
        Its ``line`` belongs to the calling activity.
    memory, beside : list
        Objects to close at the end: holders of shared memory, and activities that run during the computation.
    """

    clock = "logical"

    def __init__(self, mpi: MPIComm, platform: Platform, nodes: list[int], referee: Referee | None) -> None:
        # The referee tells the speed of the device.
        super().__init__("mpi", Pace(platform, 1.0, mpi.rank, 0), platform.eager)
        self.mpi, self.platform, self.nodes, self.referee = mpi, platform, nodes, referee
        self.address = mpi.broadcast(referee.address if referee else None)
        self.wall, self.parcels = Wall(), Parcels(mpi.mpi.Dup())
        self.number, self.current = count(1).__next__, threading.local()
        self.line = self.current.line = self.call(0)
        self.traffic = LogicalTraffic(self)
        self.memory: list[MPIComm] = []
        self.beside: list[ProgressThread] = []

    def call(self, activity: int) -> Line:
        """Return a new line to the referee for an activity of this rank."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end.connect(self.address)
        link = Link(end)
        link.send((self.mpi.rank, activity))
        return Line(link, self.wall, self.parcels)

    def overhead(self, source: int, dest: int) -> float:
        """Return the sender's overhead for a message to another rank, in seconds."""
        return self.platform.link(self.nodes[source] == self.nodes[dest]).overhead if source != dest else 0.0

    def new_step(self, step: int) -> None:
        if self.pace.varies:
            self.current.line.tell("new_step", step)
        super().new_step(step)

    def pause(self, seconds: float) -> None:
        if seconds > 0:
            line = self.current.line
            line.follow(AHEAD)
            line.advance(line.clock + seconds, prompt=True)

    def state(self) -> dict[str, float]:
        return {"slip": self.wall.slip, "lag": self.wall.lag}

    def while_asleep(self, call: Callable[[], None]) -> None:
        self.line.asleep = call

    def lock(self) -> Guard:
        return Guard(self)

    def before_death(self, why: str) -> None:
        if self.watches:
            self.line.flush()
            for comm in (self, *(thread.comm for thread in self.beside)):
                comm.line.link.close()
            self.parcels.deliver()
            if self.referee:  # this process keeps the time of the others until they end
                self.referee.thread.join()

    def is_death(self, error: BaseException) -> bool:
        return super().is_death(error) or self.mpi.world.is_death(error)

    def survivors(self, comm: Comm) -> Comm:
        assert isinstance(comm, PacedComm)
        self.parcels.forget()
        handle, rank, members = self.line.ask("survivors", comm.handle)
        return PacedComm(self, self.line, rank, members, handle)


class PacedComm(LogicalComm):
    """One rank of a group in a paced world.

    Its `mpi` holds only this rank, because the ranks of a paced world are on one machine and share its files.

    Parameters
    ----------
    world : PacedWorld
        Environment of this rank.
    line : Line
        The line of the activity that makes the calls.
    rank : int
        Number in the group.
    members : list of int
        The group's ranks, by their numbers in the world.
    handle : int
        The referee's number of the group on this line.
    """

    mpi = MPI.COMM_SELF

    def __init__(self, world: PacedWorld, line: Line, rank: int, members: list[int], handle: int = 0) -> None:
        self.world, self.line, self.handle = world, line, handle
        self.rank, self.members, self.size = rank, members, len(members)
        self.eager, self.pace, self.traffic = world.eager, world.pace, world.traffic
        self._beside: ProgressThread | None = None

    def now(self) -> float:
        return self.line.clock

    # ---- messages -----------------------------------------------------------------------

    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> _UnderWay:
        check_peer(self, dest, "dest")
        self.traffic.sent(tensor.nbytes)
        key, nbytes = self.world.number(), tensor.nbytes
        # The tensor is sent at once. Its receiver learns the number of the parcel.
        self.line.parcels.send(tensor, self.members[dest], key)
        self.line.tell("isend", self.handle, dest, tag, nbytes, key)
        # Meanwhile this rank's processor is busy sending.
        self.line.clock += self.world.overhead(self.members[self.rank], self.members[dest])
        return _UnderWay(self, sending=key if nbytes > self.eager else None)

    def irecv(self, into: torch.Tensor, source: int = ANY, tag: int = ANY) -> _UnderWay:
        check_peer(self, source, "source")
        key = self.world.number()
        self.line.tell("irecv", self.handle, source, tag, key)
        return _UnderWay(self, receiving=key, into=into)

    def sendrecv(
        self, tensor: torch.Tensor, dest: int, into: torch.Tensor, source: int, tag: int = 0
    ) -> Arrival:
        going, coming = self.isend(tensor, dest, tag), self.irecv(into, source, tag)
        return _UnderWay(self, going.sending, coming.receiving, into).wait()

    # ---- time ----------------------------------------------------------------------------

    def compute(self, work: Callable[[], Any], cost: float | None = None, marks: Marks = ()) -> Any:
        line, pace = self.line, self.pace
        if not cost and not marks:
            line.flush()  # its duration is not known
            return work()
        line.follow(AHEAD)
        if pace.varies and line is not self.world.line:
            # Only the computing activity draws the factor of the step.
            result = work()
            line.ask("compute", cost)
            return result
        seconds = pace.seconds(cost or 0.0)
        parts = [after - before for before, after in pairwise([0.0, *(share for share, _ in marks), 1.0])]
        self._advance(parts[0] * seconds, prompt=seconds > PROMPT)
        result = work()
        for (_, call), part in zip(marks, parts[1:]):
            call()
            self._advance(part * seconds)
        return result

    def _advance(self, seconds: float, prompt: bool = False) -> None:
        """Compute for this time. Simultaneous communication may extend it."""
        if self.world.beside and self.pace.overlap < 1:
            self.line.ask("slowed", self.handle, seconds)
        else:
            self.line.advance(self.line.clock + seconds, prompt)

    # ---- all together ----------------------------------------------------------------------

    def meet(self, thing: Any, to: int = ANY) -> list[Any]:
        return self._meet("meet", thing, to)

    def counter(self) -> Any:
        line, key = self.line, self.broadcast((self.members[0], self.world.number()))
        return SimpleNamespace(take=lambda: line.ask("take", key))

    def split(self, color: int, key: int = 0) -> Comm:
        handle, rank, members = self._meet("split", color, key)
        return PacedComm(self.world, self.line, rank, members, handle)

    def shared(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        self.barrier()
        world = self.world.mpi.mpi
        mpi = MPIComm(world.Create_group(world.Get_group().Incl(self.members)), zero=0.0)
        self.world.memory.append(mpi)
        return mpi.shared(shape, dtype)

    def _meet(self, name: str, *arguments: Any) -> Any:
        """Enter a call that all ranks of the group make."""
        since = self.line.clock
        result = self.line.ask(name, self.handle, *arguments)
        self.traffic.add(self.line.clock - since)
        self.line.follow()
        return result

    # ---- beside the computation --------------------------------------------------------------

    def start(self, collective: Collective, bucket: torch.Tensor) -> Request:
        if self._beside is None:
            self.traffic.two_activities()
            self._activity = self.world.number()
            line = self.world.call(self._activity)
            self._beside = ProgressThread(PacedComm(self.world, line, self.rank, self.members))
            self.world.beside.append(self._beside)
        key = self.world.number()
        self.line.tell("start", self.handle, self._activity, key)
        return _Started(self, key, self._beside.start(partial(_told, collective), bucket))

    def close(self) -> None:
        if (self.handle and not self.world.watches) or self.line is not self.world.line:
            return
        # This rank sends nothing more. Its messages are kept until all are taken.
        line, clock = self.line, self.line.clock
        line.tell("end")
        line.flush()
        for thread in self.world.beside:
            thread.close()
        line.answer()
        if self.world.referee:
            self.world.referee.thread.join()  # the referee also tells the others
        line.clock = clock
        line.follow(ahead=0.0)
        # MPI's collective calls happen outside logical time, when no rank waits.
        for memory in self.world.memory:
            memory.close()


def _told(collective: Collective, comm: PacedComm, bucket: torch.Tensor) -> Any:
    """Run a collective during the computation, from the collective's logical start to its logical end."""
    comm.world.current.line = comm.line
    comm.line.answer()  # it begins
    has_failed = True
    try:
        result = collective(comm, bucket)
        has_failed = False
        return result
    finally:
        comm.line.tell("end", has_failed)
        comm.line.flush()


class _Started:
    """Started collective. It is complete at its logical end."""

    def __init__(self, computing: PacedComm, key: int, request: Request) -> None:
        self.line, self.key, self.request, self.joined = computing.line, key, request, False

    def wait(self) -> Any:
        if not self.joined:
            self.line.ask("join", self.key)
            self.joined = True
        result = self.request.wait()
        self.line.follow()
        return result

    def test(self) -> bool:
        return self.joined or self.line.ask("test", self.key)


class Guard:
    """Lock between a rank's activities, granted in the order of their clocks."""

    def __init__(self, world: PacedWorld) -> None:
        self.world, self.key = world, world.number()

    def __enter__(self) -> None:
        self.world.current.line.ask("lock", self.key)

    def __exit__(self, *error: object) -> None:
        self.world.current.line.tell("unlock", self.key)


class _UnderWay:
    """Pending send, receive or both, identified by number.

    A short send has no number, because nothing waits for it.
    """

    def __init__(
        self, comm: PacedComm, sending: int | None = None, receiving: int | None = None, into: Any = None
    ) -> None:
        self.comm, self.sending, self.receiving, self.into = comm, sending, receiving, into
        self.complete = sending is None and receiving is None
        self.arrival: Arrival | None = None

    def wait(self) -> Arrival | None:
        """Wait until the send and the receive are complete."""
        if not self.complete:
            line = self.comm.line
            since = line.clock
            came = line.ask("wait", self.receiving, self.sending)
            if came is not None:
                self._take(since, *came)
            line.follow()
            self.complete = True
        return self.arrival

    def _take(self, since: float, source: int, tag: int, nbytes: int, key: int, there: float) -> None:
        """Take the message that arrived at a moment, after a wait that began at `since`."""
        comm = self.comm
        comm.traffic.add(max(there - since, 0.0))
        if nbytes > self.into.nbytes:
            raise too_long(self.into.nbytes, source, tag, nbytes, comm.rank)
        comm.line.parcels.take(self.into, comm.members[source], key, nbytes)
        self.arrival = Arrival(source, tag, nbytes)

    def test(self) -> bool:
        return self.complete or self.comm.line.ask("test", self.receiving or self.sending)


class LogicalTraffic(Traffic):
    """Counts of messages, taken at send and receive while only one activity does both.

    With two activities, one is ahead on the wall clock.  Then only the referee knows their counts at a moment
    of the logical clock.
    """

    def __init__(self, world: PacedWorld) -> None:
        super().__init__(lambda: world.line.clock)
        self.world = world
        # Bytes and messages of all calls of take, by the referee's count.
        self._taken: tuple[int, int] | None = None

    def add(self, seconds: float) -> None:
        """Count seconds waited."""
        self._waited += seconds

    def two_activities(self) -> None:
        """Let the referee count from now on, because an activity now runs during the computation."""
        if self._taken is None:
            nbytes, messages, _ = self._asked()
            self._taken = nbytes - (self.bytes or 0), messages - (self.messages or 0)

    @property
    def waited(self) -> float:
        return self._waited if self._taken is None else self._asked()[2]

    def take(self) -> dict[str, int | None]:
        taken = super().take()
        if self._taken is not None:
            before, self._taken = self._taken, self._asked()[:2]
            if taken["bytes"] is not None:
                taken = {"bytes": self._taken[0] - before[0], "messages": self._taken[1] - before[1]}
        return taken

    def _asked(self) -> tuple[int, int, float]:
        return self.world.current.line.ask("traffic")
