"""What a rank writes while it runs: one JSON line a step, appended to a file of its own.

The file is the truth about the run: nothing else is sent to whoever watches.  A
line is complete or absent, so a reader may tail the file while it grows.  Steps
quicker than `TOGETHER` share a ``write``: a system call costs a short step more
than all the rest of recording, and a killed rank loses no more than that time.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import torch

if TYPE_CHECKING:
    from dlpar.comm import Comm


TOGETHER = 0.02
"""Seconds of steps that may be written together."""

COMPUTING = frozenset({"forward", "backward", "weight", "recompute", "delay", "update"})
"""Spans counted as computing; any other but ``evaluate`` is communication."""

NOTHING = 2e-6
"""Seconds of the wall clock: in a span no longer nothing was done, and it is not written.  Other clocks stand still then."""


class Span:
    """A phase of a step being timed; one object serves all steps, so phases of one name do not nest.

    `of` is written behind its times: of a pipeline, the numbers of micro-batch and chunk, for which it is made anew.
    """

    __slots__ = ("_name", "_of", "_record", "_start", "_waited")

    def __init__(self, record: Recorder, name: str, of: tuple[int, ...] = ()) -> None:
        self._record, self._name, self._of = record, name, of

    def __enter__(self) -> None:
        if self._name not in COMPUTING:
            self._waited = self._record.traffic.waited
        self._start = self._record.now()

    def __exit__(self, *error: object) -> None:
        record, end = self._record, self._record.now()
        if end - self._start <= record._nothing:
            return
        record._spans.append((self._name, self._start, end, *self._of))
        if self._name not in COMPUTING:
            record._waited += record.traffic.waited - self._waited


class DeviceSpan(Span):
    """The same of what a GPU is told inside: from when it begins with that until it has done it (`DeviceClock`)."""

    __slots__ = ()

    def __enter__(self) -> None:
        super().__enter__()
        self._start = self._record.device.moment()

    def __exit__(self, *error: object) -> None:
        record = self._record
        record._spans.append((self._name, self._start, record.device.moment(), *self._of))
        if self._name not in COMPUTING:
            record._waited += record.traffic.waited - self._waited


class RankFile:
    """A file of records that only grows, a line each.

    Parameters
    ----------
    path : path
        Created with mode 0600.
    now : callable
        Gives seconds, by which records wait for others to be written with.
    """

    def __init__(self, path: str | os.PathLike, now: Callable[[], float]) -> None:
        self._path, self._file = path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._now, self._written = now, 0.0
        self._pending: list[dict[str, Any]] = []

    def add(self, record: dict[str, Any], soon: bool = False) -> None:
        """Write a record: now, with those that wait, or `soon`."""
        self._pending.append(record)
        if not soon or self._now() - self._written >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Write those that wait."""
        # A number nobody computed, or that is none, is null.
        lines = b"".join([orjson.dumps(r, _nothing, orjson.OPT_APPEND_NEWLINE) for r in self._pending])
        self._pending.clear()
        self._written = self._now()
        while lines:  # more than once only where a signal or a full disk cut a write short
            lines = lines[os.write(self._file, lines) :]

    def touch(self) -> None:
        """Show that there is progress, though nothing to write: a step of thousands of ranks takes its time."""
        os.utime(self._path)

    def close(self) -> None:
        """Write what is left, and no more."""
        self.flush()
        os.close(self._file)


def _nothing(thing: Any) -> None:
    """What stands for a thing JSON does not know."""


