"""What a rank writes while it runs: one JSON line a step, appended by a single ``write``.

The file is the truth about the run: nothing else is sent to whoever watches.  A
line is complete or absent, so a reader may tail the file while it grows.
"""

from __future__ import annotations

import json
import os
import socket
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=True).encode


class Recorder:
    """Append-only record of one process in a run folder.

    Parameters
    ----------
    folder : path
        The run folder; ``rank-<rank>.jsonl`` in it is created with mode 0600.
    rank : int
        Rank in the world.
    now : callable
        The rank's clock: seconds since all ranks were ready (``comm.now``).
    """

    def __init__(self, folder: str | os.PathLike, rank: int, now: Callable[[], float]) -> None:
        self.rank, self.now = rank, now
        path = Path(folder) / f"rank-{rank}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._spans: list[tuple[str, float, float]] = []

    def rank_is(self, **facts: Any) -> None:
        """The header: who this rank is (role, device, carrier, clock, threads)."""
        self._write({"k": "rank", "rank": self.rank, "host": socket.gethostname(), "pid": os.getpid(), **facts})

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time a phase (forward, backward, communicate, update …); it is written with the next step."""
        start = self.now()
        yield
        self._spans.append((name, start, self.now()))

    def step(self, step: int, **facts: Any) -> None:
        """Finish a step: one line with its loss, samples, seconds, traffic and the spans since the last."""
        self._write({"k": "step", "step": step, "t": self.now(), **facts, "spans": self._take_spans()})

    def evaluation(self, step: int, **facts: Any) -> None:
        """What a test on held-out samples gave after `step` steps."""
        self._write({"k": "eval", "step": step, "t": self.now(), **facts, "spans": self._take_spans()})

    def event(self, name: str, **facts: Any) -> None:
        """Something that happened once, with its time."""
        self._write({"k": "event", "t": self.now(), "name": name, **facts})

    def error(self, error: BaseException) -> None:
        """An exception with its traceback, so that it outlives the process."""
        self._write(
            {"k": "error", "t": self.now(), "type": type(error).__name__, "message": str(error),
             "traceback": "".join(traceback.format_exception(error))}
        )  # fmt: skip

    def end(self, steps: int) -> None:
        """The rank did all its steps."""
        self._write({"k": "end", "t": self.now(), "steps": steps})

    def close(self) -> None:
        """Close the file; what was written is already safe."""
        os.close(self._file)

    def _take_spans(self) -> list[list]:
        spans = [[name, round(start, 7), round(end, 7)] for name, start, end in self._spans]
        self._spans.clear()
        return spans

    def _write(self, record: dict[str, Any]) -> None:
        line = (_encode(record) + "\n").encode()
        while line:
            line = line[os.write(self._file, line) :]


class Unrecorded(Recorder):
    """The same interface, nothing written: for measuring what recording costs."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.rank, self.now, self._spans = 0, now, []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        yield

    def close(self) -> None:
        pass

    def _write(self, record: dict[str, Any]) -> None:
        pass
