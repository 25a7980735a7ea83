"""Communication interface for all rank programs. It is the same in every world.

Collectives, schemes and splits reach other ranks only through these calls. So the same code runs on MPI, on
NCCL, and on a logical or virtual clock.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

ANY = -1
"""Wildcard for the `source` or `tag` of a receive. It matches the first message that arrives."""

T = TypeVar("T")
Collective = Callable[["Comm", torch.Tensor], Any]


class Arrival(NamedTuple):
    """Source, tag and size in bytes of a received message."""

    source: int
    tag: int
    nbytes: int


class Request(Protocol):
    """Pending communication."""

    def wait(self) -> Any:
        """Block until the communication is complete. For an `irecv`, return its :class:`Arrival`."""

    def test(self) -> bool:
        """Return whether the communication is complete.

        A test takes no time on a logical or virtual clock, so a loop that only tests never ends.
        """


def wait_all(requests: list[Request]) -> None:
    """Wait for all requests in the list, then empty it."""
    for request in requests:
        request.wait()
    requests.clear()


class Counter(Protocol):
    """Counter that all ranks share and increment."""

    def take(self) -> int:
        """Return the current number, from 0, and increment it. No two calls return the same number."""


class Packet:
    """Message with a header of a few integers and a body of numbers. It is sent as one unit.

    Attributes
    ----------
    head : Tensor, int64, shape (HEAD,)
        Integers that describe the message.
    body : Tensor, shape (length,)
        The numbers.
    wire : Tensor, uint8
        Head and body as sent: ``8 * HEAD`` bytes, then the bytes of the body. It is in host memory, `pinned`
        or not.
    """

    HEAD = 5

    def __init__(self, length: int, dtype: torch.dtype, pinned: bool = False) -> None:
        start = 8 * self.HEAD
        self.wire = torch.zeros(start + length * dtype.itemsize, dtype=torch.uint8, pin_memory=pinned)
        self.head = self.wire[:start].view(torch.int64)
        self.body = self.wire[start:].view(dtype)


class Traffic:
    """Counts of one rank: bytes and messages sent, and seconds waited for messages.

    ``bytes`` and ``messages`` count the payloads of ``send``.  A library collective sets both to None,
    because the library does not report its counts.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.bytes: int | None = 0
        self.messages: int | None = 0
        self._waited = 0.0
        # One count per thread, because a progress thread may wait at the same time as the computing thread.
        self._since: dict[int, float] = {}
        self._lock = threading.Lock()

    def sent(self, nbytes: int) -> None:
        """Count one message."""
        with self._lock:
            if self.bytes is not None and self.messages is not None:
                self.bytes += nbytes
                self.messages += 1

    def hidden(self) -> None:
        """Record that a library moved an unknown amount of data."""
        self.bytes = self.messages = None

    def waiting(self, blocked: Callable[[], T]) -> T:
        """Run a call that blocks until a message arrives, and count its seconds."""
        thread, since = threading.get_ident(), self._now()
        with self._lock:
            self._since[thread] = since
        try:
            return blocked()
        finally:
            with self._lock:
                del self._since[thread]
                self._waited += self._now() - since

    queued = waiting
    """Make a call that lets this rank's queue wait for a message.  Without a GPU the call itself waits."""

    def waits_of_device(self) -> Callable[[], float]:
        """Return a function that gives the seconds that the GPU, not the host, has waited since the last call.

        Call this function after the GPU has completed these waits.
        """
        return float

    all_waited = property(lambda self: self.waited)
    """Seconds that the host has waited so far, and its GPU since the last call of :meth:`waits_of_device`."""

    @property
    def waited(self) -> float:
        """Return the seconds that the host has waited so far, including a wait in progress."""
        with self._lock:
            return self._waited + sum(self._now() - since for since in self._since.values())

    def take(self) -> dict[str, int | None]:
        """Return ``bytes`` and ``messages`` since the last call."""
        with self._lock:
            taken = {"bytes": self.bytes, "messages": self.messages}
            self.bytes = self.messages = 0
        return taken


