"""Folders of dlpar's files, each private to its owner (0700).

Runs survive a reboot of the machine, but sockets, locks and job folders must not. Sockets and locks must not
be on a network file system, where ``flock`` and Unix sockets do not work. A socket's path must have less than
108 bytes.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

LARGEST = 1 << 22
"""Maximum bytes of a file that a user names, such as an experiment or a platform."""


def read_plain(path: str | os.PathLike, most: int = LARGEST) -> bytes:
    """Read a file that a user named. Raises `OSError` as :func:`open_plain` does."""
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
        return file.read(most)


def open_plain(path: str | os.PathLike, more: int = 0) -> BinaryIO:
    """Open a plain file for reading, with more flags of :func:`os.open`. Refuse a pipe without blocking.

    Raises
    ------
    OSError
        If it cannot be read or is not a plain file. ``strerror`` gives the reason.
    """
    if "\0" in os.fspath(path):
        raise OSError(errno.EINVAL, "a path contains no NUL character")
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | more))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file")
    return file


def write_whole(path: Path, body: bytes, mode: int = 0o600, synced: bool = False) -> None:
    """Write a file completely or not at all, and never through a link. A reader sees the old file or the new one.

    If `synced`, the file also survives a crash of the machine.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(body)
            file.flush()
            if synced:
                os.fsync(descriptor)
        os.replace(new, path)
    finally:
        Path(new).unlink(missing_ok=True)  # after a failure


def runs_folder() -> Path:
    """Return the folder of all runs: ``$DLPAR_HOME/runs``, or ``runs`` in the user's data folder."""
    import platformdirs  # imported here, because processes that guard a job use only the standard library

    home = os.environ.get("DLPAR_HOME") or platformdirs.user_data_dir("dlpar")
    return Path(os.path.expanduser(home)).absolute() / "runs"


def runtime_folder() -> Path:
    """Return the folder for sockets and job folders, on local disk or in memory. Create it if needed.

    Raises
    ------
    PermissionError
        If another user owns the folder or may write to it.
    """
    base = os.environ.get("DLPAR_RUNTIME") or os.path.join(tempfile.gettempdir(), f"dlpar-{os.getuid()}")
    return private_folder(Path(os.path.expanduser(base)).absolute())


def private_folder(path: Path) -> Path:
    """Create `path` with mode 0700.

    If it exists, check that it is our own real folder, and deny others access.
    """
    with suppress(FileExistsError):  # reported below, with advice
        path.mkdir(mode=0o700, parents=True)
    found = path.lstat()
    # Closing /tmp or /etc would lock out all users.
    is_shared = found.st_mode & 0o002 or (found.st_mode & 0o077 and path.parent == path.parent.parent)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or is_shared:
        what = "is not a folder of yours alone" if found.st_uid == os.getuid() else "belongs to somebody else"
        mend = "name another (DLPAR_HOME, DLPAR_RUNTIME name the usual ones), or remove it if it is a mistake"
        raise PermissionError(f"{path}: {what}; {mend}")
    path.chmod(0o700)
    return path
