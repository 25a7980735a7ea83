"""A counter all ranks share, by one-sided communication: nobody has to answer for it."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI


class SharedCounter:
    """A number in the memory of rank 0 that any rank fetches and adds one to (MPI-3, section 11.3.4)."""

    def __init__(self, mpi: MPI.Intracomm) -> None:
        self.window = MPI.Win.Allocate(8 if mpi.rank == 0 else 0, 8, comm=mpi)
        if mpi.rank == 0:
            self.window.tomemory()[:] = bytes(8)
        mpi.Barrier()
        self.window.Lock_all()
        self._one, self._got = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)

    def take(self) -> int:
        """The present number, from 0; whoever asks next gets the next one."""
        self.window.Fetch_and_op(self._one, self._got, 0, 0, MPI.SUM)
        self.window.Flush(0)
        return int(self._got[0])

    def Free(self) -> None:
        """Give the window back; collective.  Named as MPI's own windows have it."""
        self.window.Unlock_all()
        self.window.Free()
