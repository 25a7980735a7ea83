"""The live figure of staleness: how many updates old the weights were that a gradient was computed on.

Above over time, below one histogram a worker: with the weights in the answer to
a push the mean over all workers is N - 1, however fast each is; the shape of
each worker's own histogram tells the fast from the slow.  Of many workers there
is one histogram, of all.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.live import rank_lines as shown
from dlpar.lab.live.rank_lines import RankLines, time_axis
from dlpar.lab.live_plot import LivePlot

HISTOGRAMS = 8
"""Workers with a histogram of their own; more would be too narrow to read."""

ALL = "all workers"

COLUMNS = ("updates", "worker-steps")


def predicted_mean(experiment: Experiment) -> int | None:
    """Mean staleness (updates) theory gives, N - 1: every push is an update, answered with the weights.

    Between a worker's push and its next, every other push made it one update
    older; summed over all pushes that is N - 1 each, whatever the workers' speeds.
    None where a scheme does not work like that.
    """
    sync = experiment.sync
    if sync.scheme != "ps" or experiment.averaging.method != "none":
        return None
    simple = (sync.consistency, sync.pull, sync.push_every, sync.groups) == ("asp", "reply", 1, 0)
    return experiment.workers - 1 if simple else None


def histograms(experiment: Experiment) -> list[str]:
    """What each histogram is of: one of the first workers, or all of them; none where there is no staleness."""
    if not experiment.free_running:
        return []
    if experiment.workers > shown.WORKERS:
        return [ALL]
    return [f"rank {rank}" for rank in range(min(experiment.workers, HISTOGRAMS))]


def axis_of(number: int) -> str:
    """Horizontal axis of a histogram in the layout."""
    return f"xaxis{number + 2}"


def layout(experiment: Experiment) -> dict[str, Any]:
    """Time above; where there can be staleness, a row of histograms below."""
    if not experiment.free_running:
        return theme.layout(xaxis=time_axis(experiment), yaxis=theme.axis("staleness (updates)", (-0.25, 4)))
    names, gap = histograms(experiment), 0.02
    width = (1 + gap) / len(names)
    ticks = 5 if len(names) > 1 else 12
    small = {"font": {"size": 12}, "standoff": 4}
    below = {
        axis_of(n): {
            **theme.axis("", (-0.6, 4.6), domain=[n * width, (n + 1) * width - gap], anchor="y2"),
            "title": {**small, "text": name},
            "tickfont": {"size": 11},
            "nticks": ticks,
        }
        for n, name in enumerate(names)
    }
    predicted = predicted_mean(experiment)
    lines = [
        {
            "type": "line",
            "xref": f"x{r + 2}",
            "yref": "y2 domain",
            "x0": predicted,
            "x1": predicted,
            "y0": 0,
            "y1": 1,
            "layer": "below",
            "line": {**theme.PREDICTED, "color": "#7f7f7f", "width": 2},
        }
        for r in range(len(names))
        if predicted is not None
    ]
    return theme.layout(
        xaxis=time_axis(experiment, anchor="y"),
        yaxis=theme.axis("staleness (updates)", (-0.25, 4), domain=[0.52, 1]),
        yaxis2=theme.axis("worker-steps", (0, 16), domain=[0, 0.3], anchor="x2"),
        shapes=lines,
        barmode="overlay",
        bargap=0.1,
        **below,
    )


def widest(largest: int, predicted: int | None, ended: bool) -> float:
    """Updates at the right end of a histogram: all there were, and the predicted mean; it doubles during a run."""
    least = max(4.0, 1.0 + (predicted or 0))
    return max(float(largest), least) if ended else theme.doubled(largest, least)


def histogram(number: int, name: str) -> dict[str, Any]:
    """Style of a histogram."""
    where = {"xaxis": f"x{number + 2}", "yaxis": "y2"}
    looks = {"type": "bar", "marker": {"color": "#7f7f7f"}} if name == ALL else theme.rank_bar(number)
    return {**looks, "name": name, "showlegend": False, "width": 0.9, **where}


def predicted_line(mean: int) -> dict[str, Any]:
    """Style of the line at the predicted mean."""
    line = {**theme.PREDICTED, "color": "#7f7f7f", "width": 2}
    return {"mode": "lines", "name": f"predicted mean, N − 1 = {mean}", "line": line}


class Staleness:
    """Staleness of every worker's steps; a flat zero where all workers wait for each other."""

    title = "Staleness"

    def __init__(self, experiment: Experiment) -> None:
        self.plot = LivePlot(layout(experiment))
        self.lines, self.bars = RankLines(self.plot, "updates"), []

    @staticmethod
    def fits(_experiment: Experiment) -> bool:
        """Always: where staleness is 0, the sentence says why."""
        return True

    def begin(self, experiment: Experiment) -> None:
        """Start anew for a run."""
        for key in [*(f"histogram {r}" for r in range(len(self.bars))), "predicted"]:
            self.plot.remove(key)
        self.experiment, self.predicted = experiment, predicted_mean(experiment)
        self.plot.refigure(layout(experiment), height=440 if experiment.free_running else 400)
        self.lines.begin(experiment)
        at = {"x": COLUMNS[0], "y": COLUMNS[1]}
        self.names = histograms(experiment)
        self.bars = [
            self.plot.add_trace(f"histogram {n}", histogram(n, name), COLUMNS, at)
            for n, name in enumerate(self.names)
        ]
        self.counts: list[Counter[int]] = [Counter() for _ in self.names]
        if self.predicted is not None:
            line = predicted_line(self.predicted)
            self.line = self.plot.add_trace(
                "predicted", line, ("seconds", "updates"), {"x": "seconds", "y": "updates"}
            )

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step."""
        number = 0 if self.names == [ALL] else rank
        if number < len(self.counts):
            self.counts[number][record["staleness"]] += 1
        self.lines.add(rank, record, record["staleness"])

    def settle(self, _steps: GlobalSteps, ended: bool) -> None:
        """Bring axes, histograms and sentence up to date."""
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
                self.plot.set_title(axis_of(number), f"{name}<br>mean {says.quantity(mean)}")
                self.plot.set_range(axis_of(number), -0.6, widest(lines.largest, self.predicted, ended) + 0.6)
                top = max(top, theme.doubled(1.15 * max(counts.values()), 16))
        if self.bars:
            self.plot.set_range("yaxis2", 0, top)
        sentence = says.staleness(lines.largest, lines.mean, self.experiment, self.predicted)
        self.plot.say(shown.note(self.experiment, sentence))
