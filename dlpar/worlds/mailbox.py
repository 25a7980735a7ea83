"""Messages between ranks that share a GPU, through device memory that both processes map (CUDA IPC).

A sender copies a long message within the GPU to memory that it lends. MPI carries only a short note with the
place of the copy.  The receiver maps this memory once, copies the message within the GPU, and returns the
memory with an empty message.  So the host carries no payload, and MPI's order, tags and wildcards remain.
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

from dlpar.worlds.mpi import BEHIND, NOTE, memory_of, patiently

SHORT = 1 << 16
"""Bytes below which a message is staged through the host, because a copy within the GPU would save nothing."""

MARK = bytes.fromhex("a3c1f7025be84d969f1e6b0d42ab7c58")
"""First bytes of every note. No other message has this length and these bytes."""


class Lent(NamedTuple):
    """Device memory with its number, and the key with which another process maps it."""

    number: int
    memory: torch.Tensor
    key: Any


class Mailbox:
    """Device memory that this rank lends to the ranks on its GPU, and memory that they lend to this rank.

    Parameters
    ----------
    mpi : MPI.Intracomm
        All ranks. They construct their mailboxes together, because the mailboxes have a communicator of their own.
    device : torch.device
        This rank's device.
    places : sequence of str or None
        Unique name of each rank's GPU. Ranks with equal names share a GPU. None: a rank in host memory.
    """

    def __init__(self, mpi: MPI.Intracomm, device: torch.device, places: Sequence[str | None]) -> None:
        self.mpi, self.device = mpi.Dup(), device
        own = places[mpi.rank]
        self.neighbours = {r for r, place in enumerate(places) if place == own and own and r != mpi.rank}
        self._numbers, self._free = count(), list[Lent]()
        self._lent: list[tuple[MPI.Request, Lent]] = []
        self._mapped: dict[tuple[int, int], torch.Tensor] = {}
        self._lock = threading.Lock()  # both threads of a rank send

    def works(self) -> bool:
        """Return whether every rank can map memory of a neighbour. Containers may forbid this. Collective."""
        memory = key = mapped = None
        with suppress(RuntimeError):
            memory, key = self._allocate(1)
        keys = self.mpi.allgather(key)
        with suppress(RuntimeError):
            mapped = [self._map(keys[rank]) for rank in sorted(self.neighbours)[:1] if keys[rank]]
        works = all(self.mpi.allgather(bool(mapped) or not self.neighbours))
        del memory  # no rank uses it any more
        return works

    def lend(self, tensor: torch.Tensor, dest: int) -> torch.Tensor | None:
        """Copy a message to lent memory. Return the note for rank `dest` of all ranks.

        Return None for a message that must be staged.
        """
        if tensor.device != self.device or tensor.nbytes < SHORT or dest not in self.neighbours:
            return None
        with self._lock:
            lent = self._memory_for(tensor.nbytes)
            lent.memory[: tensor.nbytes].copy_(tensor.detach().contiguous().view(-1).view(torch.uint8))
            self._wait_for_gpu()
            returned = self.mpi.Irecv([bytearray(1), 0, MPI.BYTE], dest, lent.number)
            self._lent.append((returned, lent))
        body = MARK + pickle.dumps((self.mpi.rank, lent.number, tensor.nbytes, lent.key))
        return torch.frombuffer(bytearray(body.ljust(NOTE, b"\0")), dtype=torch.uint8)

    def _memory_for(self, nbytes: int) -> Lent:
        """Return memory for a message, if possible memory that a receiver has returned."""
        if len(self._lent) > BEHIND:
            patiently(self._lent[0][0].Test)
        back = [(returned.Test(), returned, lent) for returned, lent in self._lent]
        self._free += [lent for is_back, _, lent in back if is_back]
        self._lent = [(returned, lent) for is_back, returned, lent in back if not is_back]
        for lent in self._free:
            if nbytes <= lent.memory.nbytes <= 2 * nbytes:
                self._free.remove(lent)
                return lent
        return Lent(next(self._numbers), *self._allocate(nbytes))

    def fetch(self, wire: torch.Tensor, fill: Callable[[torch.Tensor, int], None]) -> int | None:
        """Give a note's message to ``fill(payload, nbytes)``, and return the memory to its owner.

        Return the message's bytes, or None if `wire` holds no note.
        """
        note = bytes(memory_of(wire)[:NOTE])
        if not note.startswith(MARK):
            return None
        owner, number, nbytes, key = pickle.loads(note[len(MARK) :])
        if (owner, number) not in self._mapped:
            self._mapped[owner, number] = self._map(key)
        fill(self._mapped[owner, number][:nbytes], nbytes)
        self._wait_for_gpu()
        self.mpi.Send([bytearray(1), 0, MPI.BYTE], owner, number)
        return nbytes

    def _allocate(self, nbytes: int) -> tuple[torch.Tensor, Any]:
        """Allocate device memory, and return it with its key."""
        memory = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        return memory, (nbytes, memory.untyped_storage()._share_cuda_())

    def _map(self, key: Any) -> torch.Tensor:
        nbytes, (_, *storage) = key  # the owner may number its GPUs otherwise
        there = torch.UntypedStorage._new_shared_cuda(self.device.index, *storage)
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(there, 0, (nbytes,))

    def _wait_for_gpu(self) -> None:
        torch.cuda.current_stream(self.device).synchronize()
