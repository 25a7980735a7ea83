"""Tensors of paced messages, sent by MPI under separate numbers until their receivers take them."""

from __future__ import annotations

import threading
import time
from collections import deque

import torch
from mpi4py import MPI

from dlpar.worlds.mpi import PIECE, landed, landing, memory_of, patiently, whole

KEPT = 16
"""Parcels under way above which a send forgets those that have arrived."""

PROBED, PATIENCE = 1 << 18, 0.05
"""Size in bytes of the parcel that probes whether MPI needs its sender's help, and seconds it may take."""


class Parcels:
    """Tensors sent by this process, some still under way.

    Where MPI copies between processes by itself, a parcel needs no help after its send. Elsewhere its sender
    must call MPI, which costs more than sending it.

    Parameters
    ----------
    mpi : MPI.Intracomm
        All ranks, on a communicator of its own.

    Attributes
    ----------
    helped : bool
        Whether senders must help; found out by :meth:`probe`.
    """

    helped = False

    def __init__(self, mpi: MPI.Intracomm) -> None:
        self.mpi, self._tags = mpi, mpi.Get_attr(MPI.TAG_UB)
        self._under_way: deque[tuple[MPI.Request, bytearray | torch.Tensor]] = deque()
        self._lock = threading.Lock()  # a rank may have two activities

    def probe(self) -> bool:
        """Find out on rank 0 whether senders must help; rank 1 also calls, and avoids MPI until 0 knows."""
        probe = torch.zeros(PROBED, dtype=torch.uint8)
        if self.mpi.rank == 1:
            self.send(probe, 0, 0)
        if self.mpi.rank or self.mpi.size == 1:
            return False
        coming, deadline = self.mpi.Irecv(whole(probe), 1, 0), time.monotonic() + PATIENCE
        patiently(lambda: coming.Test() or time.monotonic() > deadline)
        self._under_way.append((coming, probe))  # it may still be coming, and needs its memory
        return not coming.Test()

    def send(self, tensor: torch.Tensor, dest: int, key: int) -> None:
        """Start sending a copy, because the rank may change its tensor when its own clock allows."""
        copy = bytearray(memory_of(tensor.contiguous()))  # quicker than a tensor's copy
        sent = [copy, MPI.BYTE] if len(copy) < PIECE else whole(torch.frombuffer(copy, dtype=torch.uint8))
        self._under_way.append((self.mpi.Isend(sent, dest, key % self._tags), copy))
        if len(self._under_way) > KEPT:
            self.move()

    def take(self, into: torch.Tensor, source: int, key: int) -> None:
        """Receive the parcel with this number."""
        tag, wire = key % self._tags, landing(into)
        if self.helped:
            patiently(self.mpi.Irecv(whole(wire), source, tag).Test)
        else:  # it is there
            self.mpi.Recv(whole(wire), source, tag)
        landed(wire, into)

    @property
    def moving(self) -> bool:
        """Return whether any parcels under way may need help."""
        return len(self._under_way) > (0 if self.helped else KEPT)

    def move(self) -> None:
        """Help parcels along, and forget those that have arrived."""
        with self._lock:
            while self._under_way and self._under_way[0][0].Test():
                self._under_way.popleft()
