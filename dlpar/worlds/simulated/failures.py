"""Training with failures, simulated by events instead of messages.

The cost of a simulation is the same for any number of ranks.

A step takes a given number of seconds.  Failures follow the rules of runs with messages:

    end            a death ends all ranks at once; after detection and a restart, steps continue from the
                   last snapshot
    shrink, spare  survivors compute until the exchange where a rank is missing, and discard this step; they
                   repeat it without the dead replica, or with a spare in its place; the dead replica
                   returns after its restart
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, count

USEFUL = ("computing", "communicating", "waiting")
"""Kinds of useful time, in steps that count."""

LOST = ("snapshot", "detecting", "restarting", "done again")
"""Kinds of lost time, without training."""


def goodput(seconds: Mapping[str, float]) -> float | None:
    """Return the share of time spent on steps that count, or None if there is no time."""
    whole = sum(seconds.values())
    return sum(seconds[kind] for kind in USEFUL) / whole if whole else None


NEVER = 1e300
"""A time or number that no run reaches."""

MANY = 100_000
"""Deaths after which a run ends. A job that dies before each step or restart is done never gets further."""

Interval = int | Callable[[float, list[float]], int]
"""Steps between snapshots (0: none), or a policy that returns this number from the time and the past deaths.
"""


def poisson(mtbf: float, seed: int = 0) -> Iterator[float]:
    """Return an endless series of failure times with exponentially distributed gaps of this mean."""
    from dlpar.config.generator import generator  # here, because goodput alone needs no NumPy

    draw = generator(seed, "failures")
    return accumulate(draw.exponential(mtbf) for _ in count())


@dataclass
class Survived:
    """Result of a run: its steps, deaths and times.

    Attributes
    ----------
    wall : float
        Total seconds.
    steps, again : int
        Steps that count, and steps whose result was lost or discarded.
    deaths : list of float
        Times of the deaths.
    seconds : Counter of str
        Wall time of the average rank by kind, `USEFUL` and `LOST`. All kinds add up to `wall`.
    """

    wall: float = 0.0
    steps: int = 0
    again: int = 0
    deaths: list[float] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys((*USEFUL, *LOST), 0.0)))

    @property
    def goodput(self) -> float | None:
        """Return the share of all ranks' time spent on steps that count, or None if there is no time."""
        return goodput(self.seconds)

    @property
    def committed(self) -> float:
        """Return the share of started steps that count, or 0 if none has started."""
        return self.steps / max(1, self.steps + self.again)


@dataclass(frozen=True)
class FailingJob:
    """Job of several replicas, with its step times and the costs of its failures. Times are in seconds.

    Parameters
    ----------
    computing, communicating, waiting : float
        Parts of a step of all replicas.
    mtbf : float, default never
        M: mean seconds between the random failures of the job.
    regular : bool, default False
        Whether failures come at equal intervals instead.
    every : int or callable, default 0
        Steps between snapshots: see :data:`Interval`.
    snapshot : float, default 0
        δ: seconds for which a snapshot stops training.
    detecting, restarting : float, default 0
        Seconds from a failure until it is detected, and until the dead ranks are back.
    joining : float, default 0
        Seconds for which all replicas wait while a joining replica copies weights.
    on_death : str, default "end"
        ``end``, ``shrink`` or ``spare``.
    replicas : int, default 1
        Replicas of the model. A failure removes one.
    spares : int, default 0
        Replicas that stand by, if `on_death` is ``spare``.
    scaling : str, default "strong"
        ``strong``: survivors share the same global batch; ``weak``: each keeps its own batch.
    """

    computing: float
    communicating: float = 0.0
    waiting: float = 0.0
    mtbf: float = NEVER
    regular: bool = False
    every: Interval = 0
    snapshot: float = 0.0
    detecting: float = 0.0
    restarting: float = 0.0
    joining: float = 0.0
    on_death: str = "end"
    replicas: int = 1
    spares: int = 0
    scaling: str = "strong"

    @property
    def step(self) -> float:
        """Return the time of a step of all replicas, in seconds."""
        return self.computing + self.communicating + self.waiting

    def run(
        self, steps: float = NEVER, most: float = NEVER, seed: int = 0, deaths: Iterable[float] | None = None
    ) -> Survived:
        """Train until the last step, or until `most` deaths or somewhat more, :data:`MANY` in any case.

        Failures default to `mtbf`.
        """
        if deaths is None:
            deaths = (n * self.mtbf for n in count(1)) if self.regular else poisson(self.mtbf, seed)
        return _Life(self, iter(deaths), most).live(steps)


