"""Read only the new bytes and whole lines of a growing run folder."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

from dlpar.config.paths import open_plain

try:
    from orjson import loads
except ImportError:  # the guardian of a job uses only the standard library
    from json import loads

Record = dict[str, Any]

ALL_RANKS = "rank-all"
"""Name of the file that all ranks of a simulation write to. Each line names its rank."""

CALL = "call.pkl"
"""Name of the file with a packed function, which the ranks call instead of training."""

REFUSAL = "refused.txt"
"""Name of the file with a sentence that ends the job: why ranks cannot run, or what a rank has raised."""


ORDERS = "orders.jsonl"
"""Name of the file with orders to running ranks."""

RECORDS = re.compile(r"(?:rank-(?:\d{1,5}|all)|job)\.jsonl")
"""Names of the files with records of the current attempt."""

EARLIER = re.compile(r"(rank-(?:\d{1,5}|all)|job)\.(\d{1,4})\.jsonl")
"""Names of the files of an earlier attempt, with its number."""

NEEDED = {
    "step": {"step"}, "rank": {"rank"}, "eval": {"accuracy"}, "event": {"name"}, "queued": {"ahead", "paused"},
    "error": {"type", "message", "traceback", "t"},
}  # fmt: skip
"""Required fields of each kind of record."""


def result_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's result, if ranks call a function."""
    return folder / f"result-{rank}.pkl"


@cache
def rank_of(source: str) -> int:
    """Return the rank of a source such as ``rank-3``."""
    return int(source[5:])


def source_of(name: str) -> str:
    """Return the source of a file's records: ``rank-3`` for ``rank-3.jsonl`` and for ``rank-3.0.jsonl``."""
    return name.partition(".")[0]


def attempts_in(folder: Path) -> list[list[str]]:
    """Return the names of a run's record files by attempt, the current attempt last."""
    names = glob("*.jsonl", root_dir=folder)
    earlier = [match for match in map(EARLIER.fullmatch, names) if match]
    found: list[list[str]] = [[] for _ in range(2 + max((int(match[2]) for match in earlier), default=-1))]
    for match in earlier:
        found[int(match[2])].append(match[0])
    found[-1] += filter(RECORDS.fullmatch, names)
    return found


def end_in(folder: Path, names: Iterable[str]) -> Record | None:
    """Return the record of a job's end from some files of a run folder."""
    jobs = (lines_of(folder / name) for name in names if name.startswith("job"))
    return next((record for lines in jobs for record in lines if record.keys() >= {"status", "reason"}), None)


class Tail:
    """Incremental reader of every ``rank-*.jsonl`` and ``job.jsonl`` in a run folder.

    Parameters
    ----------
    path : path
        The run folder.
    chunk : int
        Maximum number of bytes read from one file in one call, which bounds a reader's memory for a long run.
    """

    def __init__(self, path: str | os.PathLike, chunk: int = 4 << 20) -> None:
        self.path, self.chunk = Path(path), chunk
        self._read_to: dict[str, int] = {}

    def read(self) -> list[tuple[str, Record]]:
        """Return records appended since the last call as ``(source, record)``, such as ``("rank-3", {…})``.

        The source is the rank, or ``job`` for a record of the guardian.  In a resumed run, all records of an
        attempt come before the next attempt's.
        """
        found: list[tuple[str, Record]] = []
        for names in attempts_in(self.path):
            # The end of an earlier attempt is not the end of the run.
            names = [name for name in names if name == "job.jsonl" or name.startswith("rank")]
            for name in sorted(names, key=lambda name: (name == "job.jsonl", len(name), name)):
                found += self._new_records(name)
            if found:
                break
        return found

    def _new_records(self, name: str) -> list[tuple[str, Record]]:
        source, lines = source_of(name), self._new_lines(name)
        records = [record for line in lines if (record := record_of(line, source)) is not None]
        if left_out := len(lines) - len(records):
            warnings.warn(f"{self.path / name}: unreadable lines were omitted: {left_out}", stacklevel=3)
        return [(f"rank-{r['rank']}" if source == ALL_RANKS else source, r) for r in records]

    def read_all(self) -> list[tuple[str, Record]]:
        """Return all records since the last call, up to the current end of the files."""
        return [found for part in iter(self.read, []) for found in part]

    def _new_lines(self, name: str) -> list[bytes]:
        start, data = self._read_to.get(name, 0), b""
        with suppress(OSError), open_plain(self.path / name) as file:
            file.seek(start)
            data = file.read(self.chunk)
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == self.chunk else 0)
        self._read_to[name] = start + whole
        return data[:whole].splitlines()


def lines_of(path: Path, having: bytes = b"") -> Iterator[Record]:
    """Yield the records of one file from its beginning, one at a time. Their lines contain `having`.

    Yield nothing if it is not a plain file.
    """
    with suppress(OSError), open_plain(path) as file:
        yield from filter(None, map(record_of, (line for line in file if having in line)))


def record_of(line: bytes, source: str = "") -> Record | None:
    """Return a line's record, or None if the line lacks a field or is torn, for example by a full disk."""
    try:
        record = loads(line)
        is_whole = record.keys() >= NEEDED.get(record["k"], set())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not is_whole or (source == ALL_RANKS and not isinstance(record.get("rank"), int)):
        return None
    if record.get("loss", 0) is None:  # JSON has no NaN, the loss of a diverged run
        record["loss"] = math.nan
    return record
