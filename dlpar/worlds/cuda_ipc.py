"""Messages between ranks that share a GPU, through device memory that both processes map (CUDA IPC).

A sender copies a long message within the GPU to memory that it lends. MPI carries only a short note with the
place of the copy.  The receiver maps this memory once, copies the message within the GPU, and returns the
memory with a short message.  So the host carries no payload, and MPI's order, tags and wildcards remain.  The
host waits for no copy: each process lets its GPU's queue wait for an event of the other process.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import torch
from mpi4py import MPI

from dlpar.comm.base import fill
from dlpar.worlds.mpi import BEHIND, NOTE, memory_of

SHORT = 1 << 16
"""Bytes below which a message is staged through the host, because a copy within the GPU would save nothing."""

HANDLE = 64
"""Length in bytes of the handle of an event."""

MARK = bytes.fromhex("a3c1f7025be84d969f1e6b0d42ab7c58")
"""First bytes of every note. No other message has this length and these bytes."""


class Shared(NamedTuple):
    """Device memory that a rank lends, or that it maps, with two events.

    `written` is the end of the owner's copy to it, and `read` the end of the receiver's copy from it.  `key` maps
    in another process what this process has made.
    """

    tensor: torch.Tensor
    written: torch.cuda.Event | None
    read: torch.cuda.Event | None
    key: Any


class CudaIPC:
    """Device memory that this rank lends to the ranks on its GPU, and memory that they lend to this rank.

    Parameters
    ----------
    mpi : MPI.Intracomm
        All ranks. They construct this together, because its messages have a communicator of their own.
    device : torch.device
        This rank's device.
    places : sequence of str or None
        Unique name of each rank's GPU. Ranks with equal names share a GPU. None: a rank in host memory.
    """

    def __init__(self, mpi: MPI.Intracomm, device: torch.device, places: Sequence[str | None]) -> None:
        self.mpi, self.device = mpi.Dup(), device
        own = places[mpi.rank]
        self.neighbours = {r for r, place in enumerate(places) if place == own and own and r != mpi.rank}
        self._numbers, self._free = count(), list[tuple[int, Shared]]()
        self._lent: list[tuple[MPI.Request, bytearray, int, Shared]] = []
        self._mapped: dict[tuple[int, int], Shared] = {}
        self._events: dict[bytes, torch.cuda.Event] = {}  # of other processes, by their handles
        self._lock = threading.Lock()  # both threads of a rank send

    def works(self) -> bool:
        """Return whether every rank can map memory of a neighbour. Containers may forbid this. Collective."""
        own = mapped = None
        with suppress(RuntimeError):
            own = self._make(1) if self.neighbours else None
        keys = self.mpi.allgather(own and own.key)
        with suppress(RuntimeError):
            mapped = [self._map(keys[rank]) for rank in sorted(self.neighbours)[:1] if keys[rank]]
        return all(self.mpi.allgather(bool(mapped) or not self.neighbours))  # until now others use `own`

    def lend(self, tensor: torch.Tensor, dest: int) -> torch.Tensor | None:
        """Copy a message to lent memory. Return the note for rank `dest` of all ranks.

        Return None for a message that must be staged.
        """
        if tensor.device != self.device or tensor.nbytes < SHORT or dest not in self.neighbours:
            return None
        with self._lock:
            if (free := self._memory_for(tensor.nbytes)) is None:
                return None
            number, lent = free
            if lent.read is not None:
                self._queue().wait_event(lent.read)
            lent.tensor[: tensor.nbytes].copy_(tensor.detach().contiguous().view(-1).view(torch.uint8))
            lent.written.record(self._queue())
            returned = bytearray(HANDLE)
            self._lent.append((self.mpi.Irecv([returned, MPI.BYTE], dest, number), returned, number, lent))
        body = MARK + pickle.dumps((self.mpi.rank, number, tensor.nbytes, lent.key))
        return torch.frombuffer(bytearray(body.ljust(NOTE, b"\0")), dtype=torch.uint8)

    def _memory_for(self, nbytes: int) -> tuple[int, Shared] | None:
        """Return memory for a message and its number, if possible memory that a receiver has returned.

        Return None if much is lent. A wait here could be a deadlock, because receivers may be sending, too.
        """
        away = []
        for request, returned, number, lent in self._lent:
            if request.Test():
                self._free.append((number, lent._replace(read=self._event_of(bytes(returned)))))
            else:
                away.append((request, returned, number, lent))
        self._lent = away
        if len(away) > BEHIND:
            return None
        for free in self._free:
            if nbytes <= free[1].tensor.nbytes <= 2 * nbytes:
                self._free.remove(free)
                return free
        return next(self._numbers), self._make(nbytes)

    def fetch(
        self, wire: torch.Tensor, into: torch.Tensor, waiting: Callable[[Callable[[], None]], None]
    ) -> int | None:
        """Copy a note's message to `into` unless it is too long, and return the memory to its owner.

        `waiting` times the call that lets the GPU wait for the message. Return the message's bytes, or None if
        `wire` holds no note.
        """
        note = bytes(memory_of(wire)[:NOTE])
        if not note.startswith(MARK):
            return None
        owner, number, nbytes, key = pickle.loads(note[len(MARK) :])
        if (owner, number) not in self._mapped:
            self._mapped[owner, number] = self._map(key)
        mapped = self._mapped[owner, number]
        waiting(lambda: self._queue().wait_event(mapped.written))
        if nbytes <= into.nbytes:
            fill(into, mapped.tensor[:nbytes], nbytes)
        mapped.read.record(self._queue())
        self.mpi.Send([mapped.key, MPI.BYTE], owner, number)
        return nbytes

    def _make(self, nbytes: int) -> Shared:
        """Allocate device memory that others may map."""
        tensor = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        written, handle = self._event()
        return Shared(tensor, written, None, (nbytes, tensor.untyped_storage()._share_cuda_(), handle))

    def _map(self, key: Any) -> Shared:
        """Map another rank's memory."""
        nbytes, (_, *storage), written = key  # the owner may number its GPUs otherwise
        there = torch.UntypedStorage._new_shared_cuda(self.device.index, *storage)
        tensor = torch.empty(0, dtype=torch.uint8, device=self.device).set_(there, 0, (nbytes,))
        return Shared(tensor, self._event_of(written), *self._event())

    def _event(self) -> tuple[torch.cuda.Event, bytes]:
        """Make an event, and the handle with which another process opens it."""
        event = torch.cuda.Event(interprocess=True)
        return event, event.ipc_handle()

    def _event_of(self, handle: bytes) -> torch.cuda.Event:
        """Return another process's event. A process opens each event once."""
        if handle not in self._events:
            self._events[handle] = torch.cuda.Event.from_ipc_handle(self.device, handle)
        return self._events[handle]

    def _queue(self) -> torch.cuda.Stream:
        """Return the queue of the calling thread's work on the GPU."""
        return torch.cuda.current_stream(self.device)
