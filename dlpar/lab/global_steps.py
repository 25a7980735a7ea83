"""From records of single ranks to global steps."""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

from dlpar.jobs.summary import weighted_loss


class GlobalStep(NamedTuple):
    """A step's worth of work of all workers."""

    step: int
    samples: int
    """Of all workers, all steps so far."""
    bytes: float
    """Sent by all workers, all steps so far; NaN if a library moved them and does not say."""
    seconds: float
    loss: float
    """Mean over the global batch; of an empty batch, that of the step before."""
    batch: int
    """Samples of this step alone."""


LATE = 0.5
"""Seconds of a run by which one rank's records may come after another's before they are no longer waited for."""


class GlobalSteps:
    """Puts together the workers' records of each step; holds only steps somebody has not finished.

    Parameters
    ----------
    workers : int
        Worker-steps in a global step.
    free_running : bool
        Whether workers run free of each other; then any N worker-steps make a
        global step, in the order in which they ended.
    """

    def __init__(self, workers: int, free_running: bool = False) -> None:
        self.workers, self.free_running = workers, free_running
        self.done = self.samples = 0
        self.bytes = 0.0
        self.first: GlobalStep | None = None
        self.last: GlobalStep | None = None
        self._open: dict[int, list[float]] = {}
        # Of workers that run free: records not yet in order, how many were, and each rank's newest time.
        self._early: list[tuple[float, int, dict[str, Any]]] = []
        self._taken = self._ordered = 0
        self._newest: dict[int, float] = {}
        self._behind: list[
            tuple[float, int]
        ] = []  # a heap with a time of each rank, not later than its newest

    def add(self, rank: int, record: dict[str, Any]) -> list[GlobalStep]:
        """Take one worker's step record; returns the global steps that it completes, if any."""
        if not self.free_running:
            done = self._tally(record["step"], record)
            return [done] if done else []
        self._taken += 1
        if rank not in self._newest:
            heapq.heappush(self._behind, (record["t"], rank))
        self._newest[rank] = record["t"]
        heapq.heappush(self._early, (record["t"], self._taken, record))
        if len(self._newest) < self.workers:
            return []
        # Files are read one after the other: what a rank did is in order once all others were heard up to then.
        behind = (
            self._behind
        )  # with thousands of ranks, a search through all at every record would take too long
        while behind[0][0] < (newest := self._newest[behind[0][1]]):
            heapq.heapreplace(behind, (newest, behind[0][1]))
        return self._release(behind[0][0])

    def catch_up(self, ended: bool) -> list[GlobalStep]:
        """Once all files were read: the global steps that wait for a worker that stalls, or if `ended` for any."""
        if not self._newest:
            return []
        return self._release(float("inf") if ended else max(self._newest.values()) - LATE)

    def _release(self, until: float) -> list[GlobalStep]:
        found = []
        while self._early and self._early[0][0] <= until:
            done = self._tally(self._ordered // self.workers, heapq.heappop(self._early)[2])
            self._ordered += 1
            found += [done] if done else []
        return found

    def _tally(self, number: int, record: dict[str, Any]) -> GlobalStep | None:
        tally = self._open.get(number)
        if tally is None:
            tally = self._open[number] = [0, 0, 0.0, 0.0, 0.0]
        sent = record["bytes"]
        tally[0] += 1
        tally[1] += record["samples"]
        tally[2] += weighted_loss(record)
        tally[3] = max(tally[3], record["t"])
        tally[4] += sent if sent is not None else float("nan")
        if tally[0] < self.workers:
            return None
        del self._open[number]
        _, batch, weighted, seconds, sent = tally
        self.done += 1
        self.samples += batch
        self.bytes += sent
        loss = weighted / batch if batch else self.last.loss if self.last else float("nan")
        self.last = GlobalStep(number, self.samples, self.bytes, seconds, loss, batch)
        self.first = self.first or self.last
        return self.last
