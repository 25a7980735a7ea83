"""What paced ranks and their referee say to each other: calls and answers of one size, some with bytes behind them."""

from __future__ import annotations

import select
import socket
from struct import Struct
from typing import NamedTuple

(
    SEND,
    ISEND,
    RECV,
    IRECV,
    SENDRECV,
    WAIT,
    TEST,
    BEGIN,
    ADVANCE,
    COMPUTE,
    NEW_STEP,
    GATHER,
    BROADCAST,
    BARRIER,
    SPLIT,
    COUNTER,
    TAKE,
    START,
    JOIN,
    JOINED,
    LOCK,
    UNLOCK,
    TRAFFIC,
    PLACE,
    RETURN,
    END,
) = range(26)
"""What a rank calls for, in the words of :class:`~dlpar.comm.base.Comm`; RETURN ends what runs beside, END the rank."""

OK, WHERE, DEADLOCK, FAILED = range(4)
"""Kinds of answers: to the call; tell where you stand; nobody can go on; the referee itself went wrong."""

PIECE = 1 << 16
"""Bytes read from a socket at a time."""


class Call(NamedTuple):
    """What a rank calls for; each operation reads the fields it needs."""

    op: int
    comm: int
    peer: int
    source: int
    tag: int
    nbytes: int
    key: int
    size: int
    time: float


class Answer(NamedTuple):
    """What became of a call, the rank's clock then, and the wall's second 0 (NaN until it is known)."""

    kind: int
    source: int
    tag: int
    nbytes: int
    key: int
    clock: float
    zero: float
    body: bytes


CALL, ANSWER = Struct("<8qd"), Struct("<5q2dq")
"""How they travel; last but one or last, the bytes that follow."""

TRAFFIC_BODY = "<2qd"
"""What a rank has sent, in bytes and messages, and seconds it has waited."""

CAME_BODY = "<d"
"""Where a call also sends: the second at which its message was there; what it took longer, it sent."""


class Ended(ConnectionError):
    """Nobody is at the other end any more."""


class Link:
    """One end of a socket.

    Parameters
    ----------
    end : socket.socket
        Of a stream.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket, self._came, self._at = end, b"", 0
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def read(self, size: int) -> bytes:
        """So many bytes; blocks until they are there, raises :class:`Ended` if they never will be."""
        at, end = self._at, self._at + size
        while len(self._came) < end:
            self._poll.poll()  # who sleeps in recv is woken also when the other end reads what was sent
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
        """Whether something can be read, or comes within so many seconds."""
        return self._at < len(self._came) or bool(self._poll.poll(1000 * seconds))

    def call(self) -> Call:
        """The next call of a rank; blocks until it comes."""
        return Call._make(CALL.unpack(self.read(CALL.size)))

    def answer(self) -> Answer:
        """The next answer to a rank."""
        *facts, size = ANSWER.unpack(self.read(ANSWER.size))
        return Answer(*facts, self.read(size) if size else b"")

    def send(self, data: bytes) -> None:
        """Write whole frames; raises :class:`Ended` where nobody reads any more."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Ended("the other end of a link has gone") from None
