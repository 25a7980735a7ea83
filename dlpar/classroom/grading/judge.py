"""Judges one answer, shut in a box: ``python -m dlpar.classroom.grading.judge FD``, the trial as JSON on standard input.

Two lines of JSON go to the file descriptor FD: where the judge finds itself, before any of the student's code
runs, and its verdict.  Both carry the trial's secret, which no other process is told.  The student's code runs
in the processes of simulated jobs, which this process starts and does not trust.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import sys
from typing import Any

PR_SET_DUMPABLE = 4

GIB = 2**30
FILE_SIZE = GIB // 4
"""Bytes of a file."""

LONGEST = 4_000
"""Characters of what is said: it may quote the student."""


def main() -> None:
    """Tell where it is, then judge."""
    _close_to_others()
    channel, trial = int(sys.argv[1]), json.load(sys.stdin)
    os.set_inheritable(channel, False)
    _limit(trial["memory"], trial["processes"])

    def tell(**facts: Any) -> None:
        os.write(channel, json.dumps({"secret": trial["secret"], **facts}).encode() + b"\n")

    from dlpar.classroom.grading import plain
    from dlpar.jobs import payload

    payload.load = plain.load
    space = _prepared(trial)
    tell(account=os.getuid(), networks=[name for _, name in socket.if_nameindex()], writable=_writable())
    solved, said = _judged(space, trial["check"])
    tell(solved=solved, said=said[:LONGEST])


def _close_to_others() -> None:
    """Processes of the same account, as the student's are, can neither look into this one nor write to its files."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _limit(memory: float, processes: int | None) -> None:
    """Of each process from here on: bytes of data and of a file; of the account: processes and threads."""
    limits = [
        (resource.RLIMIT_DATA, int(memory * GIB)),
        (resource.RLIMIT_FSIZE, FILE_SIZE),
        (resource.RLIMIT_CORE, 0),
    ]
    if processes is not None:
        limits.append((resource.RLIMIT_NPROC, processes))
    for kind, most in limits:
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _writable() -> list[str]:
    """Of the folders where everybody may usually write, those where this account may."""
    return [folder for folder in ("/tmp", "/var/tmp", "/dev/shm") if os.access(folder, os.W_OK)]


def _prepared(trial: dict[str, Any]) -> dict[str, Any]:
    """Names a check may use: what the lab imports and gives, and the student's functions."""
    from dlpar.classroom.grading.answer import Answer, run

    space: dict[str, Any] = {"__name__": "__main__"}
    run(trial["given"], "<given>", space)
    for name in trial["names"]:
        space[name] = Answer(trial["given"], trial["answer"], name)
    return space


def _judged(space: dict[str, Any], check: str) -> tuple[bool, str]:
    """Run a check; solved only if it ran to its end and its verdict says so."""
    from dlpar.classroom.grading.answer import run
    from dlpar.course.judge import Verdict

    space.pop("solved", None)
    try:
        run(check, "<check>", space)
    except BaseException as error:
        found = space.get("solved")
        text = repr(found) if isinstance(found, Verdict) else f"not yet: {type(error).__name__}: {error}"
        return False, text
    found = space.get("solved")
    if not isinstance(found, Verdict):
        return False, "not yet: the check came to no verdict"
    return found.status == "solved", repr(found)


if __name__ == "__main__":
    main()
