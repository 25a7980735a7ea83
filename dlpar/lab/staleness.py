"""The live figure of staleness: how many updates old the weights were that a gradient was computed on."""

from __future__ import annotations

from typing import Any

from dlpar.experiment import Experiment
from dlpar.lab import says, theme
from dlpar.lab.live_plot import LivePlot


class Staleness:
    """Staleness of every worker's steps; a flat zero where all workers wait for each other."""

    def __init__(self, experiment: Experiment) -> None:
        self.ranks = 0
        self.plot = LivePlot(self._layout(experiment))

    def begin(self, experiment: Experiment) -> None:
        """Start anew for a run."""
        for rank in range(self.ranks):
            self.plot.remove(f"rank {rank}")
        self.experiment, self.ranks = experiment, experiment.workers
        self.largest = self.total = self.count = 0
        self.plot.refigure(self._layout(experiment))
        columns, at = ("step", "updates"), {"x": "step", "y": "updates"}
        self.by_rank = [
            self.plot.add_trace(
                f"rank {r}", {**theme.rank_line(r), "name": f"rank {r}"}, columns, at, limit=500
            )
            for r in range(experiment.workers)
        ]

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step."""
        age = record["staleness"]
        self.count += 1
        if age:
            self.total += age
            self.largest = max(self.largest, age)
        if rank < self.ranks:
            self.by_rank[rank].add((record["step"], age))

    def settle(self) -> None:
        """Bring axis and sentence up to date."""
        if self.count:
            self.plot.set_range("yaxis", -0.25, theme.doubled(self.largest, 4))
            self.plot.say(says.staleness(self.largest, self.total / self.count, self.experiment))

    def _layout(self, experiment: Experiment) -> dict[str, Any]:
        xaxis = theme.axis(theme.TITLES["step"], (0, experiment.steps))
        return theme.layout(xaxis=xaxis, yaxis=theme.axis("staleness (updates)", (-0.25, 4)))
