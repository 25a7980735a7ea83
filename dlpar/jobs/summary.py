"""One object that says how a run went: what ``dlpar run --json`` prints and ``summary.json`` holds.

Only the standard library is used, so that the process that guards a job can
write it without loading anything heavy.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

ACCURACY_GOALS = (0.8, 0.9, 0.95, 0.97)
"""Held-out accuracies whose first crossing is reported as ``time_to_accuracy`` (seconds)."""


def free_running(sync: dict[str, Any]) -> bool:
    """Whether workers of a scheme do as many steps as they can, in place of the same steps all of them.

    Then a global step is any N worker-steps, in the order in which they were done.
    """
    return (
        sync["scheme"] == "hogwild"
        or sync.get("consistency", "bsp") != "bsp"
        or sync.get("exchange") == "pairwise"
    )


def lead_bound(sync: dict[str, Any]) -> int | None:
    """Clocks a worker may run ahead of the slowest by the rules of a scheme; None: the scheme sets no bound."""
    if sync.get("consistency") == "ssp":
        return sync["staleness"]
    # In gossip a worker waits for neighbours only: others may be behind by as much as the graph is wide.
    return None if free_running(sync) or sync["scheme"] == "gossip" else 0


def counts_lead(sync: dict[str, Any]) -> bool:
    """Whether workers of a scheme know how far they lead: in synchronous gossip nobody hears of all others."""
    return sync["scheme"] != "gossip" or sync["exchange"] == "pairwise"


def weighted_loss(record: dict[str, Any]) -> float:
    """Loss of a worker's step times its samples; a step that sampled nothing has no loss and counts nothing."""
    return record["loss"] * record["samples"] if record["samples"] else 0.0


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
        self.free_running, self.worker_steps = free_running(experiment["sync"]), 0
        self._open: dict[int, list[float]] = {}  # step -> [workers, loss × samples, samples]
        self._newest: list[tuple[float, float, int]] = []  # (t, loss, samples) of the last N worker-steps

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
        elif kind == "event" and record["name"] == "served":
            self._sent(record.get("bytes", 0))
        if record.get("slip") is not None:
            self.slip = max(self.slip or 0.0, record["slip"])

    def _sent(self, number: int | None) -> None:
        if self.bytes is not None:  # a library that moves the data does not say how much
            self.bytes = None if number is None else self.bytes + number

    def _step(self, record: dict[str, Any]) -> None:
        self.samples += record["samples"]
        self._sent(record["bytes"])
        self.lead = max(self.lead, record["lead"])
        self.staleness[record["staleness"]] += 1
        for part in self.seconds:
            self.seconds[part] += record[part]
        began = record["t"] - record["compute"] - record["comm"] - record["wait"]
        self.first = began if self.first is None else min(self.first, began)
        self.last = record["t"] if self.last is None else max(self.last, record["t"])
        if self.free_running:
            self._any_step(record)
        else:
            self._step_of_all(record)

    def _step_of_all(self, record: dict[str, Any]) -> None:
        tally = self._open.setdefault(record["step"], [0, 0.0, 0])
        tally[0] += 1
        tally[1] += weighted_loss(record)
        tally[2] += record["samples"]
        if tally[0] == self.experiment["workers"]:
            self.steps += 1
            self.final_loss = tally[1] / tally[2] if tally[2] else self.final_loss
            del self._open[record["step"]]

    def _any_step(self, record: dict[str, Any]) -> None:
        """Any N worker-steps make a global step; the last one is the N that ended last."""
        workers = self.experiment["workers"]
        self.worker_steps += 1
        self.steps = self.worker_steps // workers
        add = heapq.heappush if len(self._newest) < workers else heapq.heappushpop
        add(self._newest, (record["t"], weighted_loss(record), record["samples"]))
        samples = sum(samples for *_, samples in self._newest)
        self.final_loss = sum(loss for _, loss, _ in self._newest) / samples if samples else None

    def result(self) -> dict[str, Any]:
        """The summary as a JSON-ready mapping; figures that a run has not got yet are None."""
        elapsed = self.last - self.first if self.last is not None else None
        workers, sync = self.experiment["workers"], self.experiment["sync"]
        return {
            "run": self.run,
            "workers": workers,
            "steps": self.steps,
            "samples_per_s": self.samples / elapsed if elapsed else None,
            "final_loss": self.final_loss if math.isfinite(self.final_loss or 0.0) else None,
            "accuracy": self.accuracy,
            "staleness": _distribution(self.staleness),
            "lead": {"max": self.lead if counts_lead(sync) else None, "bound": lead_bound(sync)},
            "bytes_sent": self.bytes,
            "seconds": {part: total / workers for part, total in self.seconds.items()},
            "time_to_accuracy": self.reached,
            "launch_s": self.launch_s,
            "clock": self.clock,
            "slip": self.slip,
        }


def summarise(experiment: dict[str, Any], run: str, records: Iterable[tuple[str, dict]]) -> dict[str, Any]:
    """Summary of all records of a run; `records` as :meth:`dlpar.jobs.tail.Tail.read_all` gives them."""
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
