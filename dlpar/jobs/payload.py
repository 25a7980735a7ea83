"""A function typed into a notebook cell, packed so that a rank can run it and quote its lines."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cloudpickle

CALL = "call.pkl"

load = pickle.loads
"""How results are read; who does not trust the ranks puts something narrower in its place."""


def result_path(folder: Path, rank: int) -> Path:
    """Where a rank leaves what the function returned."""
    return folder / f"result-{rank}.pkl"


def load_result(folder: Path, rank: int) -> Any:
    """What a rank returned."""
    return load(result_path(folder, rank).read_bytes())


def save_result(folder: Path, rank: int, result: Any) -> None:
    """Write a rank's result; raises what pickling raises, naming the type."""
    result_path(folder, rank).write_bytes(cloudpickle.dumps(result))