class _Life:
    """One run of a job, processed event by event."""

    def __init__(self, job: FailingJob, deaths: Iterator[float], most: float) -> None:
        self.job, self.out, self._deaths, self._most = job, Survived(), deaths, min(most, MANY)
        self._death = next(deaths, NEVER)
        self._back: list[float] = []  # when replicas that died return
        self._kept: Counter[str] = Counter()  # useful time since the last snapshot, which a death may destroy
        self._saved = 0
        self._plan()

    def live(self, steps: float) -> Survived:
        job, out = self.job, self.out
        while out.steps < steps and len(out.deaths) < self._most and min(self._death, steps) < NEVER:
            while self._missing() >= job.replicas:  # no replica is left that has the weights
                self._lose(max(0.0, self._back.pop(0) - out.wall), "restarting")
            self._join()
            parts = self._parts()
            length = parts.total()
            if not self._back and isinstance(job.every, int) and job.every and out.steps == self._saved:
                self._train_cycles(parts, steps)
            ahead = min(steps, self._next) - out.steps
            survived = max(0, (self._death - out.wall) // length)
            until_joined = math.ceil((self._back[0] - out.wall) / length) if self._missing() else NEVER
            whole = int(min(ahead, survived, until_joined))
            self._train(parts, whole)
            if whole == ahead and out.steps < steps:
                self._snapshot()
            elif whole == survived < until_joined:
                self._die(parts)
        self._keep()
        return out

    def _train(self, parts: Counter[str], steps: int) -> None:
        self.out.steps += steps
        for kind, seconds in parts.items():
            self._spend(kind, steps * seconds)

    def _train_cycles(self, parts: Counter[str], steps: float) -> None:
        """Train the steps of all snapshots before the next event at once, for speed."""
        cycle = self.job.every * parts.total() + self.job.snapshot
        left = (steps - self.out.steps - 1) // self.job.every
        whole = int(max(0, min((self._death - self.out.wall) // cycle, left)))
        self._train(parts, whole * self.job.every)
        self._save(whole * self.job.snapshot)

    def _spend(self, kind: str, seconds: float) -> None:
        self.out.wall += seconds
        (self._kept if kind in USEFUL else self.out.seconds)[kind] += seconds

    def _missing(self) -> int:
        """Return the number of missing replicas that have no spare."""
        return max(0, len(self._back) - self.job.spares)

    def _parts(self) -> Counter[str]:
        """Return the time of a step by kind, in seconds of the average replica. Missing replicas restart."""
        job, share = self.job, 1 - self._missing() / self.job.replicas
        longer = 1 / share if job.scaling == "strong" else 1.0
        whole = dict(zip(USEFUL, (job.computing * longer, job.communicating, job.waiting)))
        useful = {kind: share * seconds for kind, seconds in whole.items()}
        return Counter({**useful, "restarting": (1 - share) * sum(whole.values())})

    def _join(self) -> None:
        """Take back restarted replicas.

        A replica that fills a gap copies weights, and all wait for it.
        """
        while self._back and self._back[0] <= self.out.wall:
            self._spend("restarting", self.job.joining * bool(self._missing()))
            self._back.pop(0)

    def _snapshot(self) -> None:
        if self.job.on_death == "end" and self._death < self.out.wall + self.job.snapshot:
            return self._end("snapshot")
        self._save(self.job.snapshot)

    def _save(self, seconds: float) -> None:
        self._spend("snapshot", seconds)
        self._keep()
        self._plan()

    def _keep(self) -> None:
        """Commit the trained steps permanently."""
        self.out.seconds.update(self._kept)
        self._kept.clear()
        self._saved = self.out.steps

    def _plan(self) -> None:
        """Choose the next snapshot's step."""
        every = self.job.every
        steps = every(self.out.wall, list(self.out.deaths)) if callable(every) else every
        self._next = self.out.steps + steps if steps else NEVER

    def _count(self) -> None:
        self.out.deaths.append(self._death)
        self._death = next(self._deaths, NEVER)

    def _die(self, parts: Counter[str]) -> None:
        self.out.again += 1
        if self.job.on_death == "end":
            return self._end("done again")
        for kind, seconds in parts.items():
            self._spend(kind if kind not in USEFUL else "done again", seconds)
        self._spend("detecting", self.job.detecting)
        before, died = self._missing(), len(self._back)
        while self._death < self.out.wall:
            self._back.append(self._death + self.job.detecting + self.job.restarting)
            self._count()
        # Spares have taken over, unless as many are missing as have died.
        self._spend("restarting", self.job.joining * (len(self._back) - died > self._missing() - before))

    def _end(self, kind: str) -> None:
        """End all ranks in a step or a snapshot. Restart them from the last snapshot."""
        detect, restart = self.job.detecting, self.job.restarting
        self._lose(self._death - self.out.wall, kind)
        self._count()
        while (left := self._death - self.out.wall) < detect + restart and len(self.out.deaths) < self._most:
            self._spend("detecting", min(left, detect))
            self._spend("restarting", max(0.0, left - detect))
            self._count()
        self._spend("detecting", detect)
        self._spend("restarting", restart)
        self._plan()

    def _lose(self, seconds: float, kind: str) -> None:
        """Drop the steps since the last snapshot, after this many more seconds of a kind."""
        self._spend(kind, seconds)
        self.out.seconds["done again"] += self._kept.total()
        self._kept.clear()
        self.out.again += self.out.steps - self._saved
        self.out.steps = self._saved
