"""Live figure of throughput (samples/s): of all workers together, of each rank, and predicted."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.lab import captions, theme
from dlpar.lab.live_plot import LivePlot, Series
from dlpar.theory import predict

WINDOW = 0.25
"""Seconds of the first windows on the wall clock; doubled as a run gets longer."""


NAMED = 8
"""Most workers that the legend names, so that it never scrolls; of more, hovering shows the rank of a line."""

COLUMNS = ("seconds", "samples/s")
AT = {"x": "seconds", "y": "samples/s"}


class Rate:
    """Samples a second over windows, whose length doubles when there are too many of them.

    Neighbouring windows are merged, weighted by their length, so every sample stays counted.

    Parameters
    ----------
    series : Series
        Takes the ends of windows (seconds) and their rates (samples/s).
    window : float, default `WINDOW`
        Seconds of the first windows; 0: one window a step, for runs that may take a millisecond of their clock.
    """

    def __init__(self, series: Series, window: float = WINDOW) -> None:
        self.series, self.window = series, window
        self.start: float | None = None
        self._since: float | None = None
        self._samples = 0

    def add(self, seconds: float, samples: int, began: float) -> None:
        """Take `samples` finished at `seconds`; `began` is the beginning of the first step."""
        if self._since is None:
            self.start = self._since = began
        self._samples += samples
        if seconds - self._since >= self.window:
            self.close(seconds)

    def close(self, seconds: float) -> None:
        """End the current window."""
        if not self._samples or seconds <= self._since:
            return
        if len(self.series) >= self.series.limit - 1:
            self._merge()
        self.series.add((seconds, self._samples / (seconds - self._since)))
        self._since, self._samples = seconds, 0

    def _merge(self) -> None:
        ends, rates = self.series.rows.T
        lengths = np.diff(ends, prepend=self.start)
        odd = len(ends) % 2
        samples = (rates * lengths)[odd:].reshape(-1, 2).sum(1)
        merged = np.stack([ends[odd:][1::2], samples / lengths[odd:].reshape(-1, 2).sum(1)], axis=1)
        self.series.replace(np.concatenate([self.series.rows[:odd], merged]))
        self.window = 2 * (self.window or lengths.mean())


class Throughput:
    """Throughput over time; the vertical axis grows by doubling."""

    title = "Throughput"

    @staticmethod
    def fits(_experiment: Experiment) -> bool:
        """Return whether to show it: always."""
        return True

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.plot = LivePlot(self._layout(1.0, 1000.0))

    def begin(self, experiment: Experiment) -> None:
        """Start a run."""
        for key in ("predicted", "all", *(f"rank {r}" for r in range(getattr(self, "ranks", 0)))):
            self.plot.remove(key)
        self.experiment, self.ranks = experiment, theme.workers(experiment)
        self._end, self._top = 1.0, 1000.0
        self.plot.refigure(self._layout(self._end, self._top))
        colour, world = theme.scheme_colour(experiment.sync.scheme), experiment.cluster.world
        name = "all, simulated" if world == "simulated" else "all"
        self.total = self._rate("all", {**theme.of_world(theme.run_line(colour), world), "name": name})
        found = predict(experiment)
        self.predicted = experiment.global_batch / found.seconds if found else None
        self.kind = found.kind if found else "exact"
        if self.predicted is not None:
            self.line = self.plot.add_trace("predicted", theme.predicted_line("predicted"), COLUMNS, AT)
        self.total_began: float | None = None
        self.by_rank = {}
        for rank in range(self.ranks if self.ranks > 1 else 0):
            line = theme.rank_line(rank, experiment.workers > NAMED)
            self.by_rank[rank] = self._rate(f"rank {rank}", {**line, "name": f"rank {rank}"})

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step."""
        seconds = record["t"]
        began = seconds - record["compute"] - record["comm"] - record["wait"]
        if self.total_began is None or began < self.total_began:
            self.total_began = began
        rate = self.by_rank.get(rank)
        if rate:
            rate.add(seconds, record["samples"], began)

    def step(self, done: GlobalStep) -> None:
        """Take a finished global step."""
        self.total.add(done.seconds, done.batch, self.total_began)

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Bring axes and caption up to date."""
        last = steps.last
        if last is None:
            return
        if ended:
            for rate in (self.total, *self.by_rank.values()):
                rate.close(last.seconds)
        if not len(self.total.series):
            return
        newest = self.total.series.rows[-1, 1]
        self._end = theme.rounded_up(last.seconds) if ended else theme.doubled(last.seconds, self._end)
        self._top = theme.doubled(max(newest, self.predicted or 0.0), self._top)
        if self.predicted is not None:
            self.line.replace(np.array([(0.0, self.predicted), (self._end, self.predicted)]))
        self.plot.set_range("xaxis", 0, self._end)
        self.plot.set_range("yaxis", 0, self._top)
        rates = {rank: rate.series.rows[-1, 1] for rank, rate in self.by_rank.items() if len(rate.series)}
        sentence = captions.throughput(newest, rates, self.experiment, self.predicted, self.kind)
        self.plot.set_caption(captions.shown_workers(self.experiment, sentence))

    def _rate(self, key: str, style: dict[str, Any]) -> Rate:
        window = WINDOW if self.experiment.cluster.world == "real" else 0.0
        return Rate(self.plot.add_trace(key, style, COLUMNS, AT, limit=300), window)

    def _layout(self, end: float, top: float) -> dict[str, Any]:
        xaxis = theme.axis(theme.titles([self.experiment.cluster.world])["seconds"], (0, end))
        return theme.layout(xaxis=xaxis, yaxis=theme.axis("throughput (samples/s)", (0, top)))
