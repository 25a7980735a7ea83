"""A trial of one preset: what it may use, how long it may take, and what became of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlpar.jobs.launch import JobFailed
from dlpar.lab.sweep import run_all

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment
    from dlpar.jobs.run import Run
    from dlpar.lab.timing import Timing


LIMIT = 90.0
"""Seconds after which a preset is given up: a whole lab is to run in half of that."""

LABS = ("agreement", "servers", "neighbours", "growth", "data_parallel", "splits", "grids")
"""Modules that hold the trials."""

_all: list[Trial] = []


class GivenUp(RuntimeError):
    """A preset took too long."""


class Trial(NamedTuple):
    """One preset and what it must show."""

    lab: str
    """``00`` to ``10``."""
    preset: str
    """Its name in :mod:`dlpar.course.presets`."""
    belief: str
    """What it refutes, or is there to show."""
    attempt: Callable[[Stage], tuple[bool, str]]
    """``attempt(stage)``: runs the preset; whether it held, and the figures in a sentence."""


class Result(NamedTuple):
    """How a trial went."""

    lab: str
    preset: str
    belief: str
    """As of the trial."""
    world: str
    """Worlds that were used, or ``computed``."""
    seconds: float
    """Of the wall clock."""
    held: bool
    said: str
    """The figures, or what went wrong."""


def trial(lab: str) -> Callable[[Callable], Callable]:
    """Make a trial of a function that is called as its preset, and says in its first line what that refutes."""

    def take(attempt: Callable[[Stage], tuple[bool, str]]) -> Callable:
        _all.append(Trial(lab, attempt.__name__, attempt.__doc__.splitlines()[0].rstrip("."), attempt))
        return attempt

    return take


def trials(labs: Sequence[str] = ()) -> list[Trial]:
    """Those of some labs, such as ``["00", "03"]``, in their order; by default all.

    Raises
    ------
    ValueError
        If there is no such lab.
    """
    for name in LABS:
        import_module(f"dlpar.course.rehearsal.{name}")
    known = sorted({each.lab for each in _all})
    if unknown := [lab for lab in labs if lab not in known]:
        raise ValueError(f"got {unknown[0]!r}, allowed is any of {', '.join(known)}")
    return sorted((each for each in _all if not labs or each.lab in labs), key=lambda each: each.lab)


def rehearse(chosen: Sequence[Trial], limit: float = LIMIT) -> Iterator[Result]:
    """Try one after the other; whatever happens in one, the next is tried.

    Jobs at work end with the trial they belong to, also when it is interrupted.
    """
    stage, lab = None, ""
    try:
        for each in chosen:
            if each.lab != lab:  # runs of one lab may serve several of its trials
                if stage:
                    stage.close()
                stage, lab = Stage(), each.lab
            yield _result(each, stage, limit)
    finally:
        if stage:
            stage.close()


def _result(each: Trial, stage: Stage, limit: float) -> Result:
    began = time.monotonic()
    stage.begin(began + limit)
    try:
        held, said = each.attempt(stage)
    except GivenUp:
        held, said = False, f"given up after {limit:g} s"
    except JobFailed as error:
        held, said = False, f"the job failed: {_first_line(error)}"
    except Exception as error:  # a rehearsal goes on, whatever is wrong with one preset
        held, said = False, f"{type(error).__name__}: {_first_line(error)}"
    took = time.monotonic() - began
    return Result(each.lab, each.preset, each.belief, stage.world, took, bool(held), said)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["it says nothing"])[0]


class Stage:
    """What a trial works with: runs, times of collectives, a folder for platforms in files."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rehearsal-")
        self._runs: list[tuple[Experiment, Run]] = []
        self.begin(float("inf"))

    def begin(self, end: float) -> None:
        """Another trial starts; it is given up at `end`, on the monotonic clock."""
        self._end, self._worlds = end, []

    @property
    def folder(self) -> str:
        """A folder that goes with the stage."""
        return self._folder.name

    @property
    def world(self) -> str:
        """Worlds that were used: ``real``, or ``real, simulated``."""
        return ", ".join(dict.fromkeys(self._worlds)) or "computed"

    def says(self, world: str) -> None:
        """Note a world that a trial uses by itself."""
        self._worlds.append(world)

    def run(self, experiments: Any) -> Any:
        """Finished runs of an experiment, a sequence or a mapping of them, in that form; each is run once a lab.

        Raises
        ------
        JobFailed
            If one is not done.
        GivenUp
            If time is over.
        """
        if isinstance(experiments, Mapping):
            return dict(zip(experiments, self.run(list(experiments.values()))))
        if not isinstance(experiments, (list, tuple)):
            return self.run([experiments])[0]
        self._worlds += [each.cluster.world for each in experiments]
        missing = [each for each in experiments if self._known(each) is None]
        for outcome in run_all(missing, stop=lambda: time.monotonic() > self._end):
            if outcome.status in ("stopped", "not run"):
                raise GivenUp
            if outcome.status != "done":
                raise JobFailed(outcome.reason)
            self._runs.append((outcome.experiment, outcome.run))
        return [self._known(each) for each in experiments]

    def collectives(self, arguments: Mapping[str, Any]) -> list[Timing]:
        """What :func:`dlpar.lab.time_collectives` finds."""
        from dlpar.lab.timing import time_collectives

        self.says(arguments["world"])
        return time_collectives(**arguments, timeout=max(1.0, min(LIMIT, self._end - time.monotonic())))

    def close(self) -> None:
        """Remove the folder; runs stay, as those of a lab do."""
        self._folder.cleanup()

    def _known(self, experiment: Experiment) -> Run | None:
        return next((run for each, run in self._runs if each == experiment), None)


# ---- what several trials ask of a run ---------------------------------------------


def pace(run: Run) -> float:
    """Seconds from one global step to the next, on average."""
    seconds = run.curve["seconds"]
    return (seconds.iloc[-1] - seconds.iloc[0]) / (len(seconds) - 1)


def apart(first: Run, *others: Run) -> float:
    """The largest relative difference of some runs' losses from the first's; NaN if one is NaN, or a run is shorter."""
    right = first.curve["loss"]
    return float(np.max([(run.curve["loss"] / right - 1).abs().to_numpy().max() for run in others]))


def most_held(run: Run, kind: str) -> int:
    """Bytes of a kind that a rank held when it held most."""
    return max(record["memory"][kind] for _, record in run.records() if "memory" in record)


def step_s(run: Run) -> float:
    """Seconds of a global step, from samples a second."""
    return run.experiment.global_batch / run.summary["samples_per_s"]
