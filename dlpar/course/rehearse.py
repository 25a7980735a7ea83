"""Rehearsal of labs: run each preset before a class does, and check that it shows the lab's claims.

    rows of the labs ─► rehearse ─► a Result for each row ─► `dlpar rehearse` prints a line

A row (:class:`Row`) names experiments, the belief that they test, and a check of their runs.
The tables of rows are in :mod:`dlpar.course.labs`. Notebooks run the same experiments.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from dlpar import Experiment, JobFailed, Run
from dlpar.jobs.control_groups import cores
from dlpar.lab.figures.cost import time_collectives
from dlpar.lab.sweep import run_all
from dlpar.systems.record import apart, rate
from dlpar.worlds.simulated.failures import FailingJob

LIMIT = 90.0
"""Seconds after which a row is abandoned. A whole lab should need half as long."""

SIMULATED = {"world": "simulated", "platform": "cpu-1gbe"}
"""Cluster for mathematical questions, and for many machines on a slow network: one process plays all ranks."""

Shown = tuple[bool, str]
"""Whether runs show the expected result, and a sentence with their figures."""


class Row(NamedTuple):
    """One preset of a lab and the result that it must show.

    Attributes
    ----------
    preset : callable
        Returns what a notebook runs: an experiment, a list or mapping of them, or :class:`Collectives`.
    belief : str
        The belief that the runs refute, in quotation marks, or the fact that they show.
    shows : callable
        ``shows(runs)`` returns a :data:`Shown`. `runs` has the form of the experiments.
    runs : callable, optional
        Returns the experiments of the rehearsal, if they differ from the preset.
    """

    preset: Callable[..., Any]
    belief: str
    shows: Callable[[Any], Shown]
    runs: Callable[[], Any] | None = None

    @property
    def name(self) -> str:
        """Preset's name in notebooks."""
        return self.preset.__name__


class Collectives(dict[str, Any]):
    """Arguments of :func:`dlpar.lab.time_collectives`, as a preset."""


class Result(NamedTuple):
    """Outcome of one row of a rehearsal.

    Attributes
    ----------
    lab : str
        Number of the lab, such as ``07b``.
    preset, belief : str
        Name of the row's preset, and its belief.
    world : str
        Worlds that were used, or ``computed``.
    seconds : float
        Seconds on the wall clock.
    held : bool
        Whether the runs show the expected result.
    said : str
        The figures, or the reason for a failure.
    """

    lab: str
    preset: str
    belief: str
    world: str
    seconds: float
    held: bool
    said: str


def rehearse(rows: Iterable[tuple[str, Row]], limit: float = LIMIT, seed: int = 0) -> Iterator[Result]:
    """Try rows one after the other. A failure of one row does not stop the others.

    Running jobs end with their row, even if the row is interrupted.

    Parameters
    ----------
    rows : iterable of (str, Row)
        Rows, each with the number of its lab.
    limit : float
        Seconds for one row.
    seed : int
        Number that is added to every experiment's seed.
    """
    for lab, own in groupby(rows, key=lambda each: each[0]):
        lab_runs = LabRuns(seed)
        for _, row in own:
            began = time.monotonic()
            lab_runs.end, lab_runs.worlds = began + limit, []
            try:
                held, said = row.shows(lab_runs.run((row.runs or row.preset)()))
            except TimeoutError:
                held, said = False, f"given up after {limit:g} s"
            except Exception as error:  # an error in one row must not stop the next
                kind = "the job failed" if isinstance(error, JobFailed) else type(error).__name__
                held, said = False, f"{kind}: {(str(error).strip().splitlines() or ['no reason given'])[0]}"
            worlds = ", ".join(dict.fromkeys(lab_runs.worlds)) or "computed"
            yield Result(lab, row.name, row.belief, worlds, time.monotonic() - began, bool(held), said)


