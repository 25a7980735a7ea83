"""Summary of a run, printed by ``dlpar run --json`` and stored in ``summary.json``.

Only the standard library is used, so that the guardian of a job can write it
without loading anything heavy.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.goodput import TimeSpent, ended_in
from dlpar.jobs.tail import Tail, rank_of
from dlpar.worlds.simulated.failures import goodput

if TYPE_CHECKING:
    from pathlib import Path

    from dlpar.config.experiment import Experiment

ACCURACY_GOALS = (0.8, 0.9, 0.95, 0.97)
"""Held-out accuracies whose first crossing is reported as ``time_to_accuracy`` (seconds)."""


CHOICES = ("allreduce", "factors")
"""Choices that a scheme makes: the all-reduce of each bucket, and the number of layers sent as factors."""


def facts_of(experiment: Experiment) -> dict[str, Any]:
    """Return the facts of an experiment that its :class:`Summary` needs, in a form ready for JSON."""
    of_sync = {name: getattr(experiment.sync, name) for name in ("runs_free", "lead_bound", "counts_lead")}
    return {"workers": experiment.workers, "backup": experiment.backup, **of_sync}


class Summary:
    """Accumulate the records of a run. Memory holds unfinished steps, and two sums for each global step.

    Parameters
    ----------
    run : str
        Id of the run.
    workers : int
        Workers of the experiment. Servers are not counted.
    backup : int
        Number of workers whose steps an update does not need.
    runs_free : bool
        Whether workers do as many steps as they can, instead of equal numbers.
    lead_bound : int or None
        Maximum lead over the slowest worker, in clocks, or None without a bound.
    counts_lead : bool
        Whether workers know how far they lead.
    """

    def __init__(
        self, run: str, workers: int, backup: int, runs_free: bool, lead_bound: int | None, counts_lead: bool
    ) -> None:
        self.run, self.workers = run, workers
        self.lead_bound, self.counts_lead = lead_bound, counts_lead
        self.clock, self.launch_s, self.accuracy, self.slip = "wall", None, None, None
        self.samples = self.bytes = self.lead = 0
        self.seconds = dict.fromkeys(("compute", "comm", "wait"), 0.0)
        self.staleness: Counter[int] = Counter()
        self.reached: dict[str, float] = {}
        self.chosen: dict[str, Any] = {}
        self.steps, self.time = GlobalSteps(workers - backup, runs_free), TimeSpent()

    def add(self, records: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Add records in any order. :meth:`dlpar.jobs.tail.Tail.read` returns such records."""
        steps, add = defaultdict(list), self.steps.add
        for source, record in records:
            if source == "job":
                continue
            if record.get("slip") is not None:
                self.slip = max(self.slip or 0.0, record["slip"])
            if record["k"] == "step":
                steps[rank_of(source)].append(record)
                add(rank_of(source), record)
            else:
                self._add(rank_of(source), record)
        for rank, own in steps.items():
            self._count(own)
            self.time.steps(rank, own)
        self.steps.ready(late=math.inf)

    def add_all(self, folder: Path) -> None:
        """Add all records of a run folder, part by part. The parts show which steps are repeated."""
        self.time = TimeSpent(ended_in(folder))
        for records in iter(Tail(folder).read, []):
            self.add(records)

    def _add(self, rank: int, record: dict[str, Any]) -> None:
        """Add a record of any kind except a step record."""
        kind = record["k"]
        if kind == "eval":
            self.accuracy = record["accuracy"]
            for goal in ACCURACY_GOALS:
                if self.accuracy is not None and self.accuracy >= goal:
                    self.reached.setdefault(f"{goal:g}", record["t"])
        elif kind == "rank":
            self.clock = record["clock"]
            self.steps.resume(record)
            self.time.header(rank, record)
        elif kind == "event":
            self.time.event(record)
            self.launch_s = record.get("launch_s") or self.launch_s
            if record["name"] == "chosen":
                self.chosen = {name: record[name] for name in CHOICES if name in record}
            elif record["name"] == "served":
                self._sent([record.get("bytes", 0)])

    def _count(self, steps: list[dict[str, Any]]) -> None:
        """Add many steps at once. This is several times faster than adding them one by one."""
        self.samples += sum([step["samples"] for step in steps if not step.get("dropped")])
        self._sent([step["bytes"] for step in steps])
        self.lead = max(self.lead, max([step["lead"] for step in steps]))
        self.staleness.update([step["staleness"] for step in steps])
        for part, seconds in self.seconds.items():
            self.seconds[part] = sum([step[part] for step in steps], seconds)

    def _sent(self, numbers: list[int | None]) -> None:
        # A library that moves the data does not report how much.
        self.bytes = None if self.bytes is None or None in numbers else self.bytes + sum(numbers)

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second from the first step to the last, without repeated steps. None without a step."""
        elapsed = self.time.last - self.time.first
        return (self.steps.samples if self.steps.attempt else self.samples) / elapsed if elapsed > 0 else None

    def result(self) -> dict[str, Any]:
        """Return the summary, ready for JSON, once all records have been added. Missing figures are None.

        It has ``chosen`` only if the scheme made a choice.
        """
        self.steps.ready(ended=True)
        wall, spent, _ = self.time.result()
        loss = self.steps.last.loss if self.steps.last else None
        return {
            "run": self.run,
            "workers": self.workers,
            "steps": self.steps.done,
            "samples_per_s": self.samples_per_s,
            "final_loss": loss if loss is not None and math.isfinite(loss) else None,
            "accuracy": self.accuracy,
            "staleness": distribution(self.staleness),
            "lead": {"max": self.lead if self.counts_lead else None, "bound": self.lead_bound},
            "bytes_sent": self.bytes,
            "seconds": {part: total / self.workers for part, total in self.seconds.items()},
            "time_to_accuracy": self.reached,
            "launch_s": self.launch_s,
            "clock": self.clock,
            "slip": self.slip,
            "wall_s": wall,
            "goodput": goodput(spent),
            "time_spent": dict(spent),
            **({"chosen": self.chosen} if self.chosen else {}),
        }


def in_words(chosen: Mapping[str, Any]) -> dict[str, str]:
    """Return a scheme's choices in words, as in ``{"all-reduce": "tree for 3 buckets, ring for 1 bucket"}``."""
    counts = Counter(name.replace("_", "-") for name in chosen.get("allreduce", ()))
    buckets = ", ".join(f"{name} for {n} bucket{'s' * (n != 1)}" for name, n in counts.items())
    layers = chosen.get("factors", 0)
    factors = f"for {layers} layer{'s' * (layers != 1)}" if layers else ""
    return {name: words for name, words in (("all-reduce", buckets), ("factors", factors)) if words}


def distribution(counts: Counter[int]) -> dict[str, float | int | None]:
    """Return mean, 99th percentile and maximum of counted values, or None if there are none."""
    total = counts.total()
    if not total:
        return {"mean": None, "p99": None, "max": None}
    values = sorted(counts)
    p99 = next(v for v, up_to in zip(values, accumulate(map(counts.get, values))) if up_to >= 0.99 * total)
    return {"mean": sum(v * n for v, n in counts.items()) / total, "p99": p99, "max": values[-1]}
