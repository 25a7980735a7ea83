"""A figure of runs, fed record by record: by a panel while a run goes on, or to its end for a static figure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.jobs.tail import rank_of
from dlpar.lab import captions, theme
from dlpar.lab.drawing import Drawing
from dlpar.lab.figure import Figure, Names, Runs, finished
from dlpar.lab.labels import labels, with_world
from dlpar.lab.watch import in_order


class Shown(NamedTuple):
    """A run in a figure.

    Attributes
    ----------
    key : str
        Identifies the run; its traces' keys begin so.
    experiment : Experiment
        Settings of the run.
    name : str
        Name of the run, with its world unless that is the real one.
    number : int
        Place among the runs, from 0; it decides marker and dash.
    colour : str
        Colour of the run in all figures.
    """

    key: str
    experiment: Experiment
    name: str
    number: int
    colour: str

    @property
    def line(self) -> dict[str, Any]:
        """plotly attributes of the run's line; a simulated one is faint and broad."""
        return {"name": self.name, **theme.beside(self.colour, self.number, self.experiment.cluster.world)}


def shown(experiments: Sequence[Experiment], keys: Sequence[str], names: Names = None) -> list[Shown]:
    """Return how runs are shown that are compared: each by the settings in which it differs from the others."""
    names = names or (labels(experiments) if len(experiments) > 1 else ["all workers"])
    rows = zip(keys, experiments, names, theme.run_colours(experiments))
    return [Shown(key, e, with_world(name, e), n, colour) for n, (key, e, name, colour) in enumerate(rows)]


Reader = Callable[[float, float], Iterable[tuple[int, dict[str, Any]]]]
"""Reads the records of a window of time, with their ranks."""


class Plot(Drawing):
    """A figure of one run or several; the last one begun is in front, and the records that come are its.

    Attributes
    ----------
    title : str
        Title of its tab.
    pause : float
        Seconds between two drawings of a run that goes on.
    runs : dict of str to Shown
        Runs in the figure, by their keys, in the order in which they began.
    kept : dict of str to Any
        State that the figure keeps of each run, by the same keys.
    """

    title: ClassVar[str] = ""
    pause: ClassVar[float] = 0.0

    def __init__(self, logarithmic: bool = False) -> None:
        super().__init__(logarithmic)
        self.runs: dict[str, Shown] = {}
        self.kept: dict[str, Any] = {}

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether the figure has something to show of such a run."""
        return True

    @property
    def front(self) -> Shown:
        """The run that began last."""
        return next(reversed(self.runs.values()))

    def begin(self, run: Shown) -> None:
        """Add a run, in front of the others."""
        self.runs[run.key], self._drawn = run, 0.0

    def forget(self, key: str) -> None:
        """Remove a run that is not in front."""
        self.runs.pop(key, None)
        self.kept.pop(key, None)
        self.remove(f"{key} ")

    def is_due(self, ended: bool) -> bool:
        """Return whether to draw now, because the last drawing is `pause` old or the run has ended."""
        before, now = self._drawn, time.monotonic()
        due = ended or now - before >= self.pause
        self._drawn = now if due else before
        return due

    def say(self, sentence: str) -> None:
        """Change the sentence under the figure, and add how many workers are drawn if some are left out."""
        self.set_caption(captions.shown_workers(self.front.experiment, sentence))

    def worlds(self) -> list[str]:
        """Worlds of the runs."""
        return [run.experiment.cluster.world for run in self.runs.values()]

    def rename(self, key: str, name: str) -> None:
        """Give a run another name."""
        old, self.runs[key] = self.runs[key].name, self.runs[key]._replace(name=name)
        for trace, (spec, _) in self._traces.items():
            if trace.startswith(f"{key} "):
                self.restyle(trace, name=spec["style"]["name"].replace(old, name))

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Take a worker's step, a test on held-out samples, or an event of a rank."""

    def step(self, done: GlobalStep) -> None:
        """Take a finished global step."""

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Bring axes and sentence up to date."""

    def look(self, end: float, between: Reader) -> None:
        """Show the run in front as it was at a moment after its end; `between` reads records of a window of time."""


class Board:
    """Figures that are fed with the records of one run after the other.

    Attributes
    ----------
    steps : GlobalSteps
        Global steps of the run in front.
    ranks : dict of int to dict
        What each rank of it said about itself.
    slip : float or None
        Its largest lag of the wall clock behind the clock of its figures, in seconds; None on the wall clock.
    accuracy : float or None
        Its latest accuracy on held-out samples.
    goal : float
        Held-out accuracy to be reached.
    reached : float or None
        Seconds of its first test with that accuracy; None if it has not come to it.
    """

    def __init__(self, plots: Sequence[Plot], goal: float = math.inf) -> None:
        self.plots, self.goal = list(plots), goal

    def begin(self, run: Shown) -> None:
        """Add a run to the figures that fit it; the records that follow are its."""
        experiment = run.experiment
        self.steps = GlobalSteps(experiment.workers, experiment.sync.runs_free)
        self.ranks: dict[int, dict[str, Any]] = {}
        self.slip: float | None = None
        self.accuracy: float | None = None
        self.reached: float | None = None
        self.fed = [plot for plot in self.plots if plot.fits(experiment)]
        for plot in self.fed:
            plot.begin(run)

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Take a record of a rank."""
        kind = record["k"]
        if kind == "step":
            self.steps.add(rank, record)
        elif kind == "rank":
            self.ranks[rank] = record
        elif kind == "eval":
            self.accuracy = record["accuracy"]
            if self.reached is None and self.accuracy is not None and self.accuracy >= self.goal:
                self.reached = record["t"]
        for plot in self.fed:
            plot.take(rank, record)
        if record.get("slip") is not None:
            self.slip = max(self.slip or 0.0, record["slip"])

    def settle(self, ended: bool) -> None:
        """Bring axes and sentences up to date."""
        ready = self.steps.ready(ended)
        for plot in self.fed:
            for done in ready:
                plot.step(done)
            plot.settle(self.steps, ended)


def drawn(plot: Plot, runs: Runs, names: Names = None) -> Figure:
    """Feed a figure with whole runs, one after the other, and draw it.

    Raises
    ------
    ValueError
        If a run has no finished step, or the number of names is not that of the runs.
    """
    runs = finished(runs, names)
    board = Board([plot])
    for run, look in zip(runs, shown([run.experiment for run in runs], [run.id for run in runs], names)):
        board.begin(look)
        for _, source, record in in_order(run):
            board.take(rank_of(source), record)
        board.settle(ended=True)
    return plot.static()
