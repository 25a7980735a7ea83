"""Messages through MPI: CPU tensors in place, device tensors staged through pinned memory.

MPI has no bfloat16, and counts in 32-bit integers.  So payloads travel as raw memory, and long payloads as an
MPI type of many bytes.  Only the library's reductions need a number type, because they add.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from dlpar.comm import base
from dlpar.comm.base import ANY, Arrival, Collective, Comm, Request, T, Traffic, World, check_peer, too_long
from dlpar.worlds.progress import ProgressThread

NOTE = 1024
"""Length in bytes of a note about device memory. See :mod:`dlpar.worlds.cuda_ipc`."""

PIECE = 1 << 30
"""Bytes above which a message is described to MPI in pieces, because MPI-3 counts are 32-bit."""

BEHIND = 64
"""Maximum number of copies under way. The next send waits for the oldest copy."""

ADDED = "float32 float64 int64 int32 int16 int8 uint8 complex64 complex128".split()
"""Types of numbers that MPI adds."""

DEATHS = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
"""Classes of MPI errors that report a death: directly, to a receive from any source, and by a revoked group."""


@contextmanager
def despite_deaths() -> Iterator[None]:
    """Return a context that ignores the deaths of other ranks."""
    try:
        yield
    except MPI.Exception as error:
        if error.Get_error_class() not in DEATHS:
            raise


LOOK_EVERY = 0.05
"""Seconds between checks for dead ranks, in receives from any source."""


class MPIWorld(World):
    """Real world in which MPI reports the deaths of ranks (ULFM)."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, "mpi")
        self.groups: list[MPI.Intracomm] = []
        self._looked = 0.0

    def is_death(self, error: BaseException) -> bool:
        return isinstance(error, MPI.Exception) and error.Get_error_class() in DEATHS

    def watched(self, group: MPI.Intracomm, look: Callable[[], T]) -> T | None:
        """Check for a message, and sometimes for dead ranks of the group.

        A check for deaths takes some microseconds.
        """
        if (now := time.monotonic()) - self._looked > LOOK_EVERY:
            self._looked = now
            if group.Ack_failed() >= self.watches:
                raise MPI.Exception(MPI.ERR_PROC_FAILED)
        try:
            return look()
        except MPI.Exception as error:
            if error.Get_error_class() == MPI.ERR_REVOKED or group.Ack_failed() >= self.watches:
                raise
        return None

    def survivors(self, comm: Comm) -> Comm:
        for group in self.groups:  # so that no rank waits for this one in any of them
            with suppress(MPI.Exception):
                group.Revoke()
        assert isinstance(comm, MPIComm)
        left = MPIComm(comm.mpi.Shrink(), comm.device, comm.zero)
        left.world.watches, left.world.in_memory = 1, self.in_memory
        return left


UNREAD = 4096
"""Maximum number of waits kept until their seconds are requested."""


class DeviceTraffic(Traffic):
    """Counts of a rank whose GPU waits for messages. On the host, NCCL's own waits return at once."""

    def __init__(self, now: Callable[[], float], device: torch.device) -> None:
        super().__init__(now)
        self._device = device
        self._waits: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque(maxlen=UNREAD)

    def queued(self, wait: Callable[[], Any]) -> None:
        """Make a call that lets the GPU's queue wait for a message. Time the wait with the GPU's events."""
        since, until = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        since.record(torch.cuda.current_stream(self._device))
        wait()
        until.record(torch.cuda.current_stream(self._device))
        self._waits.append((since, until))

    @property
    def all_waited(self) -> float:
        return self.waited + sum(a.elapsed_time(b) for a, b in [*self._waits] if b.query()) / 1000

    def waits_of_device(self) -> Callable[[], float]:
        waits = [self._waits.popleft() for _ in range(len(self._waits))]  # another thread may add some
        return lambda: sum(since.elapsed_time(until) for since, until in waits) / 1000


