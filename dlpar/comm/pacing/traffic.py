"""What a paced rank has sent and waited for, by its logical clock."""

from __future__ import annotations

from struct import unpack
from typing import TYPE_CHECKING

from dlpar.comm.base import Traffic
from dlpar.comm.pacing.frames import TRAFFIC, TRAFFIC_BODY

if TYPE_CHECKING:
    from dlpar.comm.paced import Standing


class LogicalTraffic(Traffic):
    """Counted where messages are sent and received, as long as one activity does that.

    Of two activities, one of which is ahead of the other on the wall clock, the referee
    knows what they had sent and waited at a moment of the logical one.
    """

    def __init__(self, standing: Standing) -> None:
        super().__init__(lambda: standing.line.clock)
        self.standing = standing
        self._taken: tuple[int, int] | None = (
            None  # bytes and messages of all calls of take, by the referee's count
        )

    def add(self, seconds: float) -> None:
        """Count seconds waited."""
        self._waited += seconds

    def two_activities(self) -> None:
        """From now on there is something beside the computation."""
        if self._taken is None:
            nbytes, messages, _ = self._asked()
            self._taken = nbytes - (self.bytes or 0), messages - (self.messages or 0)

    @property
    def waited(self) -> float:
        return self._waited if self._taken is None else self._asked()[2]

    def take(self) -> dict[str, int | None]:
        taken = super().take()
        if self._taken is not None:
            before, self._taken = self._taken, self._asked()[:2]
            if taken["bytes"] is not None:
                taken = {"bytes": self._taken[0] - before[0], "messages": self._taken[1] - before[1]}
        return taken

    def _asked(self) -> tuple[int, int, float]:
        return unpack(TRAFFIC_BODY, self.standing.current.line.ask(TRAFFIC).body)
