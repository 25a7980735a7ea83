"""The protocol of paced ranks and their referee: calls and answers of one size, some with bytes behind them."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

from dlpar.worlds.paced.parcels import Parcels
from dlpar.worlds.simulated.simulator import Deadlock, place

(
    SEND, ISEND, RECV, IRECV, SENDRECV, WAIT, TEST, BEGIN, ADVANCE, COMPUTE, NEW_STEP, GATHER, BROADCAST, BARRIER,
    SPLIT, COUNTER, TAKE, START, JOIN, JOINED, LOCK, UNLOCK, TRAFFIC, PLACE, RETURN, END,
) = range(26)  # fmt: skip
"""Operations, named as in :class:`~dlpar.comm.base.Comm`; RETURN ends a collective beside, END the rank."""

OK, WHERE, DEADLOCK, FAILED = range(4)
"""Kinds of answers: to the call; a question for the rank's place; a deadlock; a failure of the referee."""

PIECE = 1 << 16
"""Bytes read from a socket at a time."""


class Call(NamedTuple):
    """A rank's call; each operation reads the fields it needs."""

    op: int
    comm: int = 0
    peer: int = 0
    source: int = 0
    tag: int = 0
    nbytes: int = 0
    key: int = 0
    size: int = 0
    time: float = 0.0


class Answer(NamedTuple):
    """The result of a call, the rank's clock then, and the wall's second 0 (NaN until it is known)."""

    kind: int
    source: int
    tag: int
    nbytes: int
    key: int
    clock: float
    zero: float
    body: bytes


CALL, ANSWER = Struct("<8qd"), Struct("<5q2dq")
"""Layouts of calls and answers; last but one or last is the number of bytes that follow."""

TRAFFIC_BODY = "<2qd"
"""Layout of a rank's traffic: bytes and messages sent, and seconds waited."""

CAME_BODY = "<d"
"""Layout where a call also sends: the second at which its message was there; the rest of the time it sent."""


class Ended(ConnectionError):
    """The other end of a link has gone."""


class Link:
    """One end of a socket.

    Parameters
    ----------
    end : socket.socket
        A stream.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket, self._came, self._at = end, b"", 0
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def read(self, size: int) -> bytes:
        """Read so many bytes; blocks until they are there, raises :class:`Ended` if they never will be."""
        at, end = self._at, self._at + size
        while len(self._came) < end:
            self._poll.poll()  # a sleep in recv would also end when the other end reads what was sent
            try:
                more = self.socket.recv(PIECE)
            except ConnectionResetError:
                more = b""
            if not more:
                raise Ended("the other end of a link has gone")
            self._came, at, end = self._came[at:] + more, 0, size
        self._at = end
        return self._came[at:end]

    def waits(self, seconds: float) -> bool:
        """Return whether something can be read, or comes within so many seconds."""
        return self._at < len(self._came) or bool(self._poll.poll(1000 * seconds))

    def call(self) -> Call:
        """Read the next call of a rank; blocks until it comes."""
        return Call._make(CALL.unpack(self.read(CALL.size)))

    def answer(self) -> Answer:
        """Read the next answer to a rank."""
        *facts, size = ANSWER.unpack(self.read(ANSWER.size))
        return Answer(*facts, self.read(size) if size else b"")

    def send(self, data: bytes) -> None:
        """Write whole frames; raises :class:`Ended` where nobody reads any more."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Ended("the other end of a link has gone") from None


AHEAD = 0.01
"""Seconds a computation may begin before its time: ranks sleep seldom and long, and one late wake-up delays nobody."""

EARLY = 0.25
"""Seconds a message may come before its time: while the wall sleeps through a computation, ranks exchange what follows.

Two cores take longer to carry the messages of many ranks than the network on paper does.
"""

BEAT = 0.5
"""Seconds of the longest sleep in one piece."""

NAP = 4e-3
"""Seconds between looks at parcels that are under way."""


class Wall:
    """The wall clock as all activities of one rank see it.

    Attributes
    ----------
    zero : float or None
        ``time.monotonic()`` of second 0; None until the first rank's time goes on.
    slip, lag : float
        Seconds by which the wall was behind the logical clock: the most so far, and now.
    """

    def __init__(self) -> None:
        self.zero: float | None = None
        self.slip = self.lag = 0.0

    def follow(self, clock: float, ahead: float, parcels: Parcels, asleep: Callable[[], None]) -> None:
        """Sleep until it is `clock`, if that is more than `ahead` seconds off.

        Meanwhile keep `parcels` moving; ``asleep()`` is called every :data:`BEAT`.
        """
        if self.zero is None:
            return
        lag = time.monotonic() - self.zero - clock
        if lag <= -ahead:
            beat = lag + BEAT
            while lag < 0:
                time.sleep(min(-lag, NAP if parcels.moving else BEAT))
                parcels.move()
                lag = time.monotonic() - self.zero - clock
                if lag > beat:
                    asleep()
                    beat += BEAT
        self.lag = max(lag, 0.0)
        self.slip = max(self.slip, lag)


FULL = 1 << 15
"""Bytes of calls told that may wait for the next flush."""

ORPHANED = 5.0
"""Seconds within which the guard of the job ends a rank without a referee, whose own complaint would mislead."""


class Line:
    """One activity's end of the line.

    Parameters
    ----------
    link : Link
        The link to the referee.
    wall : Wall
        The wall clock, which follows the logical one.
    parcels : Parcels
        Messages to keep moving while the activity waits.

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

    def tell(self, op: int, body: bytes = b"", **fields: Any) -> None:
        """Tell a call of this activity, with some of the fields of :class:`Call`, at the next :meth:`flush`."""
        self._told += CALL.pack(*Call(op, size=len(body), **fields))
        self._told += body
        if len(self._told) > FULL:
            self.flush()

    def flush(self) -> None:
        """Send the referee all calls told so far."""
        if self._told:
            told, self._told = self._told, bytearray()
            self.link.send(told)

    def ask(self, op: int, **fields: Any) -> Answer:
        """Tell the call of this activity and wait for its answer, which sets the clock."""
        self.tell(op, **fields)
        return self.answer()

    def answer(self) -> Answer:
        """Wait for the answer to the last call told.

        Raises
        ------
        Deadlock
            If no rank can go on.
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

    def advance(self, end: float, prompt: bool = False) -> None:
        """Let the logical clock go on until `end`; the first rank to do so waits until all others are ready."""
        first = end > 0 and self.wall.zero is None
        if first:
            self.tell(BEGIN)
        self.tell(ADVANCE, time=end)
        if first:
            self.answer()
        elif prompt:
            self.flush()
        self.clock = end

    def follow(self, ahead: float = EARLY) -> None:
        """Let the wall clock catch up, should this activity be more than `ahead` seconds ahead."""
        self.wall.follow(self.clock, ahead, self.parcels, self.asleep)

    def _keep_moving(self) -> None:
        """Help parcels along until an answer can be read."""
        while self.parcels.moving and not self.link.waits(NAP):
            self.parcels.move()
