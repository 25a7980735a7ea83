"""A function typed into a notebook cell, packed so that a rank can run it and quote its lines."""

from __future__ import annotations

import base64
import linecache
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

CALL = "call.pkl"

load = pickle.loads
"""How results are read; who does not trust the ranks puts something narrower in its place."""


def pack(function: Callable, arguments: tuple = ()) -> bytes:
    """The function and its arguments, the source lines of the notebook's cells, and where modules are found, so
    that a function from a file beside the notebook works too."""
    cells = {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and (name.startswith("<") or "ipykernel" in name)
    }
    # Lines first, so that even a function that fails to unpickle is quoted.
    return cloudpickle.dumps([sys.path, cells, cloudpickle.dumps((function, arguments))])


def unpack(body: bytes) -> tuple[Callable, tuple]:
    """The function and its arguments; tracebacks through it will show the cell's own lines."""
    path, cells, call = cloudpickle.loads(body)
    sys.path += [folder for folder in path if folder not in sys.path]
    for name, (size, _, lines, full) in cells.items():
        linecache.cache[name] = (size, None, lines, full)  # no time stamp: never checked against a file
    return cloudpickle.loads(call)


def as_part(scheme: Callable) -> dict[str, str]:
    """A student's scheme as ``sync`` of an experiment, readable by :func:`from_part` on any rank."""
    name = getattr(scheme, "__name__", type(scheme).__name__)
    return {"scheme": "own", "name": name, "code": base64.b64encode(pack(scheme)).decode()}


def from_part(code: str) -> Callable:
    """What :func:`as_part` packed.  It runs what it reads: only a rank calls it, never who looks at a run."""
    return unpack(base64.b64decode(code))[0]


def result_path(folder: Path, rank: int) -> Path:
    """Where a rank leaves what the function returned."""
    return folder / f"result-{rank}.pkl"


def load_result(folder: Path, rank: int) -> Any:
    """What a rank returned."""
    return load(result_path(folder, rank).read_bytes())


def save_result(folder: Path, rank: int, result: Any) -> None:
    """Write a rank's result; raises what pickling raises, naming the type."""
    result_path(folder, rank).write_bytes(cloudpickle.dumps(result))
