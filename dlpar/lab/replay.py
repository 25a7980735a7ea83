"""A recorded run, played back to whoever could have watched it: at its own pace, or another."""

from __future__ import annotations

import heapq
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

from dlpar.lab.watch import SEND_EVERY, Listener
from dlpar.run import Run
from dlpar.tail import ALL_RANKS, lines_of

AT_MOST = 1000.0
"""Times as fast, or as slow, as it ran."""


class Replay(Thread):
    """Passes a run's records on, each when it is due.

    Parameters
    ----------
    run : Run
        One that has ended.
    listener : Listener
        What a watch would have fed.
    speed : float, default 1
        Seconds of the run's clock in a second; 0.001 to 1000.

    Raises
    ------
    ValueError
        If the run still goes on, or for a speed that is not allowed.
    """

    def __init__(self, run: Run, listener: Listener, speed: float = 1.0) -> None:
        if not 1 / AT_MOST <= speed <= AT_MOST:
            raise ValueError(f"speed: got {speed:g}, allowed is {1 / AT_MOST:g} to {AT_MOST:g}")
        if not has_ended(run):
            raise ValueError(f"run: got {run.id}, which still goes on; allowed is one that has ended")
        super().__init__(name=f"dlpar replay {run.id}", daemon=True)
        self._run, self._speed, self._listener = run, speed, weakref.ref(listener)
        self._cancelled = Event()

    def cancel(self) -> None:
        """End the thread within a moment."""
        self._cancelled.set()

    def run(self) -> None:
        """Body of the thread."""
        began, frame = time.monotonic(), 1
        for due, source, record in in_order(self._run):
            while due > frame * SEND_EVERY * self._speed:
                if not self._show(began + frame * SEND_EVERY):
                    return
                frame += 1
            if listener := self._listener():
                listener.take(source, record)
                del listener
        if self._show(began + frame * SEND_EVERY) and (listener := self._listener()):
            listener.ended(self._run.status, self._run.reason)

    def _show(self, at: float) -> bool:
        """Show what was passed on when its time has come; False if nobody wants to see more."""
        left = at - time.monotonic()
        if self._cancelled.wait(max(0.0, left)) or (listener := self._listener()) is None:
            return False
        if left > -SEND_EVERY:  # the page must not hold up a replay that is behind
            listener.refresh(alive=True)
        return True


def has_ended(run: Run) -> bool:
    """Whether its records are whole; from when its end is written, a job still holds its folder for a moment."""
    return not run.live or run.status not in ("queued", "starting", "running")


def in_order(run: Run) -> Iterator[tuple[float, str, dict[str, Any]]]:
    """All that ranks recorded, by the run's clock: seconds, source, record.  Nothing is kept."""
    files = [_of_file(path) for path in sorted(run.path.glob("rank-*.jsonl"))]
    return heapq.merge(*files, key=lambda found: found[0])


def _of_file(path: Path) -> Iterator[tuple[float, str, dict[str, Any]]]:
    now = 0.0  # a rank says first who it is, at no time
    for record in lines_of(path):
        now = max(now, record.get("t") or now)
        source = f"rank-{record['rank']}" if path.stem == ALL_RANKS else path.stem
        yield now, source, record
