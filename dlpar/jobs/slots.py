"""A place in the queue of a machine's job slots: a limit on ranks that all its users share.

A keeper (:mod:`dlpar.jobs.slot_keeper`) has one file for each slot, locked while the slot
is taken.  It hands the locked files themselves to a job's guardian, which passes them on to
mpiexec: whatever kills the job, the kernel frees its slots with its last process.  Where there
is no keeper there is no limit.  Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from dlpar.jobs.control_groups import cores

USUAL = Path("/run/dlpar/slots")
"""Socket of the machine's keeper, unless ``$DLPAR_SLOTS`` names another; empty: no limit."""

MOST = 200
"""Slots of a machine at most: one message passes that many files."""


class NoSlots(RuntimeError):
    """The keeper has refused the job, or has gone; the message says what is allowed."""


def keeper_socket() -> Path | None:
    """Where this machine's keeper listens; None where it has none."""
    named = os.environ.get("DLPAR_SLOTS")
    if named is not None:
        return Path(named) if named else None
    return USUAL if USUAL.exists() else None


def usual_slots() -> int:
    """How many a machine has unless somebody says: two for each core, :data:`MOST` at most."""
    return min(MOST, 2 * cores())


def ask(path: Path, question: dict[str, Any]) -> dict[str, Any]:
    """A keeper's answer to one question of :class:`Talk`; raises :class:`NoSlots`."""
    with Talk(path, question) as talk:
        return talk.hear()[0]


def is_kept(path: Path) -> bool:
    """Whether somebody gives out slots there."""
    try:
        return bool(ask(path, {}))
    except NoSlots:
        return False


def in_words(ahead: int, paused: bool) -> str:
    """A place in the queue, as panel and terminal say it."""
    if paused:
        return "queued: the teacher has paused all jobs"
    return f"queued, {ahead} ahead" if ahead else "queued, next to start"


class Talk:
    """A question to the keeper, and what it says.

    Parameters
    ----------
    path : Path
        The keeper's socket.
    question : dict
        ``{"slots": 4, "as": "ada"}``: to wait for so many, and who of those that share an account waits;
        ``{"pause": True}``; ``{}``: how many are taken.

    Raises
    ------
    NoSlots
        If nobody listens there.
    """

    def __init__(self, path: Path, question: dict[str, Any]) -> None:
        self.files: list[int] = []
        """Locked files of the slots, once it is the job's turn."""
        self._heard = b""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(5.0)
        try:
            self.socket.connect(str(path))
            self.socket.sendall(json.dumps(question).encode() + b"\n")
        except OSError as error:
            self.socket.close()
            why = error.strerror
            raise NoSlots(f"job slots: nobody gives them out at {path} ({why}); `dlpar slots` does") from None

    def hear(self) -> list[dict[str, Any]]:
        """What the keeper has said since; waits 5 s at most for something.

        Who waits hears ``{"ahead": 2, "paused": False}``, and at last ``{"go": True}``, which brings :attr:`files`.

        Raises
        ------
        NoSlots
            If it refuses, says nothing, or has gone.
        """
        try:
            said, files, _, _ = socket.recv_fds(self.socket, 4096, MOST)
        except OSError:
            said, files = b"", []
        self.files += files
        if not said:
            raise NoSlots("job slots: who gives them out has gone; run it again")
        *lines, self._heard = (self._heard + said).split(b"\n")
        told = [json.loads(line) for line in lines]
        for word in told:
            if "refused" in word:
                raise NoSlots(word["refused"])
        return told

    def close(self) -> None:
        """Leave the queue, or give the slots back."""
        for file in self.files:
            os.close(file)
        self.files = []
        self.socket.close()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
