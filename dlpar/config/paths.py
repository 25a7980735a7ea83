"""Where dlpar keeps things, each folder private to its owner (0700).

Runs outlive the machine's next boot; sockets, locks and job folders must not,
and may never lie on a network file system (``flock`` and Unix sockets do not
work there, and a socket's path must stay under 108 bytes).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import time
from pathlib import Path


def runs_folder() -> Path:
    """Folder of all run folders: ``$DLPAR_HOME/runs``, or the platform's user data folder."""
    import platformdirs  # here, because processes that guard a job have the standard library only

    home = os.environ.get("DLPAR_HOME") or platformdirs.user_data_dir("dlpar")
    return Path(home).expanduser().absolute() / "runs"


def runtime_folder() -> Path:
    """Folder for sockets and job folders, on local disk or memory: made if missing, checked to be ours.

    Raises
    ------
    PermissionError
        If somebody else owns the folder or may write to it.
    """
    base = os.environ.get("DLPAR_RUNTIME") or os.path.join(tempfile.gettempdir(), f"dlpar-{os.getuid()}")
    return private_folder(Path(base).expanduser().absolute())


class Scratch:
    """A job's private folders for session files, sockets and shared memory; they vanish with the job.

    `lock` is held while the job lives, so that what a killed guardian left
    can be told from what is in use.
    """

    def __init__(self, name: str) -> None:
        self.folder = runtime_folder() / f"job-{name}"
        self.memory = _memory_root() / f"{_memory_prefix()}{name}"

    @classmethod
    def fresh(cls) -> Scratch:
        """New folders under a new name."""
        scratch = cls(secrets.token_hex(4))
        private_folder(scratch.folder)
        private_folder(scratch.memory)
        return scratch

    @property
    def lock(self) -> Path:
        """File that is locked while the job lives."""
        return self.folder / "lock"

    def remove(self) -> None:
        """Delete both folders with all they hold."""
        elsewhere = [root / self.memory.name for root in (Path("/dev/shm"), runtime_folder() / "memory")]
        for folder in (*elsewhere, self.folder):  # where memory goes depends on the room there was
            shutil.rmtree(folder, ignore_errors=True)


def sweep(older_than: float = 60.0) -> None:
    """Remove what jobs left whose guardian was killed: unlocked, and made `older_than` seconds ago or more."""
    for folder in (*runtime_folder().glob("job-*"), *runtime_folder().glob("spmd-*")):
        try:
            age = time.time() - folder.stat().st_mtime
            with open(folder / "lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if age > older_than:
                    kind, _, name = folder.name.partition("-")
                    Scratch(name).remove() if kind == "job" else shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use, or gone meanwhile
            continue


def _memory_prefix() -> str:
    """Tells this user's segments, and those of another DLPAR_RUNTIME, apart in a folder all users share."""
    return f"dlpar-{os.getuid()}-{hashlib.sha1(os.fsencode(runtime_folder())).hexdigest()[:6]}-"


def _memory_root() -> Path:
    """/dev/shm, or the runtime folder where that is missing or tiny, as in Docker's default 64 MB."""
    try:
        room = os.statvfs("/dev/shm")
        if room.f_bavail * room.f_frsize > 256 << 20 and os.access("/dev/shm", os.W_OK):
            return Path("/dev/shm")
    except OSError:
        pass
    return private_folder(runtime_folder() / "memory")


def private_folder(path: Path) -> Path:
    """Make `path` with mode 0700, or check that it is a real folder, ours, and closed to others."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        what = "is no folder of its own" if found.st_uid == os.getuid() else "belongs to somebody else"
        raise PermissionError(f"{path}: {what}; point DLPAR_HOME or DLPAR_RUNTIME at a real folder of yours")
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path
