"""Goodput of a run: the time of a mean worker by kind, and the share of it spent on steps that count.

The kinds are those of simulated jobs (:mod:`dlpar.worlds.simulated.failures`).  Standard library only.

    computing      all that a step does besides; an exchange behind it counts as computing
    communicating  exchanges that nothing hides
    waiting        for other ranks: in exchanges, before the first step and after the last
    snapshot       copies of the state
    detecting      from the last step before a death until others notice it, or until the job has ended
    restarting     until the others go on, or until the next attempt's first step; then the time of empty seats
    done again     steps that a later attempt repeats, and the computing of interrupted steps
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from dlpar.jobs.tail import Record, attempts_in, end_in, lines_of, rank_of, source_of
from dlpar.worlds.simulated.failures import LOST, USEFUL

Ended = tuple[float, dict[int, int]]
"""Unix time at which an attempt ended, or NaN; and each rank's first step that later attempts repeat."""


def ended_in(folder: Path) -> list[Ended]:
    """Return the ends of a run's attempts but the last."""
    again, found = dict[int, int](), list[Ended]()
    *earlier, last = attempts_in(folder)
    for names in reversed(earlier):
        for name in filter(lambda name: name.startswith("rank"), last):
            for record in lines_of(folder / name):
                if record["k"] == "step":
                    rank = record["rank"] if "rank" in record else rank_of(source_of(name))
                    again[rank] = min(record["step"], again.get(rank, math.inf))
        found.append(((end_in(folder, names) or {}).get("at", math.nan), dict(again)))
        last = names
    return found[::-1]


class Part:
    """Steps of one rank in an attempt: those that count, or those that are done again."""

    def __init__(self) -> None:
        self.first, self.last, self.sums = math.inf, -math.inf, Counter[str]()

    def add(self, steps: Sequence[Record]) -> None:
        """Add steps, in any order."""
        self.first = min([self.first, *(s["t"] - s["compute"] - s["comm"] - s["wait"] for s in steps)])
        self.last = max([self.last, *(s["t"] for s in steps)])
        for name in ("compute", "comm", "wait", *LOST):
            self.sums[name] += sum([s.get(name, 0.0) for s in steps])

    def spent(self, seconds: float, is_again: bool) -> Counter[str]:
        """Divide the seconds of its steps by kind."""
        compute, comm, wait, *lost = (self.sums[name] for name in ("compute", "comm", "wait", *LOST))
        spent, left = Counter(dict(zip(LOST, lost))), seconds - sum(lost)
        if is_again:
            spent["done again"] += left
            return spent
        exposed = min(1.0, max(0.0, left - compute) / (comm + wait)) if comm + wait else 0.0
        useful = left - exposed * (comm + wait), exposed * comm, exposed * wait
        return Counter(dict(zip(USEFUL, useful)) | spent)


class TimeSpent:
    """Accumulate the time of a run's workers by kind, from the records of its ranks.

    Parameters
    ----------
    ended : sequence of Ended
        Attempts before the last.
    """

    def __init__(self, ended: Sequence[Ended] = ()) -> None:
        self._ended, self._number = ended, 0
        self._wall, self._seconds = 0.0, Counter[str](dict.fromkeys((*USEFUL, *LOST), 0.0))
        self._stopped = self._over = math.nan  # Unix times of the last step's end and of the attempt's
        self._begin()

    def _begin(self) -> None:
        """Begin an attempt."""
        self._end, self._again = [*self._ended, (math.nan, {})][min(self._number, len(self._ended))]
        self._parts: defaultdict[int, tuple[Part, Part]] = defaultdict(lambda: (Part(), Part()))
        self._roles, self._dead = defaultdict[str, set[int]](set), set[int]()
        self._zero = math.nan  # Unix time of second 0

    def header(self, rank: int, record: Record) -> None:
        """Take a rank's role; the first header of an attempt begins it."""
        if record.get("attempt", 0) > self._number:
            self._wall, self._seconds, self._stopped = self.result()
            self._over, self._number = self._end if self._parts else self._over, record["attempt"]
            self._begin()
        self._roles[record["role"]].add(rank)

    def steps(self, rank: int, steps: Sequence[Record]) -> None:
        """Take steps of a rank."""
        until = self._again.get(rank, min(self._again.values(), default=math.inf))
        for is_again in (False, True):
            own = [step for step in steps if (step["step"] >= until) == is_again]
            if own:
                self._parts[rank][is_again].add(own)

    def event(self, record: Record) -> None:
        """Take an event of any rank."""
        if record["name"] == "start":
            self._zero = record.get("at", math.nan) - record["t"]
        elif record["name"] == "death":
            self._dead.add(record["dead"] if "dead" in record else record["rank"])

    def result(self) -> tuple[float, Counter[str], float]:
        """Return the seconds from the first step to the last, those of a mean worker by kind, and when it stopped.

        All kinds add up to the first.  The third is the Unix time of the last step's end, or NaN.
        """
        wall, seconds = self._wall, self._seconds.copy()
        if not self._parts:
            return wall, seconds, self._stopped
        begin = min(part.first for both in self._parts.values() for part in both)
        end = max(part.last for both in self._parts.values() for part in both)
        spent, seats = Counter[str](), len(self._roles["worker"]) or len(self._parts)
        for rank, (kept, again) in self._parts.items():
            first, last = min(kept.first, again.first), max(kept.last, again.last)
            parted = max(first, kept.last)
            spent.update(kept.spent(parted - first, False))
            spent.update(again.spent(last - parted, True))
            before = 0.0 if rank in self._roles["spare"] else first - begin
            spent["waiting"] += before + (0.0 if rank in self._dead else end - last)
        spent["restarting"] += max(0.0, seats * (end - begin) - spent.total())
        seconds.update({kind: total / seats for kind, total in spent.items()})
        gap = self._zero + begin - self._stopped
        if gap > 0:  # both are known
            noticed = min(gap, max(0.0, self._over - self._stopped))
            seconds.update({"detecting": noticed, "restarting": gap - noticed})
            wall += gap
        return wall + end - begin, seconds, self._zero + end