class Recorder:
    """Append-only record of one rank in a run folder.

    Parameters
    ----------
    folder : path
        The run folder; ``rank-<rank>.jsonl`` in it is created.
    comm : Comm
        The rank; its clock gives every time in the file.
    file : RankFile, optional
        Where many ranks of one process write; each line then says whose it is.
    """

    device: DeviceClock | None = None
    """Of a GPU's spans."""

    _span: type[Span] = Span

    def __init__(self, folder: str | os.PathLike, comm: Comm, file: RankFile | None = None) -> None:
        self.comm, self.now, self.traffic = comm, comm.now, comm.traffic
        self._file = file or RankFile(Path(folder) / f"rank-{comm.rank}.jsonl", comm.now)
        self._whose = {} if file is None else {"rank": comm.rank}
        self._nothing = NOTHING if comm.world.clock == "wall" else 0.0
        if comm.device.type == "cuda":
            # self import

            self.device, self._span = DeviceClock(comm), DeviceSpan
        self._spans: list[tuple[Any, ...]] = []
        self._waited = 0.0
        self._kinds: dict[str, Span] = {}

    def header(self, **facts: Any) -> None:
        """Who this rank is: role and threads, beside what its communicator says."""
        comm = self.comm
        self._write(
            {
                "k": "rank",
                "rank": comm.rank,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "device": str(comm.device),
                "carrier": comm.world.carrier,
                "clock": comm.world.clock,
                **facts,
            }
        )

    def span(self, name: str, micro: int | None = None, chunk: int = 0) -> Span:
        """Time a phase (forward, backward, communicate, update …); it is written with the next step.

        Written is ``[name, start, end]``, of a micro-batch ``[name, start, end, micro, chunk]``.

        >>> with record.span("forward"):
        ...     loss = criterion(model(x), y)
        """
        if micro is not None:
            return self._span(self, name, (micro, chunk))
        return self._kinds.get(name) or self._kinds.setdefault(name, self._span(self, name))

    def step(self, step: int, **facts: Any) -> None:
        """Finish a step: one line with its loss, samples, traffic, seconds, and the spans since the last."""
        compute, comm, spans = 0.0, 0.0, self._take_spans()
        for name, start, end, *_ in spans:
            if name in COMPUTING:
                compute += end - start
            else:
                comm += end - start
        wait, self._waited = min(self._waited, comm), 0.0
        now = self.now()
        self._write(
            {
                "k": "step",
                "step": step,
                "t": now,
                **facts,
                "compute": compute,
                "comm": comm - wait,
                "wait": wait,
                "spans": spans,
                **self.comm.world.state(),
            },
            soon=True,
        )

    def evaluation(self, step: int, **facts: Any) -> None:
        """What a test on held-out samples gave after `step` steps."""
        self._write({"k": "eval", "step": step, "t": self.now(), **facts, "spans": self._take_spans()})

    def event(self, name: str, **facts: Any) -> None:
        """Something that happened once, with its time."""
        self._write({"k": "event", "t": self.now(), "name": name, **facts})

    def error(self, error: BaseException) -> None:
        """An exception with its traceback, so that it outlives the process."""
        self._write(
            {
                "k": "error",
                "t": self.now(),
                "type": type(error).__name__,
                "message": str(error),
                "traceback": "".join(traceback.format_exception(error)),
            }
        )

    def end(self, steps: int) -> None:
        """The rank did all its steps."""
        if state := self.comm.world.state():
            self.event("slip", slip=state["slip"], final=state["lag"])
        self._write({"k": "end", "t": self.now(), "steps": steps})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _take_spans(self) -> list[tuple[Any, ...]]:
        spans, self._spans, device = self._spans, [], self.device
        if device is None:
            return spans
        device.set()
        timed = [(name, device.seconds(start), device.seconds(end), *of) for name, start, end, *of in spans]
        return [span for span in timed if span[2] - span[1] > self._nothing]

    def _write(self, record: dict[str, Any], soon: bool = False) -> None:
        self._file.add({**record, **self._whose}, soon)


class Unrecorded(Recorder):
    """The same interface, nothing written: for measuring what recording costs."""

    def __init__(self, comm: Comm) -> None:
        self.comm, self.now, self.traffic, self._spans, self._waited = comm, comm.now, comm.traffic, [], 0.0

    def span(self, name: str, micro: int | None = None, chunk: int = 0) -> nullcontext:
        return nullcontext()

    def close(self) -> None:
        pass

    def _write(self, record: dict[str, Any], soon: bool = False) -> None:
        pass


class DeviceClock:
    """Moments of one rank's GPU.

    Parameters
    ----------
    comm : Comm
        The rank; its clock counts the seconds.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.set()

    def moment(self) -> torch.cuda.Event:
        """The end of what the GPU has been told so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._comm.device))
        return event

    def seconds(self, moment: torch.cuda.Event) -> float:
        """A moment before the last :meth:`set`, on the rank's clock."""
        return self._at - moment.elapsed_time(self._zero) / 1000

    def set(self) -> None:
        """Wait for the GPU, and set its clock by the rank's: from then on, what was before can be told.

        Not once for all: no two clocks go alike, and between events there are 7 digits of milliseconds.
        """
        self._zero = self.moment()
        self._zero.synchronize()
        self._at = self._comm.now()
