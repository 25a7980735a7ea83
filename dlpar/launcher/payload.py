"""A function typed into a notebook cell, packed so that a rank can run it and quote its lines."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any, Callable

import cloudpickle

CALL = "call.pkl"


def pack(folder: Path, function: Callable, arguments: tuple) -> None:
    """Write ``call.pkl``: the function and its arguments, the source lines of the notebook's cells, and where
    modules are found, so that a function from a file beside the notebook works too."""
    cells = {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and (name.startswith("<") or "ipykernel" in name)
    }
    # Lines first, so that even a function that fails to unpickle is quoted.
    parts = [sys.path, cells, cloudpickle.dumps((function, arguments))]
    (folder / CALL).write_bytes(cloudpickle.dumps(parts))


def unpack(body: bytes) -> tuple[Callable, tuple]:
    """The function and its arguments; tracebacks through it will show the cell's own lines."""
    path, cells, call = cloudpickle.loads(body)
    sys.path += [folder for folder in path if folder not in sys.path]
    for name, (size, _, lines, full) in cells.items():
        linecache.cache[name] = (size, None, lines, full)  # no time stamp: never checked against a file
    return cloudpickle.loads(call)


def result_path(folder: Path, rank: int) -> Path:
    """Where a rank leaves what the function returned."""
    return folder / f"result-{rank}.pkl"


def save_result(folder: Path, rank: int, result: Any) -> None:
    """Write a rank's result; raises what pickling raises, naming the type."""
    result_path(folder, rank).write_bytes(cloudpickle.dumps(result))
