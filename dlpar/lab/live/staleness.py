"""Live figures of staleness and of lead: how far apart free-running workers are, in updates and in clocks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.lab import captions, theme
from dlpar.lab.live_plot import LivePlot

POINTS = 500
"""Most points kept of one rank's line."""


class RankLines:
    """One line for each worker that is drawn, on axes that grow by doubling; statistics cover all workers.

    Parameters
    ----------
    plot : LivePlot
        Holds the lines; the axes are its ``xaxis`` and ``yaxis``.
    unit : str
        Unit of the values; heads their column.
    """

    def __init__(self, plot: LivePlot, unit: str) -> None:
        self.plot, self.unit, self.lines = plot, unit, []

    def begin(self, experiment: Experiment) -> None:
        """Start a run: free-running workers are drawn over seconds, others over steps."""
        for rank in range(len(self.lines)):
            self.plot.remove(f"rank {rank}")
        self.over_time = experiment.free_running
        self.largest, self.total, self.count = 0, 0, 0
        self.end, self._latest = (1.0 if self.over_time else experiment.steps), 0.0
        columns = ("seconds", "step", self.unit)
        at = {"x": "seconds" if self.over_time else "step", "y": self.unit}
        crowded, drawn = theme.crowded(experiment), range(theme.workers(experiment))
        styles = [{**theme.rank_line(rank, crowded), "name": f"rank {rank}"} for rank in drawn]
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
        """Mean of all values so far."""
        return self.total / self.count if self.count else 0.0

    def settle(self, ended: bool, least: float = 4.0) -> None:
        """Bring the axes up to date; the vertical one reaches at least `least`."""
        self.plot.set_range("yaxis", -0.25, theme.doubled(self.largest, least))
        if self.over_time:
            self.end = theme.rounded_up(self._latest) if ended else theme.doubled(self._latest, self.end)
            self.plot.set_range("xaxis", 0, self.end)


def time_axis(experiment: Experiment, **more: Any) -> dict[str, Any]:
    """Horizontal axis of these lines at the beginning of a run."""
    name, end = ("seconds", 1.0) if experiment.free_running else ("step", experiment.steps)
    return theme.axis(theme.titles([experiment.cluster.world])[name], (0, end), **more)


HISTOGRAMS = 8
"""Workers with a histogram of their own; more histograms would be too narrow to read."""

ALL = "all workers"

COLUMNS = ("updates", "worker-steps")


def predicted_mean(experiment: Experiment) -> int | None:
    """Predicted mean staleness (updates): N - 1 if each push is one update, answered with the weights.

    Between a worker's push and its next, every other push makes its weights one update
    older. Over all pushes the mean is N - 1 at any speed of the workers.
    None for a scheme that works in another way.
    """
    sync = experiment.sync
    if not sync.server_ranks or experiment.averaging.method != "none":
        return None
    simple = (sync.consistency, sync.pull, sync.push_every, sync.groups) == ("asp", "reply", 1, 0)
    return experiment.workers - 1 if simple else None


def histograms(experiment: Experiment) -> list[str]:
    """Titles of the histograms: each of the first workers, or all workers; none where staleness is always 0."""
    if not experiment.free_running:
        return []
    if theme.crowded(experiment):
        return [ALL]
    return [f"rank {rank}" for rank in range(min(experiment.workers, HISTOGRAMS))]


def axis_of(number: int) -> str:
    """Horizontal axis of a histogram in the layout."""
    return f"xaxis{number + 2}"


def staleness_layout(experiment: Experiment) -> dict[str, Any]:
    """Staleness over time above; below, where staleness is possible, a row of histograms.

    The histogram of a fast worker differs from that of a slow one, although the mean over
    all workers is the same.
    """
    if not experiment.free_running:
        return theme.layout(xaxis=time_axis(experiment), yaxis=theme.axis("staleness (updates)", (-0.25, 4)))
    names, gap = histograms(experiment), 0.02
    width = (1 + gap) / len(names)
    looks = {"tickfont": {"size": 11}, "nticks": 5 if len(names) > 1 else 12}
    below = {
        axis_of(n): {
            **theme.axis("", (-0.6, 4.6), domain=[n * width, (n + 1) * width - gap], anchor="y2"),
            "title": {"font": {"size": 12}, "standoff": 4, "text": name},
            **looks,
        }
        for n, name in enumerate(names)
    }
    mean = predicted_mean(experiment)
    line = {"type": "line", "yref": "y2 domain", "x0": mean, "x1": mean, "y0": 0, "y1": 1, "layer": "below",
            "line": theme.predicted_line("")["line"]}  # fmt: skip
    return theme.layout(
        xaxis=time_axis(experiment, anchor="y"),
        yaxis=theme.axis("staleness (updates)", (-0.25, 4), domain=[0.52, 1]),
        yaxis2=theme.axis("worker-steps", (0, 16), domain=[0, 0.3], anchor="x2"),
        shapes=[] if mean is None else [{**line, "xref": f"x{n + 2}"} for n in range(len(names))],
        barmode="overlay",
        bargap=0.1,
        **below,
    )


def widest(largest: int, predicted: int | None, ended: bool) -> float:
    """Right end of a histogram (updates): beyond all values and the predicted mean; it doubles during a run."""
    least = max(4.0, 1.0 + (predicted or 0))
    return max(float(largest), least) if ended else theme.doubled(largest, least)


