"""From records of single ranks to global steps."""

from __future__ import annotations

from typing import Any, NamedTuple


class GlobalStep(NamedTuple):
    """A step all workers have finished."""

    step: int
    samples: int
    """Of all workers, all steps so far."""
    seconds: float
    loss: float
    """Mean over the global batch."""
    batch: int
    """Samples of this step alone."""


class GlobalSteps:
    """Puts together the workers' records of each step; holds only steps somebody has not finished."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.done = self.samples = 0
        self.first: GlobalStep | None = None
        self.last: GlobalStep | None = None
        self._open: dict[int, list[float]] = {}

    def add(self, record: dict[str, Any]) -> GlobalStep | None:
        """Take one worker's step record; returns the global step that it completes, if it does."""
        samples, seconds = record["samples"], record["t"]
        tally = self._open.get(record["step"])
        if tally is None:
            tally = self._open[record["step"]] = [0, 0, 0.0, 0.0]
        tally[0] += 1
        tally[1] += samples
        tally[2] += record["loss"] * samples
        tally[3] = max(tally[3], seconds)
        if tally[0] < self.workers:
            return None
        del self._open[record["step"]]
        self.done += 1
        self.samples += tally[1]
        self.last = GlobalStep(record["step"], self.samples, tally[3], tally[2] / tally[1], tally[1])
        self.first = self.first or self.last
        return self.last