class MPIComm(Comm):
    """Ranks of an MPI communicator.

    Parameters
    ----------
    mpi : MPI.Intracomm
        The communicator. By default, `MPI.COMM_WORLD`.
    device : torch.device or str
        Device of this rank's tensors.
    zero : float, optional
        ``time.monotonic()`` of second 0. By default, all ranks agree on a moment.
    """

    ipc: Any = None
    """The :class:`~dlpar.worlds.cuda_ipc.CudaIPC` of a rank that shares its GPU."""

    def __init__(
        self, mpi: MPI.Intracomm | None = None, device: str | torch.device = "cpu", zero: float | None = None
    ):
        self.mpi = mpi or MPI.COMM_WORLD
        self.rank, self.size = self.mpi.rank, self.mpi.size
        self.device = torch.device(device)
        self.world: MPIWorld = MPIWorld(self.device)
        self.world.groups.append(self.mpi)
        self.zero, self.world.in_memory = common_zero(self.mpi) if zero is None else (zero, False)
        self.traffic = Traffic(self.now)
        self._progress: ProgressThread | None = None
        self._windows: list[MPI.Win | SharedCounter | LockedCounter] = []
        self._copies: deque[MPI.Request] = deque()
        self._last: Any = (None, None)  # tensor and request of the last send from a copy

    @cached_property
    def among_all(self) -> list[int]:
        """Numbers of the group's ranks among all ranks."""
        return MPI.Group.Translate_ranks(self.mpi.group, range(self.size), MPI.COMM_WORLD.group)

    def now(self) -> float:
        return time.monotonic() - self.zero

    def send(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> None:
        check_peer(self, dest, "dest")
        if tensor.nbytes > self.world.eager or not self._goes_by_mpi(tensor, dest, tag):
            return super().send(tensor, dest, tag)
        wire = staged(tensor)
        self.traffic.sent(wire.nbytes)
        # A copy need not wait for its receiver. Without a copy, Open MPI frees the sender only up to about
        # 500 bytes.
        copies = self._copies  # a request keeps its memory alive
        copies.append(self.mpi.Isend([bytes(memory_of(wire)), MPI.BYTE], dest, tag))
        while copies and copies[0].Test():
            copies.popleft()
        if len(copies) > BEHIND:
            patiently(copies.popleft().Test)

    def _goes_by_mpi(self, tensor: torch.Tensor, peer: int, tag: int) -> bool:
        """Return whether MPI carries a message."""
        return True

    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> Request:
        check_peer(self, dest, "dest")
        self.traffic.sent(tensor.nbytes)
        tensor = tensor.resolve_conj().resolve_neg()  # a view may defer both
        note = self.ipc.lend(tensor, self.among_all[dest]) if self.ipc else None
        if note is None and not tensor.is_cpu:
            return self._send_staged(tensor, dest, tag)
        wire = tensor.contiguous() if note is None else note
        return _Under(self, self.mpi.Isend(whole(wire), dest, tag), wire)

    def _send_staged(self, tensor: torch.Tensor, dest: int, tag: int) -> _Under:
        """Send a copy from host memory. All pending sends of a tensor share one, because it may not change."""
        sent, before = self._last
        wire = before.wire if sent is tensor and not before.complete else staged(tensor)
        self._last = tensor, _Under(self, self.mpi.Isend(whole(wire), dest, tag), wire)
        return self._last[1]

    def irecv(self, into: torch.Tensor, source: int = ANY, tag: int = ANY) -> Request:
        check_peer(self, source, "source")
        wire = landing(into)
        place = MPI.ANY_SOURCE if source == ANY else source, MPI.ANY_TAG if tag == ANY else tag
        return _Under(self, self.mpi.Irecv(whole(wire), *place), wire, into, source)

    def barrier(self) -> None:
        self.world.settle()
        meet(self.mpi)
        self.mpi.Barrier()  # a short wait, after which all continue at the same moment

    def split(self, color: int, key: int = 0) -> Comm:
        meet(self.mpi)
        part = self._on(self.mpi.Split(color, key))
        part._copies = self._copies  # counts of one rank in all its groups
        return part

    def _on(self, mpi: MPI.Intracomm) -> MPIComm:
        """Return this rank on another MPI communicator."""
        part = MPIComm(mpi, self.device, self.zero)
        part.traffic, part.world, part.ipc = self.traffic, self.world, self.ipc
        self.world.groups.append(mpi)
        return part

    def shared(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        meet(self.mpi)
        shape, size = (shape,) if isinstance(shape, int) else tuple(shape), dtype.itemsize
        node = self.mpi.Split_type(MPI.COMM_TYPE_SHARED)
        if node.size != self.size:
            raise ValueError(f"shared: got ranks on several machines, allowed is one ({node.size} are here)")
        count = math.prod(shape)
        window = MPI.Win.Allocate_shared(max(1, count) * size if self.rank == 0 else 0, size, comm=node)
        self._windows.append(window)
        memory, _ = window.Shared_query(0)
        tensor = torch.frombuffer(memory, dtype=dtype)[:count].view(shape)
        if self.rank == 0:
            tensor.zero_()
        node.Barrier()
        return tensor

    def allreduce(self, tensor: torch.Tensor) -> None:
        self._added(tensor, lambda piece: self.mpi.Allreduce(MPI.IN_PLACE, piece))

    def reduce(self, tensor: torch.Tensor, root: int = 0) -> None:
        given = MPI.IN_PLACE if self.rank == root else None
        self._added(tensor, lambda piece: self.mpi.Reduce(given or piece, piece, root=root), root)

    def _added(self, tensor: torch.Tensor, add: Callable[[np.ndarray], None], root: int = 0) -> None:
        """Sum the tensor with the library, in place, in pieces that are small enough for 32-bit counts."""
        host = _addable(tensor)
        add_up = lambda flat: [add(piece.numpy()) for piece in flat.split(PIECE // host.element_size())]
        self._in_place(add_up, host, tensor, root)

    def broadcast_tensor(self, tensor: torch.Tensor, root: int = 0) -> None:
        wire = staged(tensor) if self.rank == root else landing(tensor)
        self._in_place(lambda flat: self.mpi.Bcast(whole(flat), root), wire, tensor, root)

    def reduce_scatter(self, chunks: Sequence[torch.Tensor]) -> None:
        self.traffic.hidden()
        whole = _addable(torch.cat(list(chunks)).detach())  # NumPy's views would pin the size of own memory
        mine = whole.new_empty(len(chunks[self.rank]))
        self.mpi.Reduce_scatter(whole.numpy(), mine.numpy(), [len(chunk) for chunk in chunks])
        chunks[self.rank].copy_(mine)

    def allgather(self, chunks: Sequence[torch.Tensor]) -> None:
        self.traffic.hidden()
        whole = staged(joined(chunks))
        self.mpi.Allgatherv(MPI.IN_PLACE, [memory_of(whole), [c.nbytes for c in chunks], MPI.BYTE])
        put_back(whole.split([len(chunk) for chunk in chunks]), chunks)

    def gather(self, thing: Any, root: int = 0) -> list[Any] | None:
        check_peer(self, root, "root")
        meet(self.mpi)
        return self.mpi.gather(thing, root)

    def broadcast(self, thing: Any, root: int = 0) -> Any:
        check_peer(self, root, "root")
        meet(self.mpi)
        return self.mpi.bcast(thing, root)

    def start(self, collective: Collective, bucket: torch.Tensor) -> Request:
        if self._progress is None:
            # A separate communicator, so that messages of the computing thread never match those of buckets.
            self._progress = ProgressThread(self._on(self.mpi.Dup()))
        return self._progress.start(collective, bucket)

    def counter(self) -> SharedCounter | LockedCounter:
        meet(self.mpi)
        may_die = self.world.watches and hasattr(os, "memfd_create")
        on_one_host = may_die and len({*self.mpi.allgather(MPI.Get_processor_name())}) == 1
        counter = (LockedCounter if on_one_host else SharedCounter)(self.mpi)
        self._windows.append(counter)
        return counter

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
        if self._windows:
            meet(self.mpi)
        while self._windows:
            self._windows.pop(0).Free()


class _Under:
    """Pending MPI request. It keeps its memory alive."""

    def __init__(
        self, comm: MPIComm, request: MPI.Request, wire: torch.Tensor, into: Any = None, source: int = 0
    ) -> None:
        self._comm, self._request, self.wire, self._into = comm, request, wire, into
        self._status, self._source, self.complete, self._arrival = MPI.Status(), source, False, None

    def wait(self) -> Arrival | None:
        if not self.test():
            wait = partial(patiently, self.test)
            wait() if self._into is None else self._comm.traffic.waiting(wait)
        return self._arrival

    def test(self) -> bool:
        if not self.complete and self._look():
            self.complete = True  # once, because MPI has forgotten the request
            if self._into is not None:
                source, tag, nbytes = self._facts()
                self._arrival = Arrival(source, tag, self._landed(source, tag, nbytes))
        return self.complete

    def _landed(self, source: int, tag: int, nbytes: int) -> int:
        """Copy a complete message to its tensor, from the host or from another rank's device memory."""
        comm, into, lent = self._comm, self._into, None
        if comm.ipc and nbytes == NOTE:
            lent = comm.ipc.fetch(self.wire, into, comm.traffic.queued)
        if lent is None:
            return landed(self.wire, into, nbytes)
        if lent > into.nbytes:
            raise too_long(into.nbytes, source, tag, lent, comm.rank)
        return lent

    def _look(self) -> bool | None:
        """Test the request. Raise `ValueError` if its message is too long."""
        look, world = partial(self._request.Test, self._status), self._comm.world
        try:
            return world.watched(self._comm.mpi, look) if self._source == ANY and world.watches else look()
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
        raise too_long(self.wire.nbytes, *self._facts(), self._comm.rank)

    def _facts(self) -> tuple[int, int, int]:
        """Return a complete message's source, tag and bytes."""
        return self._status.source, self._status.tag, self._status.Get_elements(MPI.BYTE)


def _addable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a host tensor for MPI's sums. Half precision becomes float32."""
    wide = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    if str(wide.dtype).removeprefix("torch.") not in ADDED:
        raise ValueError(f"tensor: got {tensor.dtype}, allowed is a number type MPI can add")
    return staged(wide)


def whole(wire: torch.Tensor) -> list[Any]:
    """Describe the memory of a contiguous host tensor to MPI as one message."""
    memory = memory_of(wire)
    return [memory, MPI.BYTE] if memory.nbytes < PIECE else [memory, 1, _type_of(memory.nbytes)]


@cache
def _type_of(nbytes: int) -> MPI.Datatype:
    """Make an MPI type of this many bytes, as whole pieces and a remainder."""
    count, rest = divmod(nbytes, PIECE)
    kinds = [MPI.BYTE.Create_contiguous(PIECE), MPI.BYTE]
    return MPI.Datatype.Create_struct([count, rest], [0, count * PIECE], kinds).Commit()


ROUND_TRIPS = 20


def common_zero(world: MPI.Intracomm) -> tuple[float, bool]:
    """Agree on second 0, after all ranks have called. Collective.

    Returns
    -------
    (float, bool)
        ``time.monotonic()`` of second 0 on this machine, and whether all ranks share the machine's memory.
    """
    global LONGEST
    meet(world)
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    is_whole = node.size == world.size
    LONGEST = LONGEST if is_whole else BETWEEN_HOSTS
    leaders = world.Split(node.rank, world.rank)  # useful on rank 0's machine
    meet(world)
    zero = node.bcast(_across(leaders) if node.rank == 0 else None)
    leaders.Free()
    node.Free()
    return zero, is_whole


def _across(leaders: MPI.Intracomm) -> float:
    """Find second 0 on this leader's clock by round trips between leader 0 and every other leader."""
    if leaders.rank == 0:
        zero = time.monotonic()
        for other in range(1, leaders.size):
            for _ in range(ROUND_TRIPS):
                leaders.recv(source=other)
                leaders.send(time.monotonic() - zero, dest=other)
        return zero
    trips = []
    for _ in range(ROUND_TRIPS):
        asked = time.monotonic()
        since = leaders.sendrecv(None, dest=0, source=0)
        answered = time.monotonic()
        trips.append((answered - asked, (asked + answered) / 2 - since))
    return min(trips)[1]


class SharedCounter:
    """Number in rank 0's memory that any rank can fetch and increment (MPI-3, section 11.3.4)."""

    def __init__(self, mpi: MPI.Intracomm) -> None:
        self.window = MPI.Win.Allocate(8 if mpi.rank == 0 else 0, 8, comm=mpi)
        if mpi.rank == 0:
            self.window.tomemory()[:] = bytes(8)
        mpi.Barrier()
        self.window.Lock_all()
        self._one, self._got = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)

    def take(self) -> int:
        """Return the current number, from 0, and increment it."""
        self.window.Fetch_and_op(self._one, self._got, 0, 0, MPI.SUM)
        self.window.Flush(0)
        return int(self._got[0])

    def Free(self) -> None:
        """Free the window. Collective. MPI's own windows have a method of the same name."""
        self.window.Unlock_all()
        self.window.Free()


class LockedCounter:
    """Counter for ranks on one host that may die. The kernel frees the lock of a dead rank.

    MPI's own counter has a lock in shared memory, which a dead rank may hold forever.
    """

    def __init__(self, mpi: MPI.Intracomm) -> None:
        own = os.memfd_create("dlpar-counter") if mpi.rank == 0 else None
        path = mpi.bcast(f"/proc/{os.getpid()}/fd/{own}")
        self.file = os.open(path, os.O_RDWR) if own is None else own
        meet(mpi)  # the first rank's file is open until all have opened it

    def take(self) -> int:
        """Return the current number, from 0, and increment it."""
        fcntl.lockf(self.file, fcntl.LOCK_EX)
        number = int.from_bytes(os.pread(self.file, 8, 0), "little")
        os.pwrite(self.file, (number + 1).to_bytes(8, "little"), 0)
        fcntl.lockf(self.file, fcntl.LOCK_UN)
        return number

    def Free(self) -> None:
        """Close the file. MPI's own windows have a method of this name."""
        os.close(self.file)


LOOKS = 200
"""Number of checks at full speed, each of which yields the core, before the first nap."""

FIRST, LONGEST = 2e-5, 1e-3
"""Seconds of the first and of the longest nap. Each nap is 1.5 times as long as the previous one."""

BETWEEN_HOSTS = 5e-5
"""Longest nap of ranks on several hosts. There, both ends take turns to move a message over the network."""


def patiently(look: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``look(*arguments)`` until the result is neither None nor False. Return that result."""
    for _ in range(LOOKS):
        if found := look(*arguments):
            return found
        os.sched_yield()
    nap = FIRST
    while not (found := look(*arguments)):
        time.sleep(nap)
        nap = min(1.5 * nap, LONGEST)
    return found


def meet(mpi: MPI.Intracomm) -> None:
    """Return once every rank of `mpi` has called this. The next collective then need not spin."""
    patiently(mpi.Ibarrier().Test)


def staged(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values, contiguous in host memory. If possible, do not copy them."""
    if tensor.is_cpu:
        return tensor.resolve_conj().resolve_neg().contiguous()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor.detach())


def joined(chunks: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return chunks as one tensor. It is their own memory if they follow one another in it."""
    first = chunks[0].detach()
    starts = accumulate(map(len, chunks), initial=first.storage_offset())
    places = [(each.untyped_storage()._cdata, each.storage_offset()) for each in chunks]
    if places == [(places[0][0], start) for start, _ in zip(starts, chunks)]:
        return first.as_strided((sum(map(len, chunks)),), (1,))
    return torch.cat(list(chunks)).detach()


def put_back(pieces: Sequence[torch.Tensor], chunks: Sequence[torch.Tensor]) -> None:
    """Copy pieces, which may be longer, to chunks, unless they are the same memory."""
    for piece, chunk in zip(pieces, chunks):
        if piece.data_ptr() != chunk.data_ptr():
            chunk.copy_(piece[: len(chunk)])


def landing(into: torch.Tensor) -> torch.Tensor:
    """Return the host tensor that receives a message. It is `into` itself if MPI can write to `into`."""
    if into.is_cpu and into.is_contiguous() and not (into.is_conj() or into.is_neg()):
        return into
    return torch.empty(into.shape, dtype=into.dtype, pin_memory=into.is_cuda)


def landed(wire: torch.Tensor, into: torch.Tensor, nbytes: int) -> int:
    """Copy a message of this many bytes to its tensor, and return their number."""
    if wire is not into:
        base.fill(into, wire, nbytes)
    return nbytes


def memory_of(tensor: torch.Tensor) -> MPI.buffer:
    """Return a contiguous host tensor's memory for MPI."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
