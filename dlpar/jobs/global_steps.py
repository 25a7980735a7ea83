"""Combine workers' steps into global steps, with only the standard library."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

LATE = 0.5
"""Maximum time for which readers wait for a late rank's records, in seconds of the run."""


class GlobalStep(NamedTuple):
    """One step of all workers together."""

    step: int
    samples: int
    """Number of samples of all workers in all steps so far."""
    bytes: float
    """Bytes sent by all workers in all steps so far, or NaN if a library does not report its traffic."""
    seconds: float
    """Time at which the last worker ended this step."""
    loss: float
    """Mean loss over the global batch. For an empty batch, it is the previous step's loss."""
    batch: int
    """Samples of this step alone."""
    attempt: int
    """Attempt of the run that did this step. A later attempt repeats lost steps."""
    sketches: dict[int, list[float]]
    """Sketch of each worker's weights in this step. Free workers: the newest ones, once all have recorded one."""


WorkerStep = tuple[float, int, int, float, float | None, int, int | None, list[float] | None, int]
"""Position in the order of parts, rank and order of reading (for equal positions), time of the end, loss,
samples, bytes, sketch, and worker-steps in its global step.  The record is not kept, because its spans would
fill the memory."""


class GlobalSteps:
    """Combine worker-steps as they are read. Keep only steps that some worker has not finished.

    Parameters
    ----------
    workers : int
        Number of worker-steps in a global step, without backup workers.
    runs_free : bool, default False
        Whether workers do as many steps as they can. If so, any N worker-steps make a global step, in the
        order in which they ended.  Otherwise a global step is the same step of all workers.

    Attributes
    ----------
    done, samples : int
        Global steps returned by :meth:`ready` so far, and their samples.
    bytes : float
        Bytes sent in these steps; NaN if unknown.
    first, last : GlobalStep or None
        The first and the last of these steps.
    """

    def __init__(self, workers: int, runs_free: bool = False) -> None:
        self.workers, self.runs_free = workers, runs_free
        self.done, self.samples, self.bytes = 0, 0, 0.0
        self.first: GlobalStep | None = None
        self.last: GlobalStep | None = None
        # The second is of free workers: the share of a step that the last one left over, and the smallest N so far.
        # The last is the number of worker-steps that the last call of `ready` knew.
        self._taken, self._begun, self._sketches, self._settled = 0, (0.0, workers), {}, 0
        self.attempt, self._ended = (0, [])  # global steps of earlier attempts, not yet returned
        # Samples, bytes and loss after each global step, for an attempt that begins there.
        self._sums: list[tuple[int, float, float]] = [(0, 0.0, math.nan)]
        # Waiting worker-steps of lockstep workers, by step and ordered by rank.
        self._open: defaultdict[int, list[WorkerStep]] = defaultdict(list)
        # Waiting worker-steps of all free workers, ordered by their end time; each rank's newest time and number.
        self._early: list[WorkerStep] = []
        self._newest: dict[int, tuple[float, int]] = {}

    def resume(self, header: dict[str, Any]) -> None:
        """Go back to the global step at which the attempt begins that a rank's header names."""
        attempt, step = header.get("attempt", 0), header.get("resumed", 0)
        if attempt <= self.attempt:
            return
        self._ended = self.ready(ended=True)  # including the steps of earlier attempts
        self._open.clear()
        self._early.clear()
        self._newest.clear()
        self.attempt, self.done, self._begun = attempt, min(step, self.done), (0.0, self.workers)
        self.samples, self.bytes, _ = self._sums[self.done]
        del self._sums[self.done + 1 :]

    def add(self, rank: int, record: dict[str, Any]) -> None:
        """Add one worker's step record. Ranks come in any order, and dropped steps do not count."""
        if record.get("dropped"):
            return
        self._taken += 1
        ended, loss, samples = record["t"], record["loss"], record["samples"]
        if self.runs_free:
            self._newest[rank] = ended, self._taken
            place, waiting = ended, self._early
        else:
            place, waiting = rank, self._open[record["step"]]
        sent, sketch = record.get("bytes"), record.get("sketch")
        of = record.get("of", self.workers)  # fewer if workers have died
        waiting.append((place, rank, self._taken, ended, loss, samples, sent, sketch, of))

    def ready(self, ended: bool = False, late: float = LATE) -> list[GlobalStep]:
        """Return, in order, the global steps completed since the last call.

        Call this after every file has been read, or read further.

        Parameters
        ----------
        ended : bool, default False
            Whether no further record will come.
        late : float, default :data:`LATE`
            Seconds to wait for a free-running worker that stalls.
        """
        before, self._ended = self._ended, []
        if self.runs_free:
            return before + self._any_n(math.inf if ended else self._in_order_until(late))
        whole = [step for step, parts in self._open.items() if len(parts) >= min(part[-1] for part in parts)]
        # Workers of a complete step have recorded all earlier steps, so missing records belong to a dead
        # rank.
        complete = sorted(step for step in self._open if whole and step <= max(whole))
        # Sorted by rank, so that the sum does not depend on the order of reading.
        return before + [self._combine(step, sorted(self._open.pop(step))) for step in complete]

    def _any_n(self, until: float) -> list[GlobalStep]:
        """Combine every N worker-steps that ended by a given time, in the order of their ends.

        N falls at a death, of which workers hear one after the other. So each worker-step counts as 1/N. What a
        death interrupts is part of the next global step and does not count, as in the training itself.
        """
        self._early.sort()
        (share, fewest), first, found = self._begun, 0, []
        for end, (*_, of) in enumerate(self._early[: bisect_right(self._early, (until, math.inf))], start=1):
            share, fewest = (1 / of, of) if of < fewest else (share + 1 / of, fewest)
            if share > 1 - 1e-9:
                found.append(self._combine(self.done, self._early[first:end]))
                share, first = max(0.0, share - 1 - 1e-9), end
                self._begun = share, fewest
        del self._early[:first]
        return found

    def _in_order_until(self, late: float) -> float:
        """Return the time up to which the order of worker-steps is known."""
        newest = self._newest.values()
        last = max((ended for ended, _ in newest), default=-math.inf)
        # A step is in order once all other files have been read up to its time. A rank is late only if nothing
        # more of its file has been read since the last call: long files are read in parts.
        until = [ended if number > self._settled else max(ended, last - late) for ended, number in newest]
        self._settled = self._taken
        return min(until if len(until) == self.workers else [*until, last - late])

    def _combine(self, number: int, parts: list[WorkerStep]) -> GlobalStep:
        batch, weighted, sent, seconds = 0, 0.0, 0.0, -math.inf
        for _, _, _, ended, loss, samples, moved, _, _ in parts:
            seconds = max(seconds, ended)
            batch += samples
            weighted += loss * samples if samples else 0.0
            sent += math.nan if moved is None else moved
        self.done += 1
        self.samples += batch
        self.bytes += sent
        loss = weighted / batch if batch else self._sums[-1][-1]
        self._sums.append((self.samples, self.bytes, loss))
        newest = {rank: sketch for _, rank, *_, sketch, _ in parts if sketch}
        self._sketches = self._sketches | newest if self.runs_free else newest  # without a dead worker's
        sketches = {} if self.runs_free and len(self._sketches) < self.workers else self._sketches
        self.last = GlobalStep(number, self.samples, self.bytes, seconds, loss, batch, self.attempt, sketches)
        self.first = self.first or self.last
        return self.last


def kept(steps: Iterable[GlobalStep]) -> list[GlobalStep]:
    """Return the steps that no later attempt repeated."""
    found: list[GlobalStep] = []
    for step in steps:
        while found and found[-1].attempt < step.attempt and found[-1].step >= step.step:
            found.pop()
        found.append(step)
    return found
