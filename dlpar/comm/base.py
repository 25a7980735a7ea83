"""The interface of every rank program, whatever world it runs in.

A collective, a scheme or a split reaches another rank by these calls only. So the same lines run on MPI, on
NCCL, and on a clock that is not the wall's.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

ANY = -1
"""Wildcard for the `source` or `tag` of a receive: the first message matches."""

T = TypeVar("T")
Collective = Callable[["Comm", torch.Tensor], Any]


class Arrival(NamedTuple):
    """A message that was received: its source, its tag and its bytes."""

    source: int
    tag: int
    nbytes: int


class Request(Protocol):
    """A communication under way."""

    def wait(self) -> Any:
        """Block until it is complete; an `irecv` gives its :class:`Arrival`."""

    def test(self) -> bool:
        """Return whether it is complete.

        This takes no time: on a clock that is not the wall's, a loop of tests alone never ends.
        """


def wait_all(requests: list[Request]) -> None:
    """Wait for all of some communications, and empty their list."""
    for request in requests:
        request.wait()
    requests.clear()


class Counter(Protocol):
    """A number all ranks count up together."""

    def take(self) -> int:
        """Take the present number, from 0, and count it up: no number is given twice."""


class Packet:
    """A message of numbers with a few whole numbers in front of it: one send, one receive.

    Attributes
    ----------
    head : Tensor, int64, shape (HEAD,)
        Numbers about the message.
    body : Tensor, shape (length,)
        The numbers.
    wire : Tensor, uint8
        Both as they are sent: ``8 * HEAD`` bytes and those of the body.  In host memory, `pinned` or not.
    """

    HEAD = 5

    def __init__(self, length: int, dtype: torch.dtype, pinned: bool = False) -> None:
        start = 8 * self.HEAD
        self.wire = torch.zeros(start + length * dtype.itemsize, dtype=torch.uint8, pin_memory=pinned)
        self.head = self.wire[:start].view(torch.int64)
        self.body = self.wire[start:].view(dtype)


class Traffic:
    """Counts of one rank: bytes and messages sent, and seconds waited for messages to start arriving.

    ``bytes`` and ``messages`` count payloads given to ``send``; they become None
    once a library collective moved data, because the library does not count them.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.bytes: int | None = 0
        self.messages: int | None = 0
        self._waited = 0.0
        # By thread, because a progress thread waits beside the computing one.
        self._since: dict[int, float] = {}
        self._lock = threading.Lock()

    def sent(self, nbytes: int) -> None:
        """Count one message."""
        with self._lock:
            if self.bytes is not None and self.messages is not None:
                self.bytes += nbytes
                self.messages += 1

    def hidden(self) -> None:
        """Note that a library moved an unknown amount of data."""
        self.bytes = self.messages = None

    def waiting(self, blocked: Callable[[], T]) -> T:
        """Run a call that blocks until a message is there, and count its seconds."""
        thread, since = threading.get_ident(), self._now()
        with self._lock:
            self._since[thread] = since
        try:
            return blocked()
        finally:
            with self._lock:
                del self._since[thread]
                self._waited += self._now() - since

    @property
    def waited(self) -> float:
        """Seconds waited so far, including a present wait."""
        if not self._since:
            return self._waited
        with self._lock:
            return self._waited + sum(self._now() - since for since in self._since.values())

    def take(self) -> dict[str, int | None]:
        """Give ``bytes`` and ``messages`` since the last call."""
        with self._lock:
            taken = {"bytes": self.bytes, "messages": self.messages}
            self.bytes = self.messages = 0
        return taken