class DeviceLock:
    """Lock between threads that each have a CUDA stream.

    The lock is released when the GPU has finished the locked work.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        try:
            torch.cuda.current_stream(self._device).synchronize()
        finally:  # a GPU error must not block the other thread
            self._lock.release()


class World:
    """Environment of a rank: its device, its clock, and calls that only some worlds need.

    This class is the real world, where nothing is slowed down or simulated.  The paced
    and the simulated world are subclasses.

    Parameters
    ----------
    device : torch.device
        Device of the rank's tensors.
    carrier : str
        Library that carries tensors: ``mpi``, ``nccl``, ``gloo`` or ``simulated``.

    Attributes
    ----------
    clock : str
        Unit of :meth:`Comm.now`: ``wall``, ``logical`` or ``virtual`` seconds.
    computes : bool
        Whether ranks compute numbers. If not, buffers are ghosts, which have sizes but no data.
    watches : int
        Number of dead ranks at which a receive from any source fails, because no message reports deaths. 0:
        it never fails.
    in_memory : bool
        Whether messages stay within the memory of one host, so that no two of them share a wire.
    native : bool
        Whether the carrier's own collectives run in parallel with the host's program. If so, splits use them.
    eager : float
        Largest message in bytes whose send returns at once.  Open MPI's limit in shared memory is 4,096
        bytes, including a header.
    """

    clock, computes, watches, in_memory = "wall", True, 0, False
    eager: float = 4032

    def __init__(self, device: torch.device, carrier: str) -> None:
        self.device, self.carrier, self.native = device, carrier, carrier in ("nccl", "gloo")

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Make a read-only object that is equal on all ranks. A simulated world makes one object per name."""
        return make()

    def build(self, make: Callable[[], T]) -> T:
        """Make this rank's own model. If no numbers are computed, all ranks share one outline."""
        return make()

    def backward(
        self,
        comm: Comm,
        work: Callable[[], T],
        cost: float | None = None,
        marks: Sequence[tuple[float, Callable[[], None]]] = (),
    ) -> T:
        """Compute as :meth:`Comm.compute` does, and make calls during the computation.

        Each of the `marks` is a pair: a share of the cost, and the call that is due after that share.  In the
        real world `work` makes these calls itself, through :meth:`inside`.  Other worlds make each call at
        its time on the logical clock.
        """
        return work()

    def inside(self, call: Callable[[], None]) -> None:
        """Make a call from within `work`. Worlds that follow the marks of :meth:`backward` skip it."""
        call()

    def new_step(self, step: int) -> None:
        """Begin a training step. Worlds with random computation times draw this rank's time."""

    def pause(self, seconds: float) -> None:
        """Advance this rank's clock as if the rank were computing."""
        if seconds > 0:
            threading.Event().wait(seconds)

    def settle(self) -> None:
        """Wait until this rank's GPU has done what this thread queued. Call this before you read a time."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def before_death(self, why: str) -> None:
        """Prepare this rank for its requested death by SIGKILL.

        If ranks share a process, this call ends the rank with an error.
        """

    def is_death(self, error: BaseException) -> bool:
        """Return whether an error reports the death of another rank in this rank's groups."""
        return False

    def survivors(self, comm: Comm) -> Comm:
        """Form a group of the surviving ranks of `comm`, in the same order. All survivors call this."""
        raise NotImplementedError

    def state(self) -> dict[str, float]:
        """Return facts about this world for a step's record.

        The paced world returns ``slip``, the largest delay of the wall clock, and ``lag``, its current delay,
        in seconds.
        """
        return {}

    def while_asleep(self, call: Callable[[], None]) -> None:
        """Repeat `call` during long sleeps in worlds whose ranks sleep."""

    def lock(self) -> AbstractContextManager:
        """Return a lock that a rank's two threads share."""
        return DeviceLock(self.device) if self.device.type == "cuda" else threading.Lock()


