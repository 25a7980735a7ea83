"""A function typed into a notebook cell, packed so that a rank can run it and quote its lines."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any, Callable

import cloudpickle

CALL = "call.pkl"


def pack(folder: Path, function: Callable, arguments: tuple) -> None:
    """Write ``call.pkl``: the function by value, its arguments, and the source lines of the notebook's cells."""
    cells = {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and (name.startswith("<") or "ipykernel" in name)
    }
    # Lines first, so that even a function that fails to unpickle is quoted.
    parts = [cloudpickle.dumps(cells), cloudpickle.dumps((function, arguments))]
    (folder / CALL).write_bytes(cloudpickle.dumps(parts))


def unpack(body: bytes) -> tuple[Callable, tuple]:
    """The function and its arguments; tracebacks through it will show the cell's own lines."""
    cells, call = cloudpickle.loads(body)
    for name, (size, _, lines, full) in cloudpickle.loads(cells).items():
        linecache.cache[name] = (size, None, lines, full)  # no time stamp: never checked against a file
    return cloudpickle.loads(call)


def result_path(folder: Path, rank: int) -> Path:
    """Where a rank leaves what the function returned."""
    return folder / f"result-{rank}.pkl"


def save_result(folder: Path, rank: int, result: Any) -> None:
    """Write a rank's result; raises what pickling raises, naming the type."""
    result_path(folder, rank).write_bytes(cloudpickle.dumps(result))
