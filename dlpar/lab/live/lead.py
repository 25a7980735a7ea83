"""The live figure of lead: how many clocks each worker is ahead of the slowest."""

from __future__ import annotations

from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.live import rank_lines as shown
from dlpar.lab.live.rank_lines import RankLines, time_axis
from dlpar.lab.live_plot import LivePlot


def bound_of(experiment: Experiment) -> int | None:
    """Clocks a worker may be ahead by the rules of its scheme; None: any number."""
    return experiment.sync.lead_bound


def layout(experiment: Experiment) -> dict[str, Any]:
    """Lead over time; beyond a bound the figure is shaded, for nothing may ever be drawn there."""
    bound = bound_of(experiment)
    yaxis = theme.axis("lead over the slowest (clocks)", (-0.25, least(bound)))
    if bound is None:
        return theme.layout(xaxis=time_axis(experiment), yaxis=yaxis)
    zone = {"type": "rect", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": bound + 0.25, "y1": 1e9,
            "fillcolor": "rgba(127,127,127,0.25)", "line": {"width": 0}, "layer": "below"}  # fmt: skip
    line = {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": bound + 0.25, "y1": bound + 0.25,
            "line": {"color": "#7f7f7f", "width": 2}}  # fmt: skip
    words = {
        "text": f"above the bound s = {bound}: no worker may start a clock here",
        "xref": "paper",
        "yref": "y",
        "x": 0.5,
        "y": bound + 0.25,
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 13},
    }
    return theme.layout(xaxis=time_axis(experiment), yaxis=yaxis, shapes=[zone, line], annotations=[words])


def least(bound: int | None) -> float:
    """Where the vertical axis ends at first: there is room above the bound."""
    return 4.0 if bound is None else max(4.0, bound * 1.6 + 1)


class Lead:
    """Lead of every worker at the moment it starts a clock."""

    title = "Lead"

    def __init__(self, experiment: Experiment) -> None:
        self.plot = LivePlot(layout(experiment))
        self.lines = RankLines(self.plot, "clocks")

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Where workers can be ahead of each other."""
        return experiment.free_running and experiment.workers > 1

    def begin(self, experiment: Experiment) -> None:
        """Start anew for a run."""
        self.experiment, self.bound = experiment, bound_of(experiment)
        self.plot.refigure(layout(experiment))
        self.lines.begin(experiment)
        self.most = [0] * experiment.workers

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step."""
        lead = record["lead"]
        if lead > self.most[rank]:
            self.most[rank] = lead
        self.lines.add(rank, record, lead)

    def settle(self, _steps: GlobalSteps, ended: bool) -> None:
        """Bring axes and sentence up to date."""
        if self.lines.count:
            self.lines.settle(ended, least(self.bound))
            self.plot.say(shown.note(self.experiment, says.lead(self.most, self.bound)))
