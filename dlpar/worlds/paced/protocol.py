"""Protocol between paced ranks and their referee. Calls have names, and an answer carries the clock at the
end of its call.

A rank sends its calls in batches, each a list of tuples: the name of a method of
:class:`~dlpar.worlds.paced.referee.Proxy` and its arguments.  The referee answers waiting calls one by one.
An answer is (the rank's clock at the end of the call, the wall's second 0 or None while unknown, result or
exception).
"""

from __future__ import annotations

import pickle
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from dlpar.worlds.paced.parcels import Parcels
from dlpar.worlds.simulated.simulator import LostRank, place

WHERE = "where?"
"""The referee's question about the line of a rank that waits forever, instead of an answer."""

HEAD = 8
"""Length in bytes of a message's header on a link. The header gives the number of bytes that follow."""


class Link:
    """Link to another process, through a socket. Its methods raise `ConnectionError` once the other end has closed.

    Parameters
    ----------
    end : socket.socket
        A stream.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket, self._poll = end, select.poll()
        self._poll.register(end, select.POLLIN)

    def _read(self, size: int) -> bytearray:
        came = bytearray()
        while len(came) < size and (more := self.socket.recv(size - len(came), socket.MSG_WAITALL)):
            came += more  # not all if a signal came
        if len(came) < size:
            raise ConnectionError("the other end of a link has gone")
        return came

    def waits(self, seconds: float) -> bool:
        """Return whether data can be read now or within this many seconds."""
        return bool(self._poll.poll(1000 * seconds))

    def receive(self) -> Any:
        """Return the next object. Block until it arrives."""
        self._poll.poll()  # recv alone would also wake up when the other end reads
        return pickle.loads(self._read(int.from_bytes(self._read(HEAD), "little")))

    @property
    def is_closed(self) -> bool:
        """Return whether the other end has closed. Its earlier messages can still be read."""
        return any(event & select.POLLHUP for _, event in self._poll.poll(0))

    def close(self) -> None:
        """Close both ends. The exit of this process would do the same."""
        self.socket.shutdown(socket.SHUT_RDWR)

    def send(self, thing: Any) -> None:
        """Send any object."""
        data = pickle.dumps(thing)
        self.socket.sendall(len(data).to_bytes(HEAD, "little") + data)


AHEAD = 0.01
"""Seconds by which a computation may begin early. Ranks therefore sleep rarely, and a late wake-up delays no
rank.
"""

EARLY = 0.25
"""Seconds by which a message may arrive early. Ranks exchange it while others sleep during a computation.

Two cores take longer to carry the messages of many ranks than the network on paper does.
"""

BEAT = 0.5
"""Maximum seconds of a single sleep."""

NAP = 4e-3
"""Seconds between checks of parcels under way."""


class Wall:
    """Wall clock of all activities of one rank.

    Attributes
    ----------
    zero : float or None
        ``time.monotonic()`` of second 0; None until the first rank's clock advances.
    slip, lag : float
        Seconds by which the wall clock is behind the logical clock: the maximum so far, and the current
        value.
    """

    def __init__(self) -> None:
        self.zero: float | None = None
        self.slip = self.lag = 0.0

    def follow(self, clock: float, ahead: float, parcels: Parcels, asleep: Callable[[], None]) -> None:
        """Sleep until `clock` if this is more than `ahead` seconds away.

        Meanwhile, keep `parcels` moving, and call ``asleep()`` every :data:`BEAT`.
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


FULL = 400
"""Maximum number of calls queued for the next flush."""

ORPHANED = 5.0
"""Seconds that a rank without its referee waits for the job's guardian to end it. Its own error would mislead.
"""


class Line:
    """Connection of one activity to the referee.

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
        Called repeatedly during a long sleep.
    """

    def __init__(self, link: Link, wall: Wall, parcels: Parcels) -> None:
        self.link, self.wall, self.parcels = link, wall, parcels
        self.clock, self._told = 0.0, []
        self.asleep: Callable[[], None] = lambda: None
        self._over: Exception | None = None

    def tell(self, name: str, *arguments: Any) -> None:
        """Queue a call of this activity for the next :meth:`flush`."""
        self._told.append((name, *arguments))
        if len(self._told) > FULL:
            self.flush()

    def flush(self) -> None:
        """Send the referee all queued calls."""
        if self._told:
            told, self._told = self._told, []
            self._with_referee(self.link.send, told)

    def _with_referee(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Send or receive. A rank without its referee waits for the guardian before it raises an error."""
        try:
            return call(*arguments)
        except ConnectionError:
            time.sleep(ORPHANED)
            raise ConnectionError("rank 0 was killed, and its process keeps the time of all ranks") from None

    def ask(self, name: str, *arguments: Any) -> Any:
        """Send a call of this activity and wait for its answer. The answer sets the clock."""
        self.tell(name, *arguments)
        return self.answer()

    def answer(self) -> Any:
        """Wait for the last call's answer and return its result.

        Raises
        ------
        Deadlock
            If no rank can continue.
        LostRank
            If a rank has died.
        """
        if self._over is not None:  # there are no more answers
            raise self._over
        self.flush()
        while self.parcels.moving and not self.link.waits(NAP):
            self.parcels.move()
        while (answer := self._with_referee(self.link.receive)) == WHERE:
            self._with_referee(self.link.send, place(sys._getframe(1)))
        clock, zero, result = answer
        self.clock, self.wall.zero = clock or self.clock, zero or self.wall.zero
        if isinstance(result, Exception):
            self._over = None if isinstance(result, LostRank) else result
            raise result
        return result

    def advance(self, end: float, prompt: bool = False) -> None:
        """Advance the logical clock to `end`. The first rank to do so waits until all others are ready."""
        if end > 0 and self.wall.zero is None:
            self.ask("advance_first", end)
        else:
            self.tell("advance", end)
            if prompt:
                self.flush()
        self.clock = end

    def follow(self, ahead: float = EARLY) -> None:
        """Let the wall clock catch up if this activity is more than `ahead` seconds ahead."""
        self.wall.follow(self.clock, ahead, self.parcels, self.asleep)
