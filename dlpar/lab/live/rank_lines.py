"""A number of workers over time: one line a rank, on axes that grow by doubling."""

from __future__ import annotations

from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.lab import theme
from dlpar.lab.live_plot import LivePlot

POINTS = 500
"""Most points held of one rank's line."""


class RankLines:
    """Lines of the workers that are drawn one by one in one plot; counted are all.

    Parameters
    ----------
    plot : LivePlot
        Where they are drawn; the axes are its ``xaxis`` and ``yaxis``.
    unit : str
        What the number counts; heads its column.
    """

    def __init__(self, plot: LivePlot, unit: str) -> None:
        self.plot, self.unit, self.lines = plot, unit, []

    def begin(self, experiment: Experiment) -> None:
        """Start anew; workers that run free of each other are drawn over seconds, others over steps."""
        for rank in range(len(self.lines)):
            self.plot.remove(f"rank {rank}")
        self.over_time = experiment.free_running
        self.largest, self.total, self.count = 0, 0, 0
        self.end, self._latest = (1.0 if self.over_time else experiment.steps), 0.0
        columns, at = (
            ("seconds", "step", self.unit),
            {"x": "seconds" if self.over_time else "step", "y": self.unit},
        )
        many = crowded(experiment)
        ranks = range(workers(experiment))
        styles = [{**theme.rank_line(rank, many), "name": f"rank {rank}"} for rank in ranks]
        self.lines = [
            self.plot.add_trace(style["name"], style, columns, at, limit=POINTS) for style in styles
        ]

    def add(self, rank: int, record: dict[str, Any], value: int) -> None:
        """Take one worker's step."""
        self.count += 1
        if value:
            self.total += value
            if value > self.largest:
                self.largest = value
        self._latest = max(self._latest, record["t"])
        if rank < len(self.lines):
            self.lines[rank].add((record["t"], record["step"], value))

    @property
    def mean(self) -> float:
        """Of all values so far."""
        return self.total / self.count if self.count else 0.0

    def settle(self, ended: bool, least: float = 4.0) -> None:
        """Bring the axes up to date; the vertical one reaches `least` at least."""
        self.plot.set_range("yaxis", -0.25, theme.doubled(self.largest, least))
        if self.over_time:
            self.end = theme.rounded_up(self._latest) if ended else theme.doubled(self._latest, self.end)
            self.plot.set_range("xaxis", 0, self.end)


def time_axis(experiment: Experiment, **more: Any) -> dict[str, Any]:
    """The horizontal axis these lines begin with."""
    name, end = ("seconds", 1.0) if experiment.free_running else ("step", experiment.steps)
    return theme.axis(theme.titles([experiment.cluster.world])[name], (0, end), **more)


WORKERS = 16
"""Workers with a line, a lane or a row of their own; more could not be told apart."""

OTHERS = 4
"""Servers and leaves drawn beside them."""


def workers(experiment: Experiment) -> int:
    """How many workers are drawn: ranks 0 to that."""
    return min(experiment.workers, WORKERS)


def crowded(experiment: Experiment) -> bool:
    """Whether not all workers are drawn."""
    return experiment.workers > WORKERS


def ranks(experiment: Experiment) -> list[int]:
    """Ranks drawn where servers are drawn, too."""
    first = range(experiment.workers, experiment.ranks)
    return [*range(workers(experiment)), *(first if experiment.workers <= WORKERS else first[:OTHERS])]


def note(experiment: Experiment, sentence: str) -> str:
    """`sentence`, and that not all workers are drawn, if so."""
    if not crowded(experiment):
        return sentence
    return f"{sentence} Drawn are the first {WORKERS} of {experiment.workers:,} workers."
