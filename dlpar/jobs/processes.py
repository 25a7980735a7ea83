"""Processes of one account: they die with a parent, are found and killed.  Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_parent(parent: int | None = None) -> None:
    """Ask for SIGKILL when the parent ends; `parent` is its pid as seen before, to close the race at start."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none escapes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if it has ended (a zombie has)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except OSError:
        return None
    return None if state in (b"Z", b"X") else int(parent)


def descendants(root: int, spared: set[int] = frozenset()) -> list[int]:
    """Return the live processes below `root`, except those in `spared` and all below them."""
    parents = {int(name): parent_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found, border = [], {root}
    while border:
        border = {pid for pid, parent in parents.items() if parent in border and pid not in spared}
        found += border
    return found


def resident(pid: int) -> int:
    """Return the bytes of a process, with its share of shared pages (PSS); 0 if it ended or belongs to another user."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(1024 * int(line.split()[1]) for line in file if line.startswith("Pss:"))
    except OSError:
        return 0


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    """Signal every process that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """Wait until the processes have ended; returns those that have not within `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if parent_of(pid) is not None]) and time.monotonic() < deadline:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # an ended child that nobody else waits for
                pass
        time.sleep(0.01)
    return left
