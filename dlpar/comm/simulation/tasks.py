"""What a simulated rank runs on: a greenlet, or a thread of which exactly one runs at a time.

Greenlets switch in a fraction of a microsecond, but all of them share one thread, and
autograd keeps state in its thread: a switch within a backward pass hangs.  So ranks
that really compute gradients get a thread each, and pass a baton.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType

from greenlet import getcurrent, greenlet


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

    def __init__(self, program: Callable[[], None], main: greenlet) -> None:
        maker = getcurrent()

        def run() -> None:
            maker.switch()  # begun here and now: by another one it would count that one's calls as its own
            program()

        super().__init__(run, main)
        self.switch()

    def frame(self) -> FrameType | None:
        """Where it stands."""
        return self.gr_frame

    def abandon(self) -> None:
        """Unwind it where it stands."""
        self.throw(Abandoned)


class ThreadTask:
    """The same on a thread of its own, which runs only while it holds the baton.

    Parameters
    ----------
    program : callable
        What it runs.
    main : MainThread
        Where it hands over when it ends.
    """

    __slots__ = ("abandoned", "baton", "main", "thread")

    def __init__(self, program: Callable[[], None], main: MainThread) -> None:
        self._stand(main)

        def run() -> None:
            try:
                self._rest()
                program()
            except Abandoned:
                return
            main.running = main
            main.baton.release()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def _stand(self, main: MainThread) -> None:
        self.main, self.baton, self.abandoned = main, threading.Lock(), False
        self.baton.acquire()

    def _rest(self) -> None:
        self.baton.acquire()
        if self.abandoned:
            raise Abandoned

    def switch(self) -> None:
        """Hand the baton over, and return when it comes back."""
        here, self.main.running = self.main.running, self
        self.baton.release()
        here._rest()

    def frame(self) -> FrameType | None:
        return sys._current_frames().get(self.thread.ident)

    def abandon(self) -> None:
        if self.thread.is_alive():
            self.abandoned = True
            self.baton.release()
            self.thread.join(5.0)


class MainThread(ThreadTask):
    """The thread that waits for the simulation to end.

    Attributes
    ----------
    running : ThreadTask
        Who holds the baton.
    """

    __slots__ = ("running",)

    def __init__(self) -> None:
        self._stand(self)
        self.thread, self.running = threading.current_thread(), self


Task = greenlet | ThreadTask
