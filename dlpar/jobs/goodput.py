"""Goodput of a run: the average worker's time by kind, and the share of steps that count.

The kinds are those of simulated jobs (:mod:`dlpar.worlds.simulated.failures`).  This module uses only the
standard library.

    computing      all other work of a step; an exchange hidden behind it counts as computing
    communicating  exchanges that nothing hides
    waiting        for other ranks: in exchanges, before the first step and after the last step
    snapshot       copies of the state
    detecting      from the last step before a death until other ranks notice it, or until the job has ended
    restarting     until the others continue, or until the next attempt's first step; all
                   later time of dead ranks without a spare
    done again     steps that a later attempt repeats, and the computing of interrupted steps
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from dlpar.jobs.tail import ALL_RANKS, Record, attempts_in, end_in, lines_of, rank_of, source_of
from dlpar.worlds.simulated.failures import LOST, USEFUL

Ended = tuple[float, dict[int, int]]
"""Unix time at which an attempt ended, or NaN; and each rank's first step that later attempts repeat."""


def ended_in(folder: Path) -> list[Ended]:
    """Return an `Ended` for each attempt of a run except the last."""
    again, found = dict[int, int](), list[Ended]()
    *earlier, last = attempts_in(folder)
    for names in reversed(earlier):
        for name in filter(lambda name: name.startswith("rank"), last):
            steps = (record for record in lines_of(folder / name) if record["k"] == "step")
            # A rank's steps are in order, so the first one of its own file is enough.
            for record in steps if name.startswith(ALL_RANKS) else islice(steps, 1):
                rank = record["rank"] if "rank" in record else rank_of(source_of(name))
                again[rank] = min(record["step"], again.get(rank, math.inf))
        found.append(((end_in(folder, names) or {}).get("at", math.nan), dict(again)))
        last = names
    return found[::-1]


class TimeSpent:
    """Accumulate the time of workers by kind, from records of ranks in any order within an attempt.

    Parameters
    ----------
    ended : sequence of Ended
        Attempts before the last.

    Attributes
    ----------
    first, last : float
        Start of the first step and end of the last, in seconds of the run; infinite without a step.
    """

    def __init__(self, ended: Sequence[Ended] = ()) -> None:
        self._ended = [*ended, (math.nan, dict[int, int]())]
        self.first, self.last = math.inf, -math.inf
        self._wall, self._seconds = 0.0, Counter[str](dict.fromkeys((*USEFUL, *LOST), 0.0))
        self._stopped = self._over = math.nan  # Unix times of the last step's end and of the attempt's
        self._begin(0)

    def _begin(self, number: int) -> None:
        """Begin an attempt."""
        self._number, (self._end, self._again) = number, self._ended[min(number, len(self._ended) - 1)]
        self._first, self._last = dict[int, float](), dict[tuple[int, bool], float]()
        self._sums = defaultdict[bool, Counter[str]](Counter)  # of steps that count, and of repeated steps
        self._roles, self._dead, self._zero = dict[int, str](), set[int](), math.nan  # Unix time of second 0

    def header(self, rank: int, record: Record) -> None:
        """Process a rank's role. The first header of an attempt begins the attempt."""
        if record.get("attempt", 0) > self._number:
            self._over = self._end if self._first else self._over
            self._wall, self._seconds, self._stopped = self.result()
            self._begin(record["attempt"])
        self._roles[rank] = record.get("role", "")

    def event(self, record: Record) -> None:
        """Process an event of any rank."""
        if record["name"] == "start":
            self._zero = record.get("at", math.nan) - record["t"]
        elif record["name"] == "death":
            self._dead.add(record["dead"])

    def steps(self, rank: int, steps: Sequence[Record]) -> None:
        """Process steps of a rank."""
        began = min(s["t"] - s["compute"] - s["comm"] - s["wait"] for s in steps)
        self._first[rank] = min(began, self._first.get(rank, math.inf))
        self.first, self.last = min(self.first, began), max(self.last, *(s["t"] for s in steps))
        until = self._again.get(rank, min(self._again.values(), default=math.inf))
        for is_again in (False, True):
            own = [step for step in steps if (step["step"] >= until) == is_again]
            for name in ("compute", "comm", "wait", *LOST):
                self._sums[is_again][name] += sum([s.get(name, 0.0) for s in own])
            if own:
                last = self._last.get((rank, is_again), -math.inf)
                self._last[rank, is_again] = max(last, *(s["t"] for s in own))

    def result(self) -> tuple[float, Counter[str], float]:
        """Return the seconds from first to last step, the average worker's seconds by kind, and the end.

        All kinds add up to the first result.  The third result is the Unix time of the last step's end, or
        NaN.
        """
        wall, seconds = self._wall, self._seconds.copy()
        if not self._first:
            return wall, seconds, self._stopped
        begin, end = min(self._first.values()), max(self._last.values())
        # The seat of a worker that died before its first step is empty from the beginning.
        empty = [rank for rank in self._dead if self._roles.get(rank) == "worker"]
        first = dict.fromkeys(empty, begin) | self._first
        parted = {rank: max(began, self._last.get((rank, False), began)) for rank, began in first.items()}
        last = {rank: self._last.get((rank, True), until) for rank, until in parted.items()}
        spares, dead = {r for r in last if self._roles.get(r) == "spare"}, self._dead & last.keys()
        sums, again = self._sums[False], self._sums[True]
        spent = Counter({kind: sums[kind] + again[kind] for kind in LOST})
        spent["done again"] += sum(last.values()) - sum(parted.values()) - sum(again[kind] for kind in LOST)
        spent["restarting"] += sum(first[rank] for rank in spares) - sum(last[rank] for rank in dead)
        spent["restarting"] += (len(dead) - len(spares)) * end
        idle = sum(first[rank] - begin for rank in first.keys() - spares)
        idle += sum(end - last[rank] for rank in last.keys() - dead)
        seats = max(1, len(last) - len(spares))
        left, talk = seats * (end - begin) - spent.total() - idle, sums["comm"] + sums["wait"]
        exposed = min(1.0, max(0.0, left - sums["compute"]) / talk) if talk else 0.0
        spent["communicating"], spent["waiting"] = exposed * sums["comm"], exposed * sums["wait"] + idle
        spent["computing"] = left - exposed * talk
        seconds.update({kind: total / seats for kind, total in spent.items()})
        gap = self._zero + begin - self._stopped
        if gap > 0:  # both are known
            noticed = min(gap, max(0.0, self._over - self._stopped))
            seconds.update({"detecting": noticed, "restarting": gap - noticed})
            wall += gap
        return wall + end - begin, seconds, self._zero + end
