"""Ranks that keep the time of a platform on paper: real processes and real messages, a logical clock each.

When things happen the referee says (:mod:`dlpar.worlds.paced.referee`); the tensors themselves
go by MPI.  A computation is done at once and takes the logical time the platform's
device would; the wall clock follows by sleeping.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from itertools import count
from struct import unpack
from typing import Any

import torch

from dlpar.comm.base import ANY, Arrival, Collective, Comm, Request, Traffic, World, check_peer
from dlpar.worlds.library import OwnLibrary
from dlpar.worlds.mpi import MPIComm
from dlpar.worlds.paced import protocol as frames
from dlpar.worlds.paced.protocol import AHEAD, TRAFFIC, TRAFFIC_BODY, Answer, Line
from dlpar.worlds.progress import ProgressThread
from dlpar.worlds.simulated.network import Pace

PROMPT = 2e-4
"""Seconds of the shortest computation the referee hears of before it is done: others need not wait for its end."""


class PacedWorld(World):
    """The surroundings of one paced rank; all its communicators share them.

    Parameters
    ----------
    call : callable
        ``call(activity)`` gives a new line to the referee for one more activity of this rank.
    line : Line
        Of the activity that computes.
    mpi : MPIComm
        All ranks, for what the paced world does not carry itself: memory they share.
    pace : Pace
        Seconds of this rank's computations.
    eager : float
        Bytes up to which a send returns at once.

    Attributes
    ----------
    number : callable
        Gives a new number at each call: of messages, requests, locks, activities.
    current : threading.local
        Its ``line`` is that of the activity that asks.
    memory, beside : list
        To be closed in the end: what holds shared memory, and what ran beside the computation.
    """

    clock = "logical"

    def __init__(
        self, call: Callable[[int], Line], line: Line, mpi: MPIComm, pace: Pace, eager: float
    ) -> None:
        super().__init__(torch.device("cpu"), "mpi")
        self.call, self.line, self.mpi, self.pace, self.eager = call, line, mpi, pace, eager
        self.number = count(1).__next__
        self.current = threading.local()
        self.current.line = line
        self.wall, self.parcels = line.wall, line.parcels
        self.traffic = LogicalTraffic(self)
        self.memory: list[MPIComm] = []
        self.beside: list[Beside] = []

    def backward(
        self, comm: Comm, work: Callable[[], Any], cost: float | None = None, marks: Sequence = ()
    ) -> Any:
        return comm.compute_with(marks, work, cost)

    def inside(self, call: Callable[[], None]) -> None:
        pass

    def new_step(self, step: int) -> None:
        self.pace.new_step(step)
        if self.pace.varies:
            self.current.line.tell(frames.NEW_STEP, key=step)
        self.pause(self.pace.overhead)

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


class PacedComm(OwnLibrary):
    """One rank of a group in a paced world.

    Parameters
    ----------
    world : PacedWorld
        Surroundings of this rank.
    line : Line
        Of the activity that makes the calls.
    rank : int
        In the group.
    members : sequence of int
        The group's ranks, by their numbers in the world.
    handle : int
        The group's number, as the referee knows it on this line.
    """

    device = torch.device("cpu")

    def __init__(
        self, world: PacedWorld, line: Line, rank: int, members: Sequence[int], handle: int = 0
    ) -> None:
        self.world, self.line, self.handle = world, line, handle
        self.rank, self.members, self.size = rank, list(members), len(members)
        self.eager, self.pace, self.traffic = world.eager, world.pace, world.traffic
        self._beside: Beside | None = None

    def now(self) -> float:
        return self.line.clock

    # ---- messages -----------------------------------------------------------------------

    def send(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> None:
        key, nbytes = self._ship(tensor, dest), tensor.nbytes
        self.line.tell(
            frames.SEND if nbytes > self.eager else frames.ISEND, self.handle, dest, 0, tag, nbytes, key
        )
        if nbytes > self.eager:
            self.line.answer()
            self.line.follow()

    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> Request:
        key = self._ship(tensor, dest)
        self.line.tell(frames.ISEND, self.handle, dest, 0, tag, tensor.nbytes, key)
        return PacedSending(self.line, key, tensor.nbytes > self.eager)

    def recv(self, into: torch.Tensor, source: int = ANY, tag: int = ANY) -> Arrival:
        check_peer(self, source, "source")
        return self._took(into, frames.RECV, 0, source, tag)

    def irecv(self, into: torch.Tensor, source: int = ANY, tag: int = ANY) -> Request:
        check_peer(self, source, "source")
        key = self.world.number()
        self.line.tell(frames.IRECV, self.handle, 0, source, tag, 0, key)
        return PacedReceiving(self, key, into)

    def sendrecv(
        self, tensor: torch.Tensor, dest: int, into: torch.Tensor, source: int, tag: int = 0
    ) -> Arrival:
        check_peer(self, source, "source")
        key = self._ship(tensor, dest)
        return self._took(into, frames.SENDRECV, dest, source, tag, tensor.nbytes, key)

    def _ship(self, tensor: torch.Tensor, dest: int) -> int:
        """Let the tensor itself go; its receiver is told the number to ask for."""
        check_peer(self, dest, "dest")
        self.traffic.sent(tensor.nbytes)
        key = self.world.number()
        self.world.parcels.send(tensor, self.members[dest], key)
        return key

    def _took(
        self,
        into: torch.Tensor,
        op: int,
        peer: int = 0,
        source: int = 0,
        tag: int = 0,
        nbytes: int = 0,
        key: int = 0,
    ) -> Arrival:
        """Ask for a call that receives, and take what it got."""
        line = self.line
        since = line.clock
        came = line.ask(op, self.handle, peer, source, tag, nbytes, key)
        there = unpack(frames.CAME_BODY, came.body)[0] if came.body else line.clock
        self.traffic.add(max(there - since, 0.0))
        if came.nbytes > into.nbytes:
            raise ValueError(
                f"recv: rank {self.rank} has room for {into.nbytes:,} bytes, but rank {came.source} sent "
                f"{came.nbytes:,} (tag {came.tag})"
            )
        self.world.parcels.take(into, self.members[came.source], came.key)
        line.follow()
        return Arrival(came.source, came.tag, came.nbytes)

    # ---- time ----------------------------------------------------------------------------

    def compute(self, work: Callable[[], Any], cost: float | None = None) -> Any:
        return self.compute_with((), work, cost)

    def compute_with(self, marks: Sequence, work: Callable[[], Any], cost: float | None) -> Any:
        """Compute, and make each call of `marks` after its share of the cost: see :meth:`World.backward`."""
        line, pace = self.line, self.pace
        if not cost and not marks:
            line.flush()  # nobody knows how long it takes
            return work()
        line.follow(AHEAD)
        if (
            pace.varies and line is not self.world.line
        ):  # how quick the step is, is the other activity's to say
            result = work()
            line.ask(frames.COMPUTE, time=cost)
            return result
        began, seconds = line.clock, pace.seconds(cost or 0.0)
        ends = [began + share * seconds for share, _ in marks] + [began + seconds]
        line.advance(ends[0], prompt=seconds > PROMPT)
        result = work()
        for (_, call), end in zip(marks, ends[1:]):
            call()
            line.advance(end)
        return result

    # ---- all together ----------------------------------------------------------------------

    def barrier(self) -> None:
        self._meet(frames.BARRIER)

    def gather(self, thing: Any, root: int = 0) -> list[Any] | None:
        check_peer(self, root, "root")
        met = self._meet(frames.GATHER, peer=root, body=pickle.dumps(thing))
        return [pickle.loads(each) for each in pickle.loads(met.body)] if self.rank == root else None

    def broadcast(self, thing: Any, root: int = 0) -> Any:
        check_peer(self, root, "root")
        body = pickle.dumps(thing) if self.rank == root else b""
        return pickle.loads(self._meet(frames.BROADCAST, peer=root, body=body).body)

    def counter(self) -> PacedCounter:
        return PacedCounter(self.line, self._meet(frames.COUNTER).key)

    def split(self, color: int, key: int = 0) -> Comm:
        part = self._meet(frames.SPLIT, peer=color, key=key)
        return PacedComm(self.world, self.line, *pickle.loads(part.body), part.key)

    def shared(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        self.barrier()
        world = self.world.mpi.mpi
        mpi = MPIComm(world.Create_group(world.Get_group().Incl(self.members)), zero=0.0)
        self.world.memory.append(mpi)
        return mpi.shared(shape, dtype)

    def _meet(self, op: int, **fields: Any) -> Answer:
        """Ask for a call all ranks of the group make."""
        since = self.line.clock
        answer = self.line.ask(op, comm=self.handle, **fields)
        self.traffic.add(self.line.clock - since)
        self.line.follow()
        return answer

    # ---- beside the computation --------------------------------------------------------------

    def start(self, collective: Collective, bucket: torch.Tensor) -> Request:
        if self._beside is None:
            self.traffic.two_activities()
            activity = self.world.number()
            line = self.world.call(activity)
            self._beside = Beside(PacedComm(self.world, line, self.rank, self.members), activity)
            self.world.beside.append(self._beside)
        return self._beside.start(self, collective, bucket)

    def close(self) -> None:
        # What MPI does together it does outside logical time: only when nobody has anything to wait for any more.
        if self.handle == 0 and self.line is self.world.line:
            self._leave()
            for memory in self.world.memory:
                memory.close()

    def _leave(self) -> None:
        """Nothing more will come from this rank; what it has sent is kept until all have taken what they take."""
        line = self.line
        clock = line.clock
        line.tell(frames.END)
        line.flush()
        for thread in self.world.beside:
            thread.close()
        line.answer()
        line.clock = clock
        line.follow(ahead=0.0)


class Beside:
    """Runs collectives one after the other, each from the logical moment at which it was started.

    Parameters
    ----------
    comm : PacedComm
        On the second line.
    activity : int
        Its number.
    """

    def __init__(self, comm: PacedComm, activity: int) -> None:
        self.comm, self.activity = comm, activity
        self.thread = ProgressThread(comm)

    def start(self, computing: PacedComm, collective: Collective, bucket: torch.Tensor) -> _Started:
        """Queue ``collective(comm, bucket)``, started by `computing`."""
        key = computing.world.number()
        computing.line.tell(frames.START, computing.handle, peer=self.activity, key=key)

        def run(comm: PacedComm, bucket: torch.Tensor) -> Any:
            comm.world.current.line = comm.line
            comm.line.answer()  # it begins
            try:
                return collective(comm, bucket)
            finally:
                comm.line.tell(frames.RETURN)
                comm.line.flush()

        return _Started(computing, key, self.thread.start(run, bucket))

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        self.thread.close()


class _Started:
    """A collective that was started: complete when its logical end has come."""

    def __init__(self, computing: PacedComm, key: int, request: Request) -> None:
        self.line, self.key, self.request, self.joined = computing.line, key, request, False

    def wait(self) -> Any:
        if not self.joined:
            self.line.ask(frames.JOIN, key=self.key)
            self.joined = True
        result = self.request.wait()
        self.line.follow()
        return result

    def test(self) -> bool:
        return self.joined or bool(self.line.ask(frames.JOINED, key=self.key).key)


class Guard:
    """Keeps a rank's activities out of each other's way, in the order of their clocks."""

    def __init__(self, world: PacedWorld) -> None:
        self.world, self.key = world, world.number()

    def __enter__(self) -> None:
        self.world.current.line.ask(frames.LOCK, key=self.key)

    def __exit__(self, *error: object) -> None:
        self.world.current.line.tell(frames.UNLOCK, key=self.key)


class PacedSending:
    """A send under way."""

    def __init__(self, line: Line, key: int, long: bool) -> None:
        self.line, self.key, self.long, self.complete = line, key, long, False

    def wait(self) -> None:
        if self.long and not self.complete:
            self.line.ask(frames.WAIT, key=self.key)
            self.complete = True
            self.line.follow()

    def test(self) -> bool:
        return not self.long or self.complete or bool(self.line.ask(frames.TEST, key=self.key).key)


class PacedReceiving:
    """A receive under way."""

    def __init__(self, comm: PacedComm, key: int, into: torch.Tensor) -> None:
        self.comm, self.key, self.into = comm, key, into
        self.arrival: Arrival | None = None

    def wait(self) -> Arrival:
        if self.arrival is None:
            self.arrival = self.comm._took(self.into, frames.WAIT, key=self.key)
        return self.arrival

    def test(self) -> bool:
        return self.arrival is not None or bool(self.comm.line.ask(frames.TEST, key=self.key).key)


class PacedCounter:
    """A number all ranks count up together, in the order of their clocks."""

    def __init__(self, line: Line, key: int) -> None:
        self.line, self.key = line, key

    def take(self) -> int:
        return self.line.ask(frames.TAKE, key=self.key).key


class LogicalTraffic(Traffic):
    """Counted where messages are sent and received, as long as one activity does that.

    Of two activities, one of which is ahead of the other on the wall clock, the referee
    knows what they had sent and waited at a moment of the logical one.
    """

    def __init__(self, world: PacedWorld) -> None:
        super().__init__(lambda: world.line.clock)
        self.world = world
        self._taken: tuple[int, int] | None = (
            None  # bytes and messages of all calls of take, by the referee's count
        )

    def add(self, seconds: float) -> None:
        """Count seconds waited."""
        self._waited += seconds

    def two_activities(self) -> None:
        """From now on there is something beside the computation."""
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
        return unpack(TRAFFIC_BODY, self.world.current.line.ask(TRAFFIC).body)
