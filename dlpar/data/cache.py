"""Arrays that take seconds to make and milliseconds to read back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]

WAIT = 60.0
"""Seconds a process waits while another makes the same arrays; then it makes its own."""


def cached(key: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays of `make`, kept in the user's cache folder under `key`.

    Ranks of one job ask at the same time: one makes them, the others wait for it.
    A damaged file is made anew, and where the folder cannot be written the arrays
    are made without keeping them.

    Parameters
    ----------
    key : str
        File name without its ending; must change whenever the arrays would.
    make : callable
        Returns named arrays, none of Python objects.

    Returns
    -------
    dict of str to numpy.ndarray
        What `make` returned.
    """
    import platformdirs

    path = Path(platformdirs.user_cache_dir("dlpar")) / f"{key}.npz"
    kept = _read(path)
    if kept is not None:
        return kept

    from filelock import FileLock, Timeout  # imported here, because most ranks find the arrays in the cache

    with contextlib.ExitStack() as stack:
        # NotImplementedError: a file system without locks.
        with contextlib.suppress(OSError, Timeout, NotImplementedError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(path.with_suffix(".lock"), timeout=WAIT))
            kept = _read(path)
        if kept is None:
            kept = make()
            with contextlib.suppress(OSError):
                _write(path, kept)
    return kept


def _read(path: Path) -> Arrays | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception:  # a damaged zip raises many kinds of errors; after each the arrays are made again
        return None


def _write(path: Path, arrays: Arrays) -> None:
    """Write all or nothing: a reader sees the complete file or none."""
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        np.savez(file, **arrays)
    part.replace(path)
