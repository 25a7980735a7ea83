"""Records of a running rank. Each step is one JSON line, appended to the rank's own file.

The file is the only source of truth about the run: a reader gets nothing else.  A line is complete or absent,
so a reader may follow the file while it grows.  Steps quicker than `TOGETHER` share a ``write``, because for
a short step a system call costs more than all other recording.  A killed rank loses at most the steps of the
last `TOGETHER` seconds.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
import torch

from dlpar import comm
from dlpar.comm import Comm

TOGETHER = 0.02
"""Maximum duration of the steps in one write, in seconds."""

AHEAD = 2e-3
"""Seconds of short steps that a GPU is given before the host reads the first of them. In this time the host can
draw a new order of samples, which takes 0.5 ms."""

SNAPSHOT = "snapshot"
"""Name of the span in which a step waits for a copy of the state."""

COMPUTING = frozenset({"forward", "backward", "weight", "recompute", "delay", "update", "whole step"})
"""Spans counted as computing. All others except :data:`SNAPSHOT` and ``evaluate`` are communication."""

NOTHING = 2e-6
"""Seconds up to which a span on the wall clock counts as empty (0 on other clocks). Empty spans are not written."""


class Span:
    """Timer of a phase of a step: by the rank's clock, or for GPU work by :class:`DeviceClock`.

    One object serves all steps, so phases of one name do not nest.  The values in `of` are written after the
    times.  In a pipeline these are the numbers of micro-batch and chunk, with a new object for each pair.
    """

    def __init__(self, record: Recorder, name: str, of: tuple[int, ...] = ()) -> None:
        self._record, self._name, self._of = record, name, of

    def __enter__(self) -> None:
        if self._name not in COMPUTING:
            self._waited = self._record.traffic.waited
        self._start = self._record.moment()

    def __exit__(self, *error: object) -> None:
        record, end = self._record, self._record.moment()
        if record._device or end - self._start > record._nothing:
            record._spans.append((self._name, self._start, end, *self._of))
            if self._name not in COMPUTING:
                record._waited += record.traffic.waited - self._waited


class RankFile:
    """Append-only file with one record per line.

    Parameters
    ----------
    path : path
        Created with mode 0600.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._written, self._pending = 0.0, []

    def add(self, record: dict[str, Any], soon: bool = False) -> None:
        """Write a record and all buffered records, now or within :data:`TOGETHER` if `soon`."""
        self._pending.append(record)
        if not soon or time.monotonic() - self._written >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Write the buffered records."""
        # A missing number and a NaN are null.
        lines = b"".join([orjson.dumps(r, lambda _: None, orjson.OPT_APPEND_NEWLINE) for r in self._pending])
        self._pending.clear()
        self._written = time.monotonic()
        if lines and (written := os.write(self._file, lines)) < len(lines):
            # Leave no torn line, and make room for the error that follows.
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError("No space left on device, or the limit of `ulimit -f` is reached")

    def touch(self) -> None:
        """Show progress without a record. A step of thousands of ranks takes a long time."""
        os.utime(self._file)

    def close(self) -> None:
        """Write the rest, and close the file."""
        self.flush()
        os.close(self._file)


class Recorder(comm.Recorder):
    """Recorder of one rank. It appends to a file in a run folder.

    Parameters
    ----------
    folder : path
        The run folder, in which ``rank-<rank>.jsonl`` is created.
    comm : Comm
        The rank's communicator. Its clock gives every time in the file.
    file : RankFile, optional
        A file that many ranks of one process share. Each line then names its rank.
    began : float
        Seconds of the run before this attempt, in a resumed run.
    """

    _of: Mapping[str, int] = MappingProxyType({})
    _ended = 0.0  # when the last step ended

    def __init__(
        self, folder: str | os.PathLike, comm: Comm, file: RankFile | None = None, began: float = 0.0
    ) -> None:
        self.comm, self.traffic = comm, comm.traffic
        self.now = (lambda: began + comm.now()) if began else comm.now
        self._file = file or RankFile(Path(folder) / f"rank-{comm.rank}.jsonl")
        self._whose = {} if file is None else {"rank": comm.rank}
        self._nothing = NOTHING if comm.world.clock == "wall" else 0.0
        self._device = DeviceClock(comm, self.now) if comm.device.type == "cuda" else None
        self.moment = self._device.moment if self._device else self.now
        self._spans: list[tuple[Any, ...]] = []
        self._waited, self._lost = 0.0, Counter[str]()
        self._kinds: dict[str, Span] = {}
        self._pending, self._ahead = deque[Done](), 0  # steps of a GPU, and how many of them need no wait

    def join(self, comm: Comm, workers: int, usual: int) -> None:
        """Continue with another communicator on the same clock, with this many workers in a global step."""
        self.comm, self.traffic = comm, comm.traffic
        self._of = {} if workers == usual else {"of": workers}

    def header(self, **facts: Any) -> None:
        """Write this rank's role and threads, and the facts of its communicator."""
        comm = self.comm
        place = {"host": socket.gethostname(), "pid": os.getpid(), "device": str(comm.device)}
        world = {"carrier": comm.world.carrier, "clock": comm.world.clock}
        self._write({"k": "rank", "rank": comm.rank, **place, **world, **facts})

    def span(self, name: str, micro: int | None = None, chunk: int = 0) -> Span:
        """Time a phase (forward, backward, communicate, update …) and write it with the next step.

        The record is ``[name, start, end]`` or, for a micro-batch, ``[name, start, end, micro, chunk]``.

        >>> with record.span("forward"):
        ...     loss = criterion(model(x), y)
        """
        if micro is not None:
            return Span(self, name, (micro, chunk))
        return self._kinds.get(name) or self._kinds.setdefault(name, Span(self, name))

    def step(self, step: int, **facts: Any) -> None:
        """Finish a step. Write a line with its loss, samples, traffic, seconds and spans.

        A step on a GPU is written when the next one ends, so that the host never waits for the current one.
        Short steps are written up to `AHEAD` seconds later.
        """
        facts |= self.comm.world.state()
        self._write_done(self._ahead)
        if self._device is None:
            return self._add_step(step, self.now(), facts, *self._taken())
        if (loss := facts.get("loss")) is not None and not isinstance(loss, float):
            facts["loss"] = loss.to("cpu", non_blocking=True)
        self._pending.append(self._queued(step, facts))
        self._device.set_again()

    def _taken(self) -> tuple[list[tuple[Any, ...]], float]:
        """Return the spans since the last step, and the seconds waited in them. Forget both."""
        taken = self._spans, self._waited
        self._spans, self._waited = [], 0.0
        return taken

    def _queued(self, step: int, facts: dict[str, Any]) -> Done:
        """Return a step, or a test after it, whose work a GPU may not have finished."""
        waits, moment = self.traffic.waits_of_device(), self.moment()
        return Done(step, facts, *self._taken(), waits, moment, *self._device.zero)

    def _write_done(self, but: int = 0) -> None:
        """Write all steps of a GPU `but` the latest, as soon as the GPU has finished them."""
        while self._device and len(self._pending) > but:
            done = self._pending.popleft()
            spans, end = self._device.timed(done)
            # A test or a snapshot may have come before the first span.
            self._ahead = int(AHEAD / max(end - (spans[0][1] if spans else self._ended), 4e-5))
            self._add_step(done.step, end, done.facts, spans, done.waited + done.waits())

    def _add_step(
        self, step: int, end: float, facts: dict[str, Any], spans: list[tuple[Any, ...]], waited: float
    ) -> None:
        compute, comm = 0.0, 0.0
        for name, start, until, *_ in spans:
            if name in COMPUTING:
                compute += until - start
            elif name == SNAPSHOT:
                facts[SNAPSHOT] = facts.get(SNAPSHOT, 0.0) + until - start
            else:
                comm += until - start
        wait = min(waited, comm)
        if (loss := facts.get("loss")) is not None:
            facts["loss"] = float(loss)
        if self._lost:
            facts |= {**self._lost, "restarting": spans[0][1] - self._ended}
            self._lost.clear()
        self._ended = facts.get("t", end)
        facts = {**self._of, **facts, "compute": compute, "comm": comm - wait, "wait": wait, "spans": spans}
        self._write({"k": "step", "step": step, "t": end, **facts}, soon=True)

    def interrupted(self, at: float) -> None:
        """Count the time since the last step as lost.

        A rank's death was noticed at time `at`, and a restart follows.
        """
        self._write_done()
        spans = self._taken()[0]
        # A GPU's spans are not timed yet.
        again = 0.0 if self._device else sum(s[2] - s[1] for s in spans if s[0] in COMPUTING)
        if self._ended:
            self._lost.update({"done again": again, "detecting": at - self._ended - again})
        self._ended = at

    def evaluation(self, step: int, **facts: Any) -> None:
        """Write the result of a test on held-out samples after `step` steps."""
        self._write_done()
        spans = self._device.timed(self._queued(step, {}))[0] if self._device else self._taken()[0]
        self._write({"k": "eval", "step": step, "t": self.now(), **facts, "spans": spans})

    def event(self, name: str, **facts: Any) -> None:
        """Write an event with its time."""
        self._write_done()
        self._write({"k": "event", "t": self.now(), "name": name, **facts})

    def error(self, error: BaseException) -> None:
        """Write an exception with its traceback, so that both outlive the process."""
        with suppress(RuntimeError):  # the GPU may have failed
            self._write_done()
        self._pending.clear()
        # The reader of the end of this file must find the whole line.
        told = {"message": str(error)[:4000], "traceback": "".join(traceback.format_exception(error))[-8000:]}
        told = {name: text.encode(errors="backslashreplace").decode() for name, text in told.items()}
        self._write({"k": "error", "t": self.now(), "type": type(error).__name__, **told})

    def end(self, steps: int) -> None:
        """Record that the rank has done all its steps."""
        self._write_done()
        if state := self.comm.world.state():
            self.event("slip", slip=state["slip"], final=state["lag"])
        self._write({"k": "end", "t": self.now(), "steps": steps})

    def flush(self) -> None:
        """Write the buffered steps."""
        self._write_done()
        self._file.flush()

    def _write(self, record: dict[str, Any], soon: bool = False) -> None:
        self._file.add({**record, **self._whose}, soon)