class DeviceLock:
    """A lock between threads with a CUDA stream each; it is free once the GPU has finished the work begun inside."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        torch.cuda.current_stream(self._device).synchronize()
        self._lock.release()


class World:
    """The surroundings of a rank: its carrier, its clock, and all that only some worlds need.

    This class is the real world, where everything takes the time it takes.  The paced
    and the simulated world are subclasses.

    Parameters
    ----------
    device : torch.device
        Home of the rank's tensors.
    carrier : str
        Carrier of tensors: ``mpi``, ``nccl``, ``gloo`` or ``simulated``.

    Attributes
    ----------
    clock : str
        Unit of :meth:`Comm.now`: ``wall``, ``logical`` or ``virtual`` seconds.
    computes : bool
        Whether ranks compute numbers; otherwise buffers are ghosts: sizes without data.
    watches : bool
        Whether a receive from any source looks for ranks that have died: no message of theirs would tell it.
    eager : float
        Bytes up to which a send returns at once.  Open MPI's shared memory takes 4,096 in one go, with a header.
    """

    clock, computes, watches = "wall", True, False
    eager: float = 4032

    def __init__(self, device: torch.device, carrier: str) -> None:
        self.device, self.carrier = device, carrier

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Make a read-only thing that is equal on all ranks; in a simulated world, once for each name."""
        return make()

    def build(self, make: Callable[[], T]) -> T:
        """Make this rank's own model; where no numbers are computed, one outline serves all ranks."""
        return make()

    def backward(
        self,
        comm: Comm,
        work: Callable[[], T],
        cost: float | None = None,
        marks: Sequence[tuple[float, Callable[[], None]]] = (),
    ) -> T:
        """Compute as :meth:`Comm.compute` does, with calls in the middle.

        `marks` are pairs of a share of the cost and a call due after that share.  In the real
        world `work` makes these calls itself, through :meth:`inside`; other worlds make them
        at their moments of the logical clock.
        """
        return work()

    def inside(self, call: Callable[[], None]) -> None:
        """Make a call in the middle of `work`; worlds that follow the marks of :meth:`backward` skip it."""
        call()

    def new_step(self, step: int) -> None:
        """Begin a step of training; worlds with random computing times draw this rank's."""

    def pause(self, seconds: float) -> None:
        """Let time pass on this rank's clock, as if it were computing."""
        if seconds > 0:
            threading.Event().wait(seconds)

    def settle(self) -> None:
        """Wait until this rank's GPU has finished its queue, so that the time can be read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def is_death(self, error: BaseException) -> bool:
        """Return whether an error says that another rank of this rank's groups has died."""
        return False

    def survivors(self, comm: Comm) -> Comm:
        """Form a group of those ranks of `comm` that are left, in their order; all of them call this."""
        raise NotImplementedError

    def state(self) -> dict[str, float]:
        """Facts of this world for a step's record.

        Where the wall follows another clock: ``slip``, the most it has been behind, and ``lag``,
        its present delay, in seconds.
        """
        return {}

    def while_asleep(self, call: Callable[[], None]) -> None:
        """Make `call` now and then during long sleeps, where a world has ranks sleep."""

    def lock(self) -> AbstractContextManager:
        """Give a lock between the two activities of one rank."""
        return DeviceLock(self.device) if self.device.type == "cuda" else threading.Lock()


