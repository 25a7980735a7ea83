"""Tensors of paced messages, sent through MPI under separate numbers until their receivers take them."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import torch
from mpi4py import MPI

from dlpar.worlds.mpi import FIRST, PIECE, despite_deaths, landed, landing, memory_of, patiently, whole

KEPT = 16
"""Number of parcels under way above which a send drops those that have arrived."""

PROBED, PROBING = 1 << 18, 0.05
"""Size in bytes and maximum seconds of the parcel that tests whether MPI needs its sender's help."""

PATIENCE = 2.0
"""Wall-clock seconds for which a rank that dies on request waits until its parcels have arrived."""


class Parcels:
    """Tensors sent by this process, some still in transit.

    If MPI copies between processes by itself, a parcel needs no help after its send. Otherwise its sender
    must keep calling MPI, and these calls cost more than the send.

    Parameters
    ----------
    mpi : MPI.Intracomm
        All ranks, on a separate communicator.

    Attributes
    ----------
    helped : bool
        Whether senders must help. :meth:`probe` finds this out.
    """

    helped = False

    def __init__(self, mpi: MPI.Intracomm) -> None:
        self.mpi, self._tags = mpi, mpi.Get_attr(MPI.TAG_UB)
        self._under_way: deque[tuple[MPI.Request, bytearray | torch.Tensor]] = deque()
        self._left: list[Any] = []  # MPI may still read their memory
        self._lock = threading.Lock()  # a rank may have two activities

    def probe(self) -> bool:
        """Return on rank 0 whether senders must help MPI.

        Rank 1 sends the probe, and must not call MPI again until rank 0 has the result.
        """
        probe = torch.zeros(PROBED, dtype=torch.uint8)
        if self.mpi.rank == 1:
            self.send(probe, 0, 0)
        if self.mpi.rank or self.mpi.size == 1:
            return False
        coming, deadline = self.mpi.Irecv(whole(probe), 1, 0), time.monotonic() + PROBING
        patiently(lambda: coming.Test() or time.monotonic() > deadline)
        self._under_way.append((coming, probe))  # the parcel may still be under way, and needs its memory
        return not coming.Test()

    def send(self, tensor: torch.Tensor, dest: int, key: int) -> None:
        """Start sending a copy. The rank may change its tensor as soon as its clock allows."""
        tensor = tensor.resolve_conj().resolve_neg().contiguous()  # a name keeps its memory during the copy
        copy = bytearray(memory_of(tensor))  # quicker than a tensor's copy
        sent = [copy, MPI.BYTE] if len(copy) < PIECE else whole(torch.frombuffer(copy, dtype=torch.uint8))
        with despite_deaths():
            self._under_way.append((self.mpi.Isend(sent, dest, key % self._tags), copy))
        if len(self._under_way) > KEPT:
            self.move()

    def take(self, into: torch.Tensor, source: int, key: int, nbytes: int) -> None:
        """Receive the parcel with this number and this many bytes."""
        tag, wire = key % self._tags, landing(into)
        patiently(self.mpi.Irecv(whole(wire), source, tag).Test)
        landed(wire, into, nbytes)

    @property
    def moving(self) -> bool:
        """Return whether any parcels in transit may need help."""
        return len(self._under_way) > (0 if self.helped else KEPT)

    def move(self) -> None:
        """Let MPI move the parcels, and drop those that have arrived."""
        with self._lock:
            while self._under_way:
                with despite_deaths():
                    if not self._under_way[0][0].Test():
                        return
                self._under_way.popleft()

    def deliver(self) -> None:
        """Wait briefly until all parcels have arrived. Some may have no receiver."""
        deadline = time.monotonic() + PATIENCE
        while self._under_way and time.monotonic() < deadline:
            self.move()
            time.sleep(FIRST)

    def forget(self) -> None:
        """Drop parcels in transit. After a death no rank requests them."""
        with self._lock:
            self._left += self._under_way
            self._under_way.clear()