class Done(NamedTuple):
    """Step whose work a GPU may not have finished.

    `end`, and the times in `spans`, are moments of the GPU.  The GPU's moment `zero` was `at` on the rank's
    clock. `waits` returns the seconds that the GPU waited for messages.
    """

    step: int
    facts: dict[str, Any]
    spans: list[tuple[Any, ...]]
    waited: float
    waits: Callable[[], float]
    end: torch.cuda.Event
    zero: torch.cuda.Event
    at: float


class DeviceClock:
    """Clock of one rank's GPU.

    Parameters
    ----------
    comm : Comm
        Communicator of the rank.
    now : callable
        Returns the seconds on the rank's clock.
    """

    SET_EVERY = 1.0
    """Seconds after which the two clocks are compared again: they drift, and a time between events has only
    7 digits of milliseconds."""

    def __init__(self, comm: Comm, now: Callable[[], float]) -> None:
        self._now = now
        self._unused: list[torch.cuda.Event] = []
        self._stream = torch.cuda.current_stream(comm.device)  # to look it up takes 3 µs
        self.zero = self._compared()

    def moment(self) -> torch.cuda.Event:
        """Return the moment at which the GPU has finished all work queued so far."""
        event = self._unused.pop() if self._unused else torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _compared(self) -> tuple[torch.cuda.Event, float]:
        """Wait for the GPU, and return this moment on both clocks."""
        zero = self.moment()
        zero.synchronize()
        return zero, self._now()

    def set_again(self) -> None:
        """Compare the two clocks if that is due. The comparison waits for the GPU."""
        if self._now() - self.zero[1] > self.SET_EVERY:
            self.zero = self._compared()

    def timed(self, done: Done) -> tuple[list[tuple[Any, ...]], float]:
        """Wait until the GPU has done a step. Return its non-empty spans and its end on the rank's clock."""
        done.end.synchronize()
        seconds = lambda moment: done.at + done.zero.elapsed_time(moment) / 1000
        timed = [(name, seconds(start), seconds(end), *of) for name, start, end, *of in done.spans]
        end = seconds(done.end)
        self._unused += {done.end, *(moment for span in done.spans for moment in span[1:3])}
        return [span for span in timed if span[2] - span[1] > NOTHING], end
