"""When a GPU has done what it was told, on its rank's clock, without waiting for it.

A GPU is told ahead: when the host has called a forward pass, nothing of it need be done.  So a
moment is an event put into the GPU's stream behind what it was told so far; once the GPU has come
by, the event knows when that was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from dlpar.comm.base import Comm


class DeviceClock:
    """Moments of one rank's GPU.

    Parameters
    ----------
    comm : Comm
        The rank; its clock counts the seconds.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.set()

    def moment(self) -> torch.cuda.Event:
        """The end of what the GPU has been told so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._comm.device))
        return event

    def seconds(self, moment: torch.cuda.Event) -> float:
        """A moment before the last :meth:`set`, on the rank's clock."""
        return self._at - moment.elapsed_time(self._zero) / 1000

    def set(self) -> None:
        """Wait for the GPU, and set its clock by the rank's: from then on, what was before can be told.

        Not once for all: no two clocks go alike, and between events there are 7 digits of milliseconds.
        """
        self._zero = self.moment()
        self._zero.synchronize()
        self._at = self._comm.now()
