"""Figures of one panel, which take the records of one run folder one by one."""

from __future__ import annotations

from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.lab.labels import run_labels, this_label
from dlpar.lab.live.consensus import Consensus
from dlpar.lab.live.convergence import Convergence, loss_title
from dlpar.lab.live.lanes import Lanes
from dlpar.lab.live.staleness import Lead, Staleness
from dlpar.lab.live.throughput import Throughput
from dlpar.lab.live.timeline import Timeline
from dlpar.lab.live.waiting import Waiting
from dlpar.lab.live_plot import LivePlot

KEPT = 5
"""Earlier runs that stay in the figure; more could not be distinguished."""


class Board:
    """Figures that apply to the current run; the first also has the losses of earlier runs."""

    def __init__(self, experiment: Experiment) -> None:
        self.convergence, self.throughput = Convergence(experiment), Throughput(experiment)
        self.staleness, self.timeline = Staleness(experiment), Timeline(experiment)
        self.waiting = Waiting(experiment)
        lag = (self.throughput, self.staleness, Lead(experiment), Lanes(experiment))
        self._below = (*lag, self.timeline, self.waiting, Consensus(experiment))
        self.shown: dict[str, Experiment] = {}
        self.choose(experiment)
        self._forget(experiment)

    def choose(self, experiment: Experiment) -> None:
        """Show the figures that apply to an experiment."""
        self._curves = [self.convergence] if self.convergence.fits(experiment) else []
        self.active = [figure for figure in self._below if figure.fits(experiment)]
        self._by_worker = [figure for figure in self.active if hasattr(figure, "rank_step")]
        self._by_step = [figure for figure in (*self._curves, *self.active) if hasattr(figure, "step")]

    @property
    def plots(self) -> dict[str, LivePlot]:
        """Visible figures, by the titles of their tabs."""
        return {figure.title: figure.plot for figure in (*self._curves, *self.active)}

    @property
    def all_plots(self) -> list[LivePlot]:
        """All figures, visible or not."""
        return [figure.plot for figure in (self.convergence, *self._below)]

    def begin(self, experiment: Experiment, key: str) -> None:
        """Start run `key`; the run shown before becomes an earlier run."""
        comparable = {
            k: e
            for k, e in self.shown.items()
            if loss_title(e) == loss_title(experiment) and self.convergence.fits(e)
        }
        kept = dict(list(comparable.items())[:KEPT])
        self.shown = {key: experiment, **kept}
        self.choose(experiment)
        self._forget(experiment)
        labels = run_labels(experiment, kept)
        for figure in self._curves:
            figure.begin(experiment, key, this_label(experiment, kept), labels)
        for figure in self.active:
            figure.begin(experiment)
        for plot in self.plots.values():
            plot.set_live(True)
            plot.set_caption("Starting …")

    def _forget(self, experiment: Experiment) -> None:
        self.steps = GlobalSteps(experiment.workers, experiment.free_running)
        self.ranks: dict[int, dict[str, Any]] = {}
        self.slip: float | None = None

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the current run's latest test; None if nothing is trained."""
        return self.convergence.accuracy if self._curves else None

    def forget_earlier(self) -> None:
        """Remove earlier runs from the figure; their folders stay."""
        self.shown = dict(list(self.shown.items())[:1])
        self.convergence.forget_earlier()
        self.flush()

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Take a record of a rank."""
        kind = record["k"]
        if kind == "step":
            for figure in self._by_worker:
                figure.rank_step(rank, record)
            self.steps.add(rank, record)
        elif kind == "eval":
            for figure in self._curves:
                figure.test(record, self.steps.last)
            self.timeline.rank_step(rank, record)
        elif kind == "rank":
            self.ranks[rank] = record
        elif kind == "event" and record["name"] == "served":
            self.waiting.served(rank, record)
        if record.get("slip") is not None:
            self.slip = max(self.slip or 0.0, record["slip"])

    def settle(self, ended: bool) -> None:
        """Bring axes and captions up to date."""
        for done in self.steps.ready(ended):
            for figure in self._by_step:
                figure.step(done)
        for figure in (*self._curves, *self.active):
            figure.settle(self.steps, ended)
        if ended:
            for plot in self.plots.values():
                plot.set_live(False)
                if plot.caption == "Starting …":
                    plot.set_caption("The run ended before its first step.")

    def flush(self, alive: bool = False) -> bool:
        """Send new points to the page; returns whether there were any."""
        sent = [plot.flush(alive) for plot in self.plots.values()]
        return any(sent)
