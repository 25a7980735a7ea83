"""Ranks that keep the time of a platform on paper: real processes and real messages, a logical clock each.

When things happen the referee says (:mod:`dlpar.comm.pacing.referee`); the tensors themselves
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

from dlpar.comm.base import ANY, Arrival, Collective, Comm, Request, check_peer
from dlpar.comm.mpi import MPIComm
from dlpar.comm.own_library import OwnLibrary
from dlpar.comm.pacing import frames
from dlpar.comm.pacing.beside import Beside, Guard
from dlpar.comm.pacing.frames import Answer
from dlpar.comm.pacing.line import Line
from dlpar.comm.pacing.requests import PacedCounter, PacedReceiving, PacedSending
from dlpar.comm.pacing.traffic import LogicalTraffic
from dlpar.comm.pacing.wall import AHEAD
from dlpar.comm.simulation.pace import Pace

PROMPT = 2e-4
"""Seconds of the shortest computation the referee hears of before it is done: others need not wait for its end."""


class Standing:
    """What all communicators of one paced rank share.

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

    def __init__(
        self, call: Callable[[int], Line], line: Line, mpi: MPIComm, pace: Pace, eager: float
    ) -> None:
        self.call, self.line, self.mpi, self.pace, self.eager = call, line, mpi, pace, eager
        self.number = count(1).__next__
        self.current = threading.local()
        self.current.line = line
        self.wall, self.parcels = line.wall, line.parcels
        self.traffic = LogicalTraffic(self)
        self.memory: list[MPIComm] = []
        self.beside: list[Beside] = []


class PacedComm(OwnLibrary):
    """One rank of a group in a paced world.

    Parameters
    ----------
    standing : Standing
        Of this rank.
    line : Line
        Of the activity that makes the calls.
    rank : int
        In the group.
    members : sequence of int
        The group's ranks, by their numbers in the world.
    handle : int
        The group's number, as the referee knows it on this line.
    """

    carrier, clock = "mpi", "logical"
    device = torch.device("cpu")

    def __init__(
        self, standing: Standing, line: Line, rank: int, members: Sequence[int], handle: int = 0
    ) -> None:
        self.standing, self.line, self.handle = standing, line, handle
        self.rank, self.members, self.size = rank, list(members), len(members)
        self.eager, self.pace, self.traffic = standing.eager, standing.pace, standing.traffic
        self._beside: Beside | None = None

    def now(self) -> float:
        return self.line.clock

    def state(self) -> dict[str, float]:
        wall = self.standing.wall
        return {"slip": wall.slip, "lag": wall.lag}

    def while_asleep(self, call: Callable[[], None]) -> None:
        self.line.asleep = call

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
        key = self.standing.number()
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
        standing = self.standing
        self.traffic.sent(tensor.nbytes)
        key = standing.number()
        standing.parcels.send(tensor, self.members[dest], key)
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
        self.standing.parcels.take(into, self.members[came.source], came.key)
        line.follow()
        return Arrival(came.source, came.tag, came.nbytes)

    # ---- time ----------------------------------------------------------------------------

    def compute(self, work: Callable[[], Any], cost: float | None = None, marks: Sequence = ()) -> Any:
        line, pace = self.line, self.pace
        if not cost and not marks:
            line.flush()  # nobody knows how long it takes
            return work()
        line.follow(AHEAD)
        if (
            pace.varies and line is not self.standing.line
        ):  # how quick the step is, is the other activity's to say
            result = work()
            line.ask(frames.COMPUTE, time=cost)
            return result
        began, seconds = line.clock, pace.seconds(cost or 0.0)
        ends = [began + share * seconds for share, _ in marks] + [began + seconds]
        self._pass(ends[0], prompt=seconds > PROMPT)
        result = work()
        for (_, call), end in zip(marks, ends[1:]):
            call()
            self._pass(end)
        return result

    def inside(self, call: Callable[[], None]) -> None:
        """Nothing: the marks of :meth:`compute` make the calls, at their moments of the logical clock."""

    def pause(self, seconds: float) -> None:
        if seconds > 0:
            self.line.follow(AHEAD)
            self._pass(self.line.clock + seconds, prompt=True)

    def new_step(self, step: int) -> None:
        self.pace.new_step(step)
        if self.pace.varies:
            self.line.tell(frames.NEW_STEP, key=step)
        self.pause(self.pace.overhead)

    def _pass(self, end: float, prompt: bool = False) -> None:
        """Let the clock go on until `end`; the first to do so waits until all others have made ready."""
        line = self.line
        first = end > 0 and self.standing.wall.zero is None
        if first:
            line.tell(frames.BEGIN)
        line.tell(frames.ADVANCE, time=end)
        if first:
            line.answer()
        elif prompt:
            line.flush()
        line.clock = end

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
        return PacedComm(self.standing, self.line, *pickle.loads(part.body), part.key)

    def shared(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        self.barrier()
        world = self.standing.mpi.mpi
        mpi = MPIComm(world.Create_group(world.Get_group().Incl(self.members)), zero=0.0)
        self.standing.memory.append(mpi)
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
            activity = self.standing.number()
            line = self.standing.call(activity)
            self._beside = Beside(PacedComm(self.standing, line, self.rank, self.members), activity)
            self.standing.beside.append(self._beside)
        return self._beside.start(self, collective, bucket)

    def lock(self) -> Guard:
        return Guard(self.standing)

    def close(self) -> None:
        # What MPI does together it does outside logical time: only when nobody has anything to wait for any more.
        if self.handle == 0 and self.line is self.standing.line:
            self._leave()
            for memory in self.standing.memory:
                memory.close()

    def _leave(self) -> None:
        """Nothing more will come from this rank; what it has sent is kept until all have taken what they take."""
        line = self.line
        clock = line.clock
        line.tell(frames.END)
        line.flush()
        for thread in self.standing.beside:
            thread.close()
        line.answer()
        line.clock = clock
        line.follow(ahead=0.0)