class LabRuns:
    """Runner of a lab's experiments. It runs each one once, and adds `seed` to the experiment's seed."""

    def __init__(self, seed: int = 0) -> None:
        self._runs: dict[str, Run] = {}
        self._seed, self.end = seed, math.inf  # on the monotonic clock: then a row is abandoned
        self.worlds: list[str] = []

    def run(self, asked: Any) -> Any:
        """Return finished runs of experiments, or times of collectives, in the request's form.

        Any other preset returns a fact that it has measured on this machine.

        Raises
        ------
        JobFailed
            If a run is not done.
        TimeoutError
            If the time limit has passed.
        """
        if isinstance(asked, Collectives):
            self.worlds.append(asked["world"])
            return time_collectives(**asked, timeout=max(1.0, min(LIMIT, self.end - time.monotonic())))
        if isinstance(asked, Mapping):
            return dict(zip(asked, self.run(list(asked.values()))))
        if isinstance(asked, Experiment):
            return self._finished([asked])[0]
        if not isinstance(asked, (list, tuple)):
            self.worlds.append("simulated" if isinstance(asked, FailingJob) else "real")
            return asked
        if all(isinstance(each, Experiment) for each in asked):
            return self._finished(asked)
        return [self.run(each) for each in asked]

    def _finished(self, experiments: Sequence[Experiment]) -> list[Run]:
        self.worlds += [each.cluster.world for each in experiments]
        experiments = [each.replace(seed=each.seed + self._seed) for each in experiments]
        wanted = [each.to_json() for each in experiments]
        missing = {key: each for each, key in zip(experiments, wanted) if key not in self._runs}
        for outcome in run_all(list(missing.values()), stop=lambda: time.monotonic() > self.end):
            if outcome.status in ("stopped", "not run"):
                raise TimeoutError
            if outcome.status != "done":
                raise JobFailed(outcome.reason)
            self._runs[outcome.experiment.to_json()] = outcome.run
        return [self._runs[key] for key in wanted]


# ---- measures of runs ---------------------------------------------------------------


def pace_ms(run: Run) -> float:
    """Return the mean milliseconds from one global step to the next."""
    return 1e3 * run.experiment.mean_batch / rate(run)


def step_ms(run: Run) -> float:
    """Return the milliseconds of a global step, computed from samples per second."""
    return 1e3 * run.experiment.mean_batch / run.summary["samples_per_s"]


def accuracy(run: Run) -> float:
    """Return the share of held-out samples that are classified correctly."""
    return run.summary["accuracy"]


def speedup(one: Run, many: Run) -> float:
    """Return the ratio of the runs' samples per second: `many` to `one`."""
    return many.summary["samples_per_s"] / one.summary["samples_per_s"]


def most_held(run: Run, *kinds: str) -> int:
    """Return the maximum number of bytes that a rank held at once, for some or all kinds of memory."""
    held = (record["memory"] for _, record in run.records() if "memory" in record)
    return max(sum(each[kind] for kind in kinds or each) for each in held)


# ---- checks and variants of several labs --------------------------------------------


def measured(
    measure: Callable[[Run], float], holds: Callable[..., Any], said: str, relative: bool = False
) -> Callable[[Any], Shown]:
    """Return a check of one measure of each run.

    Parameters
    ----------
    measure : callable
        Maps a run to its measure.
    holds : callable
        Maps the values of all runs to whether they show the expected result.
    said : str
        Format of the sentence, with a place for each value.
    relative : bool, default False
        Divide values by the first run's value, which is then left out.
    """

    def shows(runs: Any) -> Shown:
        runs = runs.values() if isinstance(runs, Mapping) else [runs] if isinstance(runs, Run) else runs
        values = [measure(run) for run in runs]
        if relative:
            values = [value / values[0] for value in values[1:]]
        return bool(holds(*values)), said.format(*values)

    return shows


def learns(least: float) -> Callable[[Run], Shown]:
    """Return a check that a run classifies at least this share of held-out samples correctly."""
    return measured(accuracy, lambda share: share >= least, "{:.1%} held-out accuracy")


def same_losses(most: float) -> Callable[[Any], Shown]:
    """Return a check that all runs' losses differ by less than this share of the first run's."""

    def shows(runs: Any) -> Shown:
        worst = apart(*(runs.values() if isinstance(runs, Mapping) else runs))
        return worst < most, f"losses differ by at most {worst:.0e}"

    return shows


def cores_limit(runs: Sequence[Run], share: float) -> Shown:
    """Return a check that the speed-up is below this share of the last run's ranks.

    The speed-up compares the last run with the first, which has one rank.
    """
    most, gained = runs[-1].experiment.workers, speedup(runs[0], runs[-1])
    return gained < share * most, f"{most} ranks on {cores()} cores are {gained:.1f} times as fast as one"


def on(experiments: Iterable[Experiment], *workers: int) -> list[Experiment]:
    """Return a copy of each experiment for each number of workers."""
    return [each.replace(workers=n) for each in experiments for n in workers]