def histogram(number: int, name: str) -> dict[str, Any]:
    """Style of a histogram."""
    where = {"xaxis": f"x{number + 2}", "yaxis": "y2"}
    looks = {"type": "bar", "marker": {"color": theme.GREY}} if name == ALL else theme.rank_bar(number)
    return {**looks, "name": name, "showlegend": False, "width": 0.9, **where}


def mean_line(mean: int) -> dict[str, Any]:
    """Style of the line at the predicted mean."""
    return theme.predicted_line(f"predicted mean, N − 1 = {mean}")


class Staleness:
    """Staleness of every worker's steps; always 0 where all workers wait for each other."""

    title = "Staleness"

    def __init__(self, experiment: Experiment) -> None:
        self.plot = LivePlot(staleness_layout(experiment))
        self.lines, self.bars = RankLines(self.plot, "updates"), []

    @staticmethod
    def fits(_experiment: Experiment) -> bool:
        """Return whether to show it: always, because the caption explains a staleness of 0."""
        return True

    def begin(self, experiment: Experiment) -> None:
        """Start a run."""
        for key in [*(f"histogram {r}" for r in range(len(self.bars))), "predicted"]:
            self.plot.remove(key)
        self.experiment, self.predicted = experiment, predicted_mean(experiment)
        self.plot.refigure(staleness_layout(experiment), height=440 if experiment.free_running else 400)
        self.lines.begin(experiment)
        at = {"x": COLUMNS[0], "y": COLUMNS[1]}
        self.names = histograms(experiment)
        self.bars = [
            self.plot.add_trace(f"histogram {n}", histogram(n, name), COLUMNS, at)
            for n, name in enumerate(self.names)
        ]
        self.counts: list[Counter[int]] = [Counter() for _ in self.names]
        if self.predicted is not None:
            columns, at = ("seconds", "updates"), {"x": "seconds", "y": "updates"}
            self.line = self.plot.add_trace("predicted", mean_line(self.predicted), columns, at)

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step."""
        number = 0 if self.names == [ALL] else rank
        if number < len(self.counts):
            self.counts[number][record["staleness"]] += 1
        self.lines.add(rank, record, record["staleness"])

    def settle(self, _steps: GlobalSteps, ended: bool) -> None:
        """Bring axes, histograms and caption up to date."""
        lines = self.lines
        if not lines.count:
            return
        lines.settle(ended, least=max(4.0, 2.0 * (self.predicted or 0)))
        if self.predicted is not None:
            self.line.replace(np.array([(0.0, self.predicted), (lines.end, self.predicted)]))
        top = 16.0
        for number, (name, series, counts) in enumerate(zip(self.names, self.bars, self.counts)):
            if counts:
                series.replace(np.array(sorted(counts.items()), dtype=float))
                mean = sum(age * n for age, n in counts.items()) / counts.total()
                self.plot.set_title(axis_of(number), f"{name}<br>mean {captions.quantity(mean)}")
                self.plot.set_range(axis_of(number), -0.6, widest(lines.largest, self.predicted, ended) + 0.6)
                top = max(top, theme.doubled(1.15 * max(counts.values()), 16))
        if self.bars:
            self.plot.set_range("yaxis2", 0, top)
        sentence = captions.staleness(lines.largest, lines.mean, self.experiment, self.predicted)
        self.plot.set_caption(captions.shown_workers(self.experiment, sentence))


def lead_layout(experiment: Experiment) -> dict[str, Any]:
    """Lead over time; the region above a bound is shaded, because no point may ever lie there."""
    bound = experiment.sync.lead_bound
    yaxis = theme.axis("lead over the slowest (clocks)", (-0.25, lead_axis_end(bound)))
    if bound is None:
        return theme.layout(xaxis=time_axis(experiment), yaxis=yaxis)
    edge = bound + 0.25
    across = {"xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": edge}
    zone = {"type": "rect", **across, "y1": 1e9, "fillcolor": "rgba(127,127,127,0.25)", "line": {"width": 0},
            "layer": "below"}  # fmt: skip
    line = {"type": "line", **across, "y1": edge, "line": {"color": theme.GREY, "width": 2}}
    text = f"above the bound s = {bound}: no worker may start a clock here"
    words = theme.annotation(text, 0.5, edge, yref="y", font={"size": 13})
    return theme.layout(xaxis=time_axis(experiment), yaxis=yaxis, shapes=[zone, line], annotations=[words])


def lead_axis_end(bound: int | None) -> float:
    """End of the vertical axis at the beginning of a run, with room above the bound."""
    return 4.0 if bound is None else max(4.0, bound * 1.6 + 1)


class Lead:
    """Lead of every worker at the moment it starts a clock."""

    title = "Lead"

    def __init__(self, experiment: Experiment) -> None:
        self.plot = LivePlot(lead_layout(experiment))
        self.lines = RankLines(self.plot, "clocks")

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether workers can be ahead of each other."""
        return experiment.free_running and experiment.workers > 1

    def begin(self, experiment: Experiment) -> None:
        """Start a run."""
        self.experiment, self.bound = experiment, experiment.sync.lead_bound
        self.plot.refigure(lead_layout(experiment))
        self.lines.begin(experiment)
        self.most = [0] * experiment.workers

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step."""
        lead = record["lead"]
        if lead > self.most[rank]:
            self.most[rank] = lead
        self.lines.add(rank, record, lead)

    def settle(self, _steps: GlobalSteps, ended: bool) -> None:
        """Bring axes and caption up to date."""
        if self.lines.count:
            self.lines.settle(ended, lead_axis_end(self.bound))
            sentence = captions.lead(self.most, self.bound)
            self.plot.set_caption(captions.shown_workers(self.experiment, sentence))
