"""What a simulated rank has sent and waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dlpar.comm.base import T, Traffic

if TYPE_CHECKING:
    from dlpar.comm.simulated import SimulatedComm


class VirtualTraffic(Traffic):
    """Of one rank in all groups it belongs to; counted where messages are sent and received, which is quicker."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._hidden = now, False
        self.comms: list[SimulatedComm] = []

    @property
    def bytes(self) -> int | None:
        return None if self._hidden else sum(comm.sent_bytes for comm in self.comms)

    @property
    def messages(self) -> int | None:
        return None if self._hidden else sum(comm.sent_messages for comm in self.comms)

    @property
    def waited(self) -> float:
        return sum(comm.box.waited for comm in self.comms)

    def waiting(self, blocked: Callable[[], T]) -> T:
        """Run a call that blocks; what it waits is counted where it waits."""
        return blocked()

    def hidden(self) -> None:
        self._hidden = True

    def take(self) -> dict[str, int | None]:
        taken, self._hidden = {"bytes": self.bytes, "messages": self.messages}, False
        for comm in self.comms:
            comm.sent_bytes = comm.sent_messages = 0
        return taken
