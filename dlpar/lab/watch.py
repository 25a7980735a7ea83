"""Threads that pass a run's records to a panel, live or as a recording, and the choice of a recording."""

from __future__ import annotations

import heapq
import math
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol

from dlpar.config.experiment import Experiment
from dlpar.config.paths import open_plain
from dlpar.config.schema import BadExperiment
from dlpar.jobs.run import Run, runs
from dlpar.jobs.tail import ALL_RANKS, Tail, lines_of, rank_of, record_of, source_of
from dlpar.lab.figure import require
from dlpar.lab.labels import with_world

READ_EVERY = 0.06
"""Seconds between two reads."""

SEND_EVERY = 0.1
"""Seconds between two drawings. A page has no use for more drawings."""

SIGN_OF_LIFE = 1.0
"""Seconds without news after which the page receives a heartbeat."""

CHUNK = 256 << 10
"""Bytes of one file that are read at a time, which bounds memory when a long run is opened."""


BEHIND = 2000
"""Number of records in a read above which the next read follows at once."""

GRACE = 3.0
"""Seconds after which a run that no process holds is lost. Until then, its guardian may still be starting."""


class Listener(Protocol):
    """Receiver of the records of a watch."""

    def take(self, source: str, record: dict[str, Any]) -> None:
        """Process a record. `source` is ``rank-3`` or ``job``."""

    def refresh(self, alive: bool) -> None:
        """Show the records taken so far. With `alive`, send a heartbeat even without records."""

    def ended(self, status: str, reason: str) -> None:
        """End the run after all records have been taken."""


class Reader(Thread):
    """Thread that reads a run for a listener. Subclasses read it in ``_follow``.

    The thread keeps only a weak reference to the listener, never prints, and never outlives the kernel.
    """

    def __init__(self, run: Run, listener: Listener) -> None:
        super().__init__(name=f"dlpar {type(self).__name__.lower()} {run.id}", daemon=True)
        self._run, self._listener, self._cancelled = run, weakref.ref(listener), Event()

    def cancel(self) -> None:
        """End the thread promptly."""
        self._cancelled.set()

    def run(self) -> None:
        """Pass the run's records to the listener. This is the thread's main function."""
        try:
            self._follow()
        except Exception as error:  # the panel must not suggest that the job still runs
            if (listener := self._listener()) and not self._cancelled.is_set():
                why = f"{type(error).__name__}: {error}"
                listener.ended("unwatched", f"the panel stopped following the run: {why}")


class Watch(Reader):
    """Thread that reads `path` until the run has ended or nothing refers to `listener`."""

    def __init__(self, path: Path, listener: Listener) -> None:
        super().__init__(Run(path), listener)
        self._tail = Tail(path, CHUNK)
        self._end: dict[str, Any] | None = None
        self._checked, self._seen_alive = 0.0, time.monotonic()

    def _follow(self) -> None:
        sent, pending = 0.0, False
        while not self._cancelled.is_set():
            listener = self._listener()
            if listener is None:
                return
            found = self._take(listener)
            if self._end or (not found and self._lost()):
                return self._finish(listener)
            pending = pending or found > 0
            silent = time.monotonic() - sent
            if silent >= (SEND_EVERY if pending else SIGN_OF_LIFE):
                listener.refresh(alive=silent >= SIGN_OF_LIFE)
                sent, pending = time.monotonic(), False
            del listener
            if found <= BEHIND:  # records that arrive before the next drawing are drawn with it
                due = sent + SEND_EVERY - time.monotonic()
                self._cancelled.wait(min(READ_EVERY, due) if due > 0 else READ_EVERY)

    def _lost(self) -> bool:
        """Return whether no process has held the run for some time."""
        now = time.monotonic()
        if now - self._checked > 0.5:
            self._checked = now
            self._seen_alive = now if self._run.live else self._seen_alive
        return now - self._seen_alive > GRACE

    def _take(self, listener: Listener) -> int:
        records = self._tail.read()
        for source, record in records:
            if source == "job" and record["k"] == "end":
                self._end = record
            listener.take(source, record)
        return len(records)

    def _finish(self, listener: Listener) -> None:
        while self._take(listener):  # read the records written between the last read and the end
            pass
        lost = "the job ended without a record of its end; it may have been killed"
        end = self._end or {"status": "lost", "reason": lost}
        listener.ended(end["status"], end.get("reason") or "")


AT_MOST = 1000.0
"""Largest factor by which a replay is faster or slower than the run."""


