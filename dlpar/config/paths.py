"""Folders that dlpar keeps things in, each private to its owner (0700).

Runs outlive the machine's next boot; sockets, locks and job folders must not,
and may never lie on a network file system (``flock`` and Unix sockets do not
work there, and a socket's path must stay under 108 bytes).
"""

from __future__ import annotations

import os
import stat
import tempfile
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
