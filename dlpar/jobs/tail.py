"""Read a run folder while it grows: only the new bytes, only whole lines."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

try:
    from orjson import loads
except ImportError:  # the guardian of a job has the standard library only
    from json import loads

Record = dict[str, Any]

ALL_RANKS = "rank-all"
"""Name of the file that all ranks of a simulation write to; each line names its rank."""

CALL = "call.pkl"
"""Name of the file with a packed function, which the ranks call instead of training."""

REFUSAL = "refused.txt"
"""Name of the file with the sentence why ranks cannot run with the MPI at hand."""


def result_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's result, where ranks call a function."""
    return folder / f"result-{rank}.pkl"


@cache
def rank_of(source: str) -> int:
    """Return the rank whose records come from a source such as ``rank-3``."""
    return int(source[5:])


class Tail:
    """Incremental reader of every ``rank-*.jsonl`` and ``job.jsonl`` of a run folder.

    Parameters
    ----------
    path : path
        The run folder.
    chunk : int
        Most bytes read of one file in one call; bounds the memory of a reader
        that opens a long run.
    """

    def __init__(self, path: str | os.PathLike, chunk: int = 4 << 20) -> None:
        self.path, self.chunk = Path(path), chunk
        self._read_to: dict[str, int] = {}

    def read(self) -> list[tuple[str, Record]]:
        """Return records appended since the last call as ``(source, record)``, such as ``("rank-3", {…})``.

        The source is the rank, or ``job`` for a record of the guardian.
        """
        found = []
        for name in self._files():
            source = name.removesuffix(".jsonl")
            for record in filter(None, map(record_of, self._new_lines(name))):
                found.append((f"rank-{record['rank']}" if source == ALL_RANKS else source, record))
        return found

    def read_all(self) -> list[tuple[str, Record]]:
        """Return all records from where the last call stopped to the present end."""
        found = []
        while new := self.read():
            found += new
        return found

    def _files(self) -> list[str]:
        try:
            names = [name for name in os.listdir(self.path) if name.endswith(".jsonl")]
        except FileNotFoundError:
            return []
        return sorted(names, key=lambda name: (name == "job.jsonl", len(name), name))

    def _new_lines(self, name: str) -> list[bytes]:
        start = self._read_to.get(name, 0)
        try:
            with open(self.path / name, "rb") as file:
                file.seek(start)
                data = file.read(self.chunk)
        except FileNotFoundError:
            return []
        whole = data.rfind(b"\n") + 1
        self._read_to[name] = start + whole
        return data[:whole].splitlines()


def lines_of(path: Path) -> Iterator[Record]:
    """Yield the records of one file from its beginning, one at a time; none where there is no file."""
    if path.exists():
        with open(path, "rb") as file:
            yield from filter(None, map(record_of, file))


def record_of(line: bytes) -> Record | None:
    """Return the record of a line; None for a line torn by a full disk, which a reader leaves out."""
    try:
        record = loads(line)
    except ValueError:
        return None
    if record.get("loss", 0) is None:  # JSON has no NaN; a diverged loss is one
        record["loss"] = math.nan
    return record