class Comm(ABC):
    """Group of ranks, seen from one of them.

    Attributes
    ----------
    rank, size : int
        This rank's number, 0-based, and the number of ranks.
    device : torch.device
        Device where :meth:`empty` allocates.
    traffic : Traffic
        Counts of this rank's messages and waits.
    world : World
        Environment of this rank, shared by all its groups.
    """

    rank: int
    size: int
    device: torch.device
    traffic: Traffic
    world: World

    def send(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> None:
        """Send a tensor of any dtype, layout and size.

        Above the eager limit, block until `dest` receives the tensor.
        """
        self.isend(tensor, dest, tag).wait()

    def recv(self, into: torch.Tensor, source: int = ANY, tag: int = ANY) -> Arrival:
        """Receive a message into a tensor that is large enough. Block until the message has arrived.

        A carrier without any-source (NCCL, gloo) leaves tagged messages to MPI.  With such a carrier, a
        receive on its device must name either a source and tag 0, or a tag above 0. Other receives raise
        `ValueError`.  An untagged message has exactly the size of its tensor.
        """
        return self.irecv(into, source, tag).wait()

    @abstractmethod
    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> Request:
        """Start a send. The tensor must not change before ``wait()``."""

    @abstractmethod
    def irecv(self, into: torch.Tensor, source: int = ANY, tag: int = ANY) -> Request:
        """Start a receive. The tensor holds the message after ``wait()``."""

    def sendrecv(
        self, tensor: torch.Tensor, dest: int, into: torch.Tensor, source: int, tag: int = 0
    ) -> Arrival:
        """Send and receive simultaneously, as a ring must. Two blocking sends would deadlock."""
        # The receive is posted first, so that the message is not buffered and needs no handshake.
        with self.together():
            coming, going = self.irecv(into, source, tag), self.isend(tensor, dest, tag)
        arrival = coming.wait()
        going.wait()
        return arrival

    def together(self) -> AbstractContextManager[Any]:
        """Return a context whose sends and receives begin at its end, so that none waits for another.

        Wait for them after the context.  NCCL needs it if ranks exchange several messages.  Elsewhere each
        message begins at once.
        """
        return nullcontext()

    @abstractmethod
    def barrier(self) -> None:
        """Block until every rank has called this method."""

    @abstractmethod
    def split(self, color: int, key: int = 0) -> Comm:
        """Form groups of ranks with the same `color`, ordered by `key` and then by rank (MPI_Comm_split)."""

    @abstractmethod
    def shared(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Allocate a zeroed tensor that all ranks of the group share. They must be on one machine."""

    @abstractmethod
    def allreduce(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over all ranks in place with the library's own all-reduce (MPI_Allreduce, NCCL)."""

    @abstractmethod
    def reduce(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Sum a tensor over all ranks in place at `root` with the library (MPI_Reduce).

        Other ranks' tensors are undefined.
        """

    @abstractmethod
    def broadcast_tensor(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Copy `root`'s tensor to every rank with the library (MPI_Bcast)."""

    @abstractmethod
    def reduce_scatter(self, chunks: Sequence[torch.Tensor]) -> None:
        """Sum chunk ``rank`` of N chunks over all ranks, in place, with the library (MPI_Reduce_scatter)."""

    @abstractmethod
    def allgather(self, chunks: Sequence[torch.Tensor]) -> None:
        """Copy each rank's chunk ``rank`` to all ranks with the library (MPI_Allgatherv)."""

    def _in_place(self, collective: Callable[[Any], Any], values: Any, tensor: Any, root: int = 0) -> None:
        """Run a library's collective on flat `values`. Store its result in `tensor`, which has any layout."""
        check_peer(self, root, "root")
        self.traffic.hidden()
        flat = values.detach().reshape(-1)
        collective(flat)
        if flat.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(flat.view(tensor.shape))

    @abstractmethod
    def gather(self, thing: Any, root: int = 0) -> list[Any] | None:
        """Gather each rank's picklable object into a list at `root`. Return None elsewhere.

        For control, not for data.
        """

    @abstractmethod
    def broadcast(self, thing: Any, root: int = 0) -> Any:
        """Broadcast `root`'s picklable object to every rank. Use it for control, not for data."""

    @abstractmethod
    def now(self) -> float:
        """Return the seconds on this world's clock since all ranks were ready."""

    @abstractmethod
    def start(self, collective: Collective, bucket: torch.Tensor) -> Request:
        """Start ``collective(comm, bucket)`` in parallel with the rank's computation.

        All ranks must start the same collectives in the same order.
        """

    @abstractmethod
    def close(self) -> None:
        """Free shared memory and counters, and end activities started by :meth:`start`. Collective."""

    @abstractmethod
    def counter(self) -> Counter:
        """Make a counter shared by all ranks of the group, also across machines. Collective."""

    def packet(self, length: int, dtype: torch.dtype = torch.float32) -> Packet:
        """Allocate a message of `length` numbers with a header. See :class:`Packet`."""
        return Packet(length, dtype, pinned=self.device.type == "cuda")

    def compute(self, work: Callable[[], T], cost: float | None = None) -> T:
        """Execute `work`. Worlds with a logical or virtual clock charge its `cost` in FLOPs."""
        return work()

    def empty(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Allocate an uninitialised buffer on this rank's device."""
        return torch.empty(shape, dtype=dtype, device=self.device)


class Recorder:
    """Recorder of a rank that writes nothing. :class:`dlpar.jobs.record.Recorder` writes to the run folder."""

    def span(self, name: str, micro: int | None = None, chunk: int = 0) -> AbstractContextManager[None]:
        """Time a phase of a step: ``forward``, ``backward``, ``communicate``, ``update`` …"""
        return nullcontext()

    def step(self, step: int, **facts: Any) -> None:
        """End a step.

        Record its loss (a number or a tensor of shape ()), samples, traffic and other facts.
        """

    def evaluation(self, step: int, **facts: Any) -> None:
        """Record a test on held-out samples after `step` steps."""

    def event(self, name: str, **facts: Any) -> None:
        """Record an event that happened once."""

    def end(self, steps: int) -> None:
        """Record that the rank has done all its steps."""

    def flush(self) -> None:
        """Write all buffered records."""


class Keeper:
    """Keeper of a rank's state that saves nothing. :class:`dlpar.jobs.snapshot.Keeper` writes snapshots.

    An object names the attributes that are its state: ``kept = ("weights", "optimizer")``.

    Attributes
    ----------
    every : int
        Global steps between two snapshots; 0: no snapshots.
    own, done : int
        Steps done before this program began, by this rank and by all ranks together.
    resumed : bool
        Whether the rank resumes from a saved state.
    """

    every, own, done, resumed = 0, 0, 0, False

    def hold(self, **parts: Any) -> None:
        """Add objects to this rank's state. In a resumed run, restore their state."""

    def after(self, own: int, done: int, at_end: bool = False) -> None:
        """Take a snapshot if one is due after `done` global steps. This rank did `own` of them."""


def check_peer(comm: Comm, peer: int, what: str) -> None:
    """Raise `ValueError` unless `peer` is a rank of `comm` or, as a source, ANY."""
    if not (0 <= peer < comm.size or (peer == ANY and what == "source")):
        raise ValueError(f"{what}: got {peer}, allowed is a rank from 0 to {comm.size - 1}")


def fill(into: torch.Tensor, payload: torch.Tensor, nbytes: int) -> None:
    """Copy the first bytes of a payload to a tensor. The tensor keeps its other values."""
    into = into.detach()
    if nbytes < into.nbytes or (payload.dtype, payload.shape) != (into.dtype, into.shape):
        whole = into.resolve_conj().resolve_neg().contiguous()
        room, raw = (t.contiguous().view(-1).view(torch.uint8)[:nbytes] for t in (whole, payload))
        room.copy_(raw, non_blocking=True)
        payload = whole
    into.copy_(payload, non_blocking=True)  # a GPU copies from pinned memory while the rank continues


def too_long(room: int, source: int, tag: int, nbytes: int, rank: int | None = None) -> ValueError:
    """Make the error for a message that is longer, in bytes, than its receiver's tensor."""
    has = "there is" if rank is None else f"rank {rank} has"
    return ValueError(f"recv: {has} room for {room:,} bytes, but rank {source} sent {nbytes:,} (tag {tag})")
