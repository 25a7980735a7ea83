"""Find and kill an account's processes, and tie a process's life to its parent.

This module uses only the standard library.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal when the parent ends. Send it now if process `parent` is no longer the parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def die_with_writer(pipe: int) -> None:
    """Request SIGKILL when a pipe's last writing end closes. `pipe` is the reading end. Linux only."""
    fcntl.fcntl(pipe, 10, signal.SIGKILL)  # F_SETSIG
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # it has already closed
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that none escapes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def parent_of(pid: int) -> int | None:
    """Return the parent of a process, or None if it has ended (a zombie has)."""
    state, parent, _ = state_of(pid)
    return None if state in "ZX" else parent


def state_of(pid: int) -> tuple[str, int, int]:
    """Return a process's state (a letter), parent and group, or X, 0, 0 if there is no such process."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        state, parent, group = file.read().rpartition(b")")[2].split()[:3]
        return state.decode(), int(parent), int(group)
    return "X", 0, 0


def descendants(root: int, spared: set[int] = frozenset()) -> list[int]:
    """Return the live descendants of `root`, except those in `spared` and their descendants."""
    parents = {int(name): parent_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found, border = [], {root}
    while border:
        border = {pid for pid, parent in parents.items() if parent in border and pid not in spared}
        found += border
    return found


def has_children(but: int = 0) -> bool:
    """Return whether this single-threaded process has more than this many children, including ended ones."""
    with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
        return len(file.read().split()) > but
    return True  # a kernel without that file


def end_children() -> None:
    """End every descendant of this process, in any session."""
    adopt_orphans()
    while has_children() and (left := descendants(os.getpid())):
        kill(left)
        wait_gone(left, 1.0)


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to every process that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """Wait until the processes have ended. Return those still alive after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if parent_of(pid) is not None]) and time.monotonic() < deadline:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # an ended child for which no other process waits
                pass
        time.sleep(0.01)
    return left
