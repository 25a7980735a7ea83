"""Cache of arrays that take seconds to make and milliseconds to read."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dlpar.config.paths import write_whole

Arrays = dict[str, np.ndarray]

WAIT = 60.0
"""Seconds that a process waits for another to make the same arrays, before it makes its own."""


def cached(key: str, make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of `make`. They are cached in the user's folder under `key`.

    If ranks of a job ask at the same time, one makes the arrays and the others wait. A damaged file is
    replaced.  If the folder cannot be written, the arrays are not cached.

    Parameters
    ----------
    key : str
        File name without its suffix. It must change whenever the arrays change.
    make : callable
        Returns named arrays without Python objects.

    Returns
    -------
    dict of str to numpy.ndarray
        The arrays that `make` returned.
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
                np.savez(body := io.BytesIO(), **kept)
                write_whole(path, body.getvalue())
    return kept


def _read(path: Path) -> Arrays | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception:  # a damaged zip raises many kinds of errors; the arrays are then made again
        return None