class Replay(Reader):
    """Thread that passes a run's records to a listener, each when it is due.

    Parameters
    ----------
    run : Run
        A run that has ended.
    listener : Listener
        Receiver of the records, as for a watch.
    speed : float, default 1
        Seconds of the run's clock per second of replay, from 0.001 to 1000.

    Raises
    ------
    ValueError
        If the run is still running, or for a speed that is not allowed.
    """

    def __init__(self, run: Run, listener: Listener, speed: float = 1.0) -> None:
        fine = 1 / AT_MOST <= speed <= AT_MOST
        require(fine, f"speed: got {speed:g}, allowed is {1 / AT_MOST:g} to {AT_MOST:g}")
        require(has_ended(run), f"run: got {run.id}, which is still running; allowed is one that has ended")
        super().__init__(run, listener)
        self._speed = speed

    def _follow(self) -> None:
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
        """Wait until `at`, and show the records passed so far. Return False if the replay was cancelled."""
        left = at - time.monotonic()
        if self._cancelled.wait(max(0.0, left)) or (listener := self._listener()) is None:
            return False
        if left > -SEND_EVERY:  # the page must not delay a replay that lags
            listener.refresh(alive=True)
        return True


def has_ended(run: Run) -> bool:
    """Return whether a run's records are complete. A job holds its folder for a moment after that."""
    return not run.live or run.status not in ("queued", "starting", "running")


# ---- the choice of a recording ------------------------------------------------------


LISTED = 20
"""Number of newest runs to choose from."""


def recordings() -> list[dict[str, Any]]:
    """Return the newest ended runs: id, description, and whether the run can be resumed."""
    found = ((run, f"{with_world(str(e), e)} ({run.id})") for run, e in _readable(LISTED) if has_ended(run))
    can_resume = lambda run: run.status != "done" and bool(run.snapshots)
    return [{"id": run.id, "says": says, "resumes": can_resume(run)} for run, says in found]


def newest_like(experiment: Experiment) -> Run | None:
    """Find the finished run most like an experiment. Its scheme and split must be the same.

    Return None if there is none.

    A run with equal settings comes first, then a run in the same world. The newest of these counts.
    """
    near: dict[int, Run] = {}
    for run, other in _readable(10 * LISTED):
        is_alike = (other.sync.scheme, other.split.kind) == (experiment.sync.scheme, experiment.split.kind)
        if is_alike and run.status == "done":
            near.setdefault((other.cluster.world == experiment.cluster.world) + (other == experiment), run)
    return near[max(near)] if near else None


def _readable(most: int) -> Iterator[tuple[Run, Experiment]]:
    """Yield the newest runs that this version of dlpar can read, with their experiments."""
    for run in runs()[:most]:
        with suppress(BadExperiment):
            yield run, run.experiment


LONGEST_REPLAY = 30.0
"""Maximum seconds of a replay. A longer run plays faster."""


SEEN = 10.0
"""Approximate minimum seconds of a recording on the first screen, so that its motion is visible."""


def speed_of(run: Run, least: float = 0.0) -> float:
    """Return a replay speed.

    The replay is not too long, and not much shorter than `least` seconds.
    """
    seconds = max(run.curve["seconds"], default=0.0)
    if seconds < least / 2:
        return max(1 / AT_MOST, float(f"{seconds / least:.2g}"))
    return min(AT_MOST, max(1.0, math.ceil(seconds / LONGEST_REPLAY)))


# ---- records in the order of time ----------------------------------------------------


def in_order(run: Run) -> Iterator[tuple[float, str, dict[str, Any]]]:
    """Yield all records of the ranks in the order of the run's clock: seconds, source, record."""
    files = [_of_file(path) for path in sorted(run.path.glob("rank-*.jsonl"))]
    return heapq.merge(*files, key=lambda found: found[0])


BLOCK = 1 << 16
"""Bytes within which a bisection reads line by line."""


def between(folder: Path, begin: float, end: float) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the ranks' records in a window of the run's clock. Each file is in time order."""
    for path in sorted(folder.glob("rank-*.jsonl")):
        source = source_of(path.name)
        with open_plain(path) as file:
            low, high = 0, os.fstat(file.fileno()).st_size
            while high - low > BLOCK:
                middle = (low + high) // 2
                file.seek(middle)
                file.readline()  # skip the rest of a line
                first = next((r for line in file if "t" in (r := record_of(line) or {})), None)
                low, high = (middle, high) if first and first["t"] < begin else (low, middle)
            file.seek(low)
            for record in filter(None, map(record_of, file)):
                if begin <= (now := record.get("t", -1.0)) <= end:
                    yield (record["rank"] if source == ALL_RANKS else rank_of(source)), record
                elif now > end:
                    break


def _of_file(path: Path) -> Iterator[tuple[float, str, dict[str, Any]]]:
    now, name = 0.0, source_of(path.name)
    for record in lines_of(path):
        now = max(now, record.get("t") or record.get("began") or now)  # a rank's first record has no time
        yield now, f"rank-{record['rank']}" if name == ALL_RANKS else name, record
