"""What a simulated rank runs on: a greenlet, or a thread of which exactly one runs at a time.

Greenlets switch in a fraction of a microsecond, but all of them share one thread, and
autograd keeps state in its thread: a switch within a backward pass hangs.  So ranks
that really compute gradients get a thread each, and pass a baton.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Callable

from greenlet import greenlet


class Abandoned(BaseException):
    """Raised within a task whose simulation has ended without it."""


class GreenletTask(greenlet):
    """Runs ``program()`` in place of whoever calls ``switch()``; that one goes on when it is switched to.

    Parameters
    ----------
    program : callable
        What it runs.
    main : greenlet
        Where it hands over when it ends.
    """

    __slots__ = ()

    def frame(self) -> FrameType | None:
        """Where it stands."""
        return self.gr_frame

    def abandon(self) -> None:
        """Unwind it where it stands."""
        if self:  # has begun, and has not ended
            self.throw(Abandoned)


class ThreadTask:
    """Runs ``program()`` on a thread of its own, but only while it holds the baton."""

    __slots__ = ("thread", "baton", "switch", "abandoned")

    def __init__(self, program: Callable[[], None], main: ThreadTask) -> None:
        self._stand()

        def run() -> None:
            try:
                self.rest()
                program()
            except Abandoned:
                return
            main.switch()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def _stand(self) -> None:
        self.baton, self.abandoned = threading.Lock(), False
        self.baton.acquire()
        self.switch = self.baton.release

    def rest(self) -> None:
        self.baton.acquire()
        if self.abandoned:
            raise Abandoned

    def frame(self) -> FrameType | None:
        return sys._current_frames().get(self.thread.ident)

    def abandon(self) -> None:
        if self.thread.is_alive():
            self.abandoned = True
            self.switch()
            self.thread.join(5.0)


class MainThread(ThreadTask):
    """The thread that waits for the simulation to end."""

    def __init__(self) -> None:
        self._stand()
        self.thread = threading.current_thread()
