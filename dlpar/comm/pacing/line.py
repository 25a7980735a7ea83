"""A paced rank's line to the referee: calls it asks about, calls it only tells, and the logical clock they move."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from dlpar.comm.pacing.frames import CALL, DEADLOCK, OK, PLACE, WHERE, Answer, Ended, Link
from dlpar.comm.pacing.parcels import Parcels
from dlpar.comm.pacing.wall import EARLY, NAP, Wall
from dlpar.comm.simulation.simulator import Deadlock, place

FULL = 1 << 15
"""Bytes of calls told that may wait for the next one asked."""

ORPHANED = 5.0
"""Seconds within which a rank without a referee is ended by whoever guards the job; its own complaint would mislead."""


class Line:
    """One activity's end of the line.

    Parameters
    ----------
    link : Link
        To the referee.
    wall : Wall
        What follows the clock.
    parcels : Parcels
        What must be kept moving while the activity waits.

    Attributes
    ----------
    clock : float
        Logical seconds of this activity.
    asleep : callable
        Called now and then while it sleeps for long.
    """

    def __init__(self, link: Link, wall: Wall, parcels: Parcels) -> None:
        self.link, self.wall, self.parcels = link, wall, parcels
        self.clock, self._told = 0.0, bytearray()
        self.asleep: Callable[[], None] = lambda: None
        self._over: Exception | None = None

    def tell(
        self,
        op: int,
        comm: int = 0,
        peer: int = 0,
        source: int = 0,
        tag: int = 0,
        nbytes: int = 0,
        key: int = 0,
        time: float = 0.0,
        body: bytes = b"",
    ) -> None:
        """Say what this activity does, soon: with the next :meth:`flush`."""
        self._told += CALL.pack(op, comm, peer, source, tag, nbytes, key, len(body), time)
        self._told += body
        if len(self._told) > FULL:
            self.flush()

    def flush(self) -> None:
        """Let the referee know what was told."""
        if self._told:
            told, self._told = self._told, bytearray()
            self.link.send(told)

    def ask(
        self,
        op: int,
        comm: int = 0,
        peer: int = 0,
        source: int = 0,
        tag: int = 0,
        nbytes: int = 0,
        key: int = 0,
        time: float = 0.0,
        body: bytes = b"",
    ) -> Answer:
        """Say what this activity does and wait for what comes of it; its clock is then the answer's."""
        self.tell(op, comm, peer, source, tag, nbytes, key, time, body)
        return self.answer()

    def answer(self) -> Answer:
        """Wait for the answer to what was told last.

        Raises
        ------
        Deadlock
            If there will be none because no rank can go on.
        """
        if self._over is not None:  # there are no more answers
            raise self._over
        self.flush()
        if self.parcels.moving:
            self._keep_moving()
        try:
            answer = self.link.answer()
            while answer.kind == WHERE:
                self.tell(PLACE, body=place(sys._getframe(1)).encode())
                self.flush()
                answer = self.link.answer()
        except Ended:
            time.sleep(ORPHANED)
            raise
        if answer.kind != OK:
            self._over = (Deadlock if answer.kind == DEADLOCK else RuntimeError)(answer.body.decode())
            raise self._over
        if answer.zero == answer.zero:  # no NaN
            self.wall.zero = answer.zero
        self.clock = answer.clock
        return answer

    def follow(self, ahead: float = EARLY) -> None:
        """Let the wall clock catch up, should this activity be more than `ahead` seconds ahead."""
        self.wall.follow(self.clock, ahead, self.parcels, self.asleep)

    def _keep_moving(self) -> None:
        """Until an answer can be read, see to it that what was sent gets on."""
        while self.parcels.moving and not self.link.waits(NAP):
            self.parcels.move()
