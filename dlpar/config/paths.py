"""Folders that dlpar keeps things in, each private to its owner (0700).

Runs outlive the machine's next boot; sockets, locks and job folders must not. These may never lie on a
network file system, where ``flock`` and Unix sockets do not work. A socket's path must stay under 108 bytes.
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
"""Bytes of a file that a user names, such as an experiment or a platform, at most."""


def read_plain(path: str | os.PathLike, most: int = LARGEST) -> bytes:
    """Read a file that a user named; `OSError`, with the reason in ``strerror``, as :func:`open_plain` raises it."""
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
        return file.read(most)


def open_plain(path: str | os.PathLike) -> BinaryIO:
    """Open a plain file to read it, without waiting as for a pipe.

    Raises
    ------
    OSError
        If it cannot be read or is no plain file; ``strerror`` says why.
    """
    if "\0" in os.fspath(path):
        raise OSError(errno.EINVAL, "a path has no NUL")
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no plain file")
    return file


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


def private_folder(path: Path) -> Path:
    """Make `path` with mode 0700, or check that it is a real folder and ours, and close it to others."""
    with suppress(FileExistsError):  # said below, with advice
        path.mkdir(mode=0o700, parents=True)
    found = path.lstat()
    # To close /tmp or /etc would shut everybody out.
    is_shared = found.st_mode & 0o002 or (found.st_mode & 0o077 and path.parent == path.parent.parent)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or is_shared:
        what = "is no folder of its own" if found.st_uid == os.getuid() else "belongs to somebody else"
        mend = "point DLPAR_HOME or DLPAR_RUNTIME at a real folder of yours, or remove it if it is a mistake"
        raise PermissionError(f"{path}: {what}; {mend}")
    path.chmod(0o700)
    return path
