"""One object that says how a run went: what ``dlpar run --json`` prints and ``summary.json`` holds.

Only the standard library is used, so that the process that guards a job can
write it without loading anything heavy.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Iterable

ACCURACY_GOALS = (0.8, 0.9, 0.95, 0.97)
"""Held-out accuracies whose first crossing is reported as ``time_to_accuracy`` (seconds)."""


class Summary:
    """Accumulates records one at a time; memory does not grow with the number of steps but of open ones."""

    def __init__(self, experiment: dict[str, Any], run: str) -> None:
        self.experiment, self.run = experiment, run
        self.clock, self.launch_s, self.accuracy = "wall", None, None
        self.steps = self.samples = self.bytes = self.lead = 0
        self.seconds = dict.fromkeys(("compute", "comm", "wait"), 0.0)
        self.staleness: Counter[int] = Counter()
        self.first = self.last = self.final_loss = self.slip = None
        self.reached: dict[str, float] = {}
        self._open: dict[int, list[float]] = {}  # step -> [workers, loss × samples, samples]

    def add(self, record: dict[str, Any]) -> None:
        """Take in one record of any rank, in any order."""
        kind = record.get("k")
        if kind == "step":
            self._step(record)
        elif kind == "eval":
            self.accuracy = record["accuracy"]
            for goal in ACCURACY_GOALS:
                if self.accuracy is not None and self.accuracy >= goal:
                    self.reached.setdefault(f"{goal:g}", record["t"])
        elif kind == "rank":
            self.clock = record["clock"]
        elif kind == "event" and record.get("launch_s") is not None:
            self.launch_s = record["launch_s"]
        elif kind == "event" and record.get("slip") is not None:
            self.slip = max(self.slip or 0.0, record["slip"])

    def _step(self, record: dict[str, Any]) -> None:
        samples = record["samples"]
        self.samples += samples
        if self.bytes is not None:  # a library that moves the data does not say how much
            self.bytes = None if record["bytes"] is None else self.bytes + record["bytes"]
        self.lead = max(self.lead, record["lead"])
        self.staleness[record["staleness"]] += 1
        for part in self.seconds:
            self.seconds[part] += record[part]
        began = record["t"] - record["compute"] - record["comm"] - record["wait"]
        self.first = began if self.first is None else min(self.first, began)
        self.last = record["t"] if self.last is None else max(self.last, record["t"])
        tally = self._open.setdefault(record["step"], [0, 0.0, 0])
        tally[0] += 1
        tally[1] += record["loss"] * samples
        tally[2] += samples
        if tally[0] == self.experiment["workers"]:
            self.steps += 1
            self.final_loss = tally[1] / tally[2]
            del self._open[record["step"]]

    def result(self) -> dict[str, Any]:
        """The summary as a JSON-ready mapping; figures that a run has not got yet are None."""
        elapsed = self.last - self.first if self.last is not None else None
        workers = self.experiment["workers"]
        return {
            "run": self.run,
            "workers": workers,
            "steps": self.steps,
            "samples_per_s": self.samples / elapsed if elapsed else None,
            "final_loss": self.final_loss if math.isfinite(self.final_loss or 0.0) else None,
            "accuracy": self.accuracy,
            "staleness": _distribution(self.staleness),
            "lead": {"max": self.lead, "bound": 0},
            "bytes_sent": self.bytes,
            "seconds": {part: total / workers for part, total in self.seconds.items()},
            "time_to_accuracy": self.reached,
            "launch_s": self.launch_s,
            "clock": self.clock,
            "slip": self.slip,
        }


def summarise(experiment: dict[str, Any], run: str, records: Iterable[tuple[str, dict]]) -> dict[str, Any]:
    """Summary of all records of a run; `records` as :meth:`dlpar.tail.Tail.read_all` gives them."""
    summary = Summary(experiment, run)
    for source, record in records:
        if source != "job":
            summary.add(record)
    return summary.result()


def _distribution(counts: Counter[int]) -> dict[str, float | int | None]:
    total = counts.total()
    if not total:
        return {"mean": None, "p99": None, "max": None}
    seen, p99 = 0, 0
    for value in sorted(counts):
        seen += counts[value]
        p99 = value
        if seen >= 0.99 * total:
            break
    return {"mean": sum(v * n for v, n in counts.items()) / total, "p99": p99, "max": max(counts)}
