"""Private folders of a job, removal of a killed job's folders, and locks.

This module uses only the standard library.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

from dlpar.config.paths import open_plain, private_folder, runtime_folder

ROOM_IN_MEMORY = 256 << 20
"""Free bytes of /dev/shm below which jobs keep their shared segments on disk."""


def lock(path: Path, seconds: float = 0.0) -> int | None:
    """Open and lock a file, and create it if needed.

    Return None if another process still holds the lock after `seconds`.

    The kernel frees the lock when the last process that has this descriptor closes it, or dies.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600)  # it raises for a pipe
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(file)
                return None
            time.sleep(0.05)


class Scratch:
    """Private folders of a job for session files, sockets and shared memory, removed with the job.

    Attributes
    ----------
    lock : Path
        File that is locked while the job lives.  If it is unlocked, a killed guardian left the folder.
    """

    def __init__(self, name: str) -> None:
        self.folder = runtime_folder() / f"job-{name}"
        self.lock = self.folder / "lock"
        self.memory = _memory_root() / f"{_memory_prefix()}{name}"

    @classmethod
    def fresh(cls) -> Scratch:
        """Make new folders under a new name."""
        scratch = cls(secrets.token_hex(4))
        private_folder(scratch.folder)
        private_folder(scratch.memory)
        return scratch

    def remove(self) -> None:
        """Delete both folders and their contents."""
        elsewhere = [root / self.memory.name for root in (Path("/dev/shm"), runtime_folder() / "memory")]
        for folder in (*elsewhere, self.folder):  # memory may be in either, depending on free space
            shutil.rmtree(folder, ignore_errors=True)


def is_locked(folder: Path) -> bool:
    """Return whether a job holds the folder's lock.

    The kernel frees the lock when the job ends for any reason.
    """
    try:
        with open_plain(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def sweep(older_than: float = 60.0) -> None:
    """Remove unlocked folders of jobs whose guardian was killed, if at least `older_than` seconds old.

    Results of functions on ranks stay 1,440 times as long (a day), because a later cell may still read them.
    """
    for folder in (*runtime_folder().glob("job-*"), *runtime_folder().glob("spmd-*")):
        with suppress(OSError):  # removed meanwhile
            kind, _, name = folder.name.partition("-")
            old = time.time() - folder.stat().st_mtime > older_than * (1 if kind == "job" else 1440)
            if old and (held := lock(folder / "lock")) is not None:
                Scratch(name).remove() if kind == "job" else shutil.rmtree(folder, ignore_errors=True)
                os.close(held)


def _memory_prefix() -> str:
    """Return a prefix that separates users and DLPAR_RUNTIMEs in a shared folder."""
    return f"dlpar-{os.getuid()}-{hashlib.sha1(os.fsencode(runtime_folder())).hexdigest()[:6]}-"


def _memory_root() -> Path:
    """Return /dev/shm, or the runtime folder if /dev/shm is missing or tiny.

    Docker's default is 64 MB.
    """
    if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > ROOM_IN_MEMORY:
        return Path("/dev/shm")
    return private_folder(runtime_folder() / "memory")