class Comm(ABC):
    """A group of ranks, seen from one of them.

    Attributes
    ----------
    rank, size : int
        This rank's number, 0-based, and the number of ranks.
    device : torch.device
        Place where :meth:`empty` allocates.
    traffic : Traffic
        Counts of this rank's messages and waiting.
    world : World
        All that only some worlds need; all groups of a rank share it.
    """

    rank: int
    size: int
    device: torch.device
    traffic: Traffic
    world: World

    def send(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> None:
        """Send a tensor of any dtype, layout and size; above the eager limit, block until `dest` receives."""
        self.isend(tensor, dest, tag).wait()

    def recv(self, into: torch.Tensor, source: int = ANY, tag: int = ANY) -> Arrival:
        """Receive into a tensor that has room for the message; block until it is there.

        A carrier without any-source (NCCL, gloo) leaves tagged messages to MPI: a receive from
        `ANY` gets only those.
        """
        return self.irecv(into, source, tag).wait()

    @abstractmethod
    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> Request:
        """Start a send; the tensor must not change before ``wait()``."""

    @abstractmethod
    def irecv(self, into: torch.Tensor, source: int = ANY, tag: int = ANY) -> Request:
        """Start a receive; the tensor holds the message after ``wait()``."""

    def sendrecv(
        self, tensor: torch.Tensor, dest: int, into: torch.Tensor, source: int, tag: int = 0
    ) -> Arrival:
        """Send and receive at once, as a ring must: two blocking sends would deadlock."""
        sending = self.isend(tensor, dest, tag)
        arrival = self.recv(into, source, tag)
        sending.wait()
        return arrival

    @abstractmethod
    def barrier(self) -> None:
        """Return once every rank has called."""

    @abstractmethod
    def split(self, color: int, key: int = 0) -> Comm:
        """Form groups of ranks with the same `color`, ordered by `key`, then rank (MPI_Comm_split)."""

    @abstractmethod
    def shared(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Allocate a zeroed tensor in memory that all ranks of the group write to; they must share a machine."""

    @abstractmethod
    def allreduce(self, tensor: torch.Tensor) -> None:
        """Sum over all ranks in place by the library's own fast path (MPI_Allreduce, NCCL)."""

    @abstractmethod
    def reduce(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Sum over all ranks in place at `root` by the library; undefined elsewhere (MPI_Reduce)."""

    @abstractmethod
    def broadcast_tensor(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Copy `root`'s tensor into that of every rank by the library (MPI_Bcast)."""

    @abstractmethod
    def reduce_scatter(self, chunks: Sequence[torch.Tensor]) -> None:
        """Sum chunk ``rank`` of N chunks over all ranks, in place, by the library (MPI_Reduce_scatter)."""

    @abstractmethod
    def allgather(self, chunks: Sequence[torch.Tensor]) -> None:
        """Copy chunk ``rank`` of every rank into that of all ranks by the library (MPI_Allgatherv)."""

    @abstractmethod
    def gather(self, thing: Any, root: int = 0) -> list[Any] | None:
        """Gather a picklable object of every rank in a list at `root`; None elsewhere.  For control, not for data."""

    @abstractmethod
    def broadcast(self, thing: Any, root: int = 0) -> Any:
        """Send a picklable object of `root` to every rank.  For control, not for data."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since all ranks were ready, on this world's clock."""

    @abstractmethod
    def start(self, collective: Collective, bucket: torch.Tensor) -> Request:
        """Start ``collective(comm, bucket)`` beside the rank's computation.

        All ranks must start the same collectives in the same order.
        """

    @abstractmethod
    def close(self) -> None:
        """Free shared memory and counters, and end what runs beside the computation; collective."""

    @abstractmethod
    def counter(self) -> Counter:
        """Make a counter that all ranks of the group share, on one machine or many; collective."""

    def packet(self, length: int, dtype: torch.dtype = torch.float32) -> Packet:
        """Make room for a message of `length` numbers with a head; see :class:`Packet`."""
        return Packet(length, dtype, pinned=self.device.type == "cuda")

    def compute(self, work: Callable[[], T], cost: float | None = None) -> T:
        """Do `work`; `cost` is its FLOPs, for worlds whose clock is not the wall's."""
        return work()

    def empty(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Allocate an uninitialised buffer on this rank's device."""
        return torch.empty(shape, dtype=dtype, device=self.device)


class Recorder(Protocol):
    """The record of a rank, which :class:`dlpar.jobs.record.Recorder` writes to the run folder."""

    def span(self, name: str, micro: int | None = None, chunk: int = 0) -> AbstractContextManager[None]:
        """Time a phase of a step: ``forward``, ``backward``, ``communicate``, ``update`` …"""

    def step(self, step: int, **facts: Any) -> None:
        """End a step with its loss, samples, traffic and other facts."""

    def evaluation(self, step: int, **facts: Any) -> None:
        """Record a test on held-out samples after `step` steps."""

    def event(self, name: str, **facts: Any) -> None:
        """Record an event that happened once."""

    def end(self, steps: int) -> None:
        """Record that the rank did all its steps."""

    def flush(self) -> None:
        """Write what waits to be written."""


class Keeper:
    """Keeps the state of a rank; this one keeps nothing, :class:`dlpar.jobs.snapshot.Keeper` writes snapshots.

    An object names the attributes that are its state: ``kept = ("weights", "optimizer")``.

    Attributes
    ----------
    every : int
        Global steps between two snapshots; 0: it takes none.
    own, done : int
        Steps that this rank, and all together, have done before this program began.
    resumed : bool
        Whether the rank goes on from a state.
    """

    every, own, done, resumed = 0, 0, 0, False

    def hold(self, **parts: Any) -> None:
        """Count objects among this rank's state; where the run is resumed, give them the state they had."""

    def after(self, own: int, done: int, at_end: bool = False) -> None:
        """Take a snapshot if one is due after `done` global steps, of which this rank did `own`."""


def check_peer(comm: Comm, peer: int, what: str) -> None:
    """Raise `ValueError` unless `peer` is a rank of `comm` (or ANY, as a source)."""
    if not (0 <= peer < comm.size or (peer == ANY and what == "source")):
        raise ValueError(f"{what}: got {peer}, allowed is a rank from 0 to {comm.size - 1}")


def too_long(room: int, source: int, tag: int, nbytes: int, rank: int | None = None) -> ValueError:
    """Make the error of a message that is longer than the tensor of its receiver, in bytes."""
    has = "there is" if rank is None else f"rank {rank} has"
    return ValueError(f"recv: {has} room for {room:,} bytes, but rank {source} sent {nbytes:,} (tag {tag})")
