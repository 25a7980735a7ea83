"""Record a rank while it runs: one JSON line a step, appended to a file of its own.

The file is the only source of truth about the run: a reader gets nothing else.  A
line is complete or absent, so a reader may tail the file while it grows.  Steps
quicker than `TOGETHER` share a ``write``.  A system call costs a short step more
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

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


TOGETHER = 0.02
"""Seconds of steps that may be written together."""

COMPUTING = frozenset({"forward", "backward", "weight", "recompute", "delay", "update"})
"""Spans counted as computing; any other but ``evaluate`` is communication."""

NOTHING = 2e-6
"""Longest empty span on the wall clock, in seconds; it is not written.  On other clocks an empty span takes 0 s."""


class Span:
    """Time a phase of a step; one object serves all steps, so phases of one name do not nest.

    `of` is written behind the times: the numbers of micro-batch and chunk in a pipeline, which makes a new object
    for each.
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
    """Time the GPU's work of a phase: from when it begins until it has done it (:class:`DeviceClock`)."""

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
        Returns seconds; they say how long a record has waited for others to be written with.
    """

    def __init__(self, path: str | os.PathLike, now: Callable[[], float]) -> None:
        self._path, self._file = path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._now, self._written = now, 0.0
        self._pending: list[dict[str, Any]] = []

    def add(self, record: dict[str, Any], soon: bool = False) -> None:
        """Write a record and those that wait: now, or within :data:`TOGETHER` if `soon`."""
        self._pending.append(record)
        if not soon or self._now() - self._written >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Write the records that wait."""
        # A missing number and a NaN are null.
        lines = b"".join([orjson.dumps(r, _nothing, orjson.OPT_APPEND_NEWLINE) for r in self._pending])
        self._pending.clear()
        self._written = self._now()
        while lines:  # more than once only where a signal or a full disk cut a write short
            lines = lines[os.write(self._file, lines) :]

    def touch(self) -> None:
        """Show progress without a record: a step of thousands of ranks takes long."""
        os.utime(self._path)

    def close(self) -> None:
        """Write the rest, and close the file."""
        self.flush()
        os.close(self._file)


def _nothing(thing: Any) -> None:
    """Return null for a value that JSON does not know."""


class Recorder:
    """Append-only record of one rank in a run folder.

    Parameters
    ----------
    folder : path
        The run folder; ``rank-<rank>.jsonl`` in it is created.
    comm : Comm
        The rank; its clock gives every time in the file.
    file : RankFile, optional
        File shared by many ranks of one process; each line then names its rank.
    """

    device: DeviceClock | None = None
    """Clock of a GPU's spans; None without a GPU."""

    _span: type[Span] = Span

    def __init__(self, folder: str | os.PathLike, comm: Comm, file: RankFile | None = None) -> None:
        self.comm, self.now, self.traffic = comm, comm.now, comm.traffic
        self._file = file or RankFile(Path(folder) / f"rank-{comm.rank}.jsonl", comm.now)
        self._whose = {} if file is None else {"rank": comm.rank}
        self._nothing = NOTHING if comm.world.clock == "wall" else 0.0
        if comm.device.type == "cuda":
            self.device, self._span = DeviceClock(comm), DeviceSpan
        self._spans: list[tuple[Any, ...]] = []
        self._waited = 0.0
        self._kinds: dict[str, Span] = {}

    def header(self, **facts: Any) -> None:
        """Describe this rank: role and threads, beside the facts of its communicator."""
        comm = self.comm
        place = {"host": socket.gethostname(), "pid": os.getpid(), "device": str(comm.device)}
        world = {"carrier": comm.world.carrier, "clock": comm.world.clock}
        self._write({"k": "rank", "rank": comm.rank, **place, **world, **facts})

    def span(self, name: str, micro: int | None = None, chunk: int = 0) -> Span:
        """Time a phase (forward, backward, communicate, update …) and write it with the next step.

        The record is ``[name, start, end]``; of a micro-batch, ``[name, start, end, micro, chunk]``.

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
        record = {"k": "step", "step": step, "t": self.now(), **facts}
        record |= {"compute": compute, "comm": comm - wait, "wait": wait, "spans": spans}
        self._write(record | self.comm.world.state(), soon=True)

    def evaluation(self, step: int, **facts: Any) -> None:
        """Write a test on held-out samples after `step` steps."""
        self._write({"k": "eval", "step": step, "t": self.now(), **facts, "spans": self._take_spans()})

    def event(self, name: str, **facts: Any) -> None:
        """Write an event with its time."""
        self._write({"k": "event", "t": self.now(), "name": name, **facts})

    def error(self, error: BaseException) -> None:
        """Write an exception with its traceback, which so outlives the process."""
        told = {"type": type(error).__name__, "message": str(error)}
        story = "".join(traceback.format_exception(error))
        self._write({"k": "error", "t": self.now(), **told, "traceback": story})

    def end(self, steps: int) -> None:
        """Record that the rank did all its steps."""
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
    """A recorder that writes nothing, to measure the cost of recording."""

    def __init__(self, comm: Comm) -> None:
        self.comm, self.now, self.traffic, self._spans, self._waited = comm, comm.now, comm.traffic, [], 0.0

    def span(self, name: str, micro: int | None = None, chunk: int = 0) -> nullcontext:
        return nullcontext()

    def close(self) -> None:
        pass

    def _write(self, record: dict[str, Any], soon: bool = False) -> None:
        pass


class DeviceClock:
    """Clock of one rank's GPU.

    Parameters
    ----------
    comm : Comm
        The rank; its clock counts the seconds.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.set()

    def moment(self) -> torch.cuda.Event:
        """Return the moment at which the GPU has done all it was told so far."""
        import torch  # here: readers of runs and stand-in ranks need no torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._comm.device))
        return event

    def seconds(self, moment: torch.cuda.Event) -> float:
        """Return the time of a moment before the last :meth:`set`, on the rank's clock."""
        return self._at - moment.elapsed_time(self._zero) / 1000

    def set(self) -> None:
        """Wait for the GPU, and set its clock by the rank's, so that earlier moments get their times.

        Once is not enough: clocks drift, and a time between events has 7 digits of milliseconds.
        """
        self._zero = self.moment()
        self._zero.synchronize()
        self._at = self._comm.now()
