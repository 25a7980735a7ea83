"""Figures of free-running workers' staleness, in updates, and lead, in clocks."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any, ClassVar

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, single
from dlpar.lab.plot import Plot, Shown, drawn

POINTS = 500
"""Maximum number of points kept for one rank's line."""

HISTOGRAMS = 8
"""Maximum number of workers with a histogram. More histograms would be too narrow to read."""

ALL = "all workers"


class RankLines(Plot):
    """Figure with a line for each drawn worker, on axes that grow by doubling. Statistics cover all workers.

    An earlier run keeps one line: the mean of each global step.

    Attributes
    ----------
    field, unit : str
        Field of a step's record, and its unit.
    every : Counter
        Number of steps by value.
    counts : list of Counter
        Number of steps by value, for each worker.
    """

    field: ClassVar[str]
    unit: ClassVar[str]

    def begin(self, run: Shown) -> None:
        """Add a run. If any run has free-running workers, draw all runs over seconds, otherwise over steps."""
        for key in self.runs:
            self.remove(f"{key} rank")
            self.restyle(f"{key} mean", visible=True)
        super().begin(run)
        experiment, every = run.experiment, [other.experiment for other in self.runs.values()]
        self.over_time = any(other.sync.runs_free for other in every)
        self.every, self.counts = Counter[int](), [Counter[int]() for _ in range(experiment.ranks)]
        self._waiting, self._latest = list[tuple[float, int]](), 0.0  # not yet in a global step
        columns, at = ("seconds", "step", self.unit), {"x": "*", "y": self.unit}
        mean = {**run.line, "name": f"{run.name}, mean", "visible": False}
        self.mean_line = self.add_trace(f"{run.key} mean", mean, columns, at, limit=POINTS)
        crowded, workers = theme.crowded(experiment), range(theme.workers(experiment))
        styles = [theme.rank_line(rank, crowded) for rank in workers]
        keys = [f"{run.key} {style['name']}" for style in styles]
        self.lines = [self.add_trace(k, style, columns, at, limit=POINTS) for k, style in zip(keys, styles)]

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Process the record of one worker's step."""
        if record["k"] != "step":
            return
        value, seconds, step = record[self.field], record["t"], record["step"]
        self.every[value] += 1
        self.counts[rank][value] += 1
        self._latest = max(self._latest, seconds)
        heapq.heappush(self._waiting, (seconds, value))
        if rank < len(self.lines):
            self.lines[rank].add((seconds, step, value))

    def step(self, done: GlobalStep) -> None:
        """Process the record of a finished global step."""
        values = []
        while self._waiting and self._waiting[0][0] <= done.seconds:
            values.append(heapq.heappop(self._waiting)[1])
        if values:
            self.mean_line.add((done.seconds, done.step, sum(values) / len(values)))

    @property
    def largest(self) -> int:
        """Return the largest value so far."""
        return max(self.every, default=0)

    def fit_axes(self, ended: bool) -> None:
        """Update the axes."""
        lines = [self.series(f"{key} mean").rows for key in self.runs if key != self.front.key]
        ends = [(rows[-1, 0], rows[:, 2].max()) for rows in lines if len(rows)]
        latest, largest = map(max, zip((self._latest, self.largest), *ends))
        self.grow("yaxis", largest + 0.25)
        if self.over_time:
            self.grow("seconds", latest, ended)

    def time_axes(self) -> dict[str, theme.Look]:
        """Return the lines' horizontal axis at the start of a run."""
        name = "seconds" if self.over_time else "step"
        end = 1.0 if self.over_time else max(run.experiment.steps for run in self.runs.values())
        return {name: theme.axis(theme.titles(self.worlds())[name], (0, end))}


def predicted_mean(experiment: Experiment) -> int | None:
    """Return the predicted mean staleness.

    It is N - 1 updates if each push makes an update and gets weights.

    Between two pushes of a worker, each push of another worker makes the worker's weights one update older.
    Over all pushes the mean is N - 1 for any speed of the workers. The result is None for other schemes.
    """
    sync = experiment.sync
    if not sync.server_ranks or experiment.averaging.method != "none":
        return None
    simple = (sync.consistency, sync.pull, sync.steps_a_fetch, sync.groups, sync.replicas)
    return experiment.replicas - 1 if simple == ("asp", "reply", 1, 0, 0) else None


def mean(counts: Counter[int]) -> float:
    """Return the mean of counted values."""
    return sum(value * n for value, n in counts.items()) / counts.total()


def histograms(experiment: Experiment) -> list[str]:
    """Return histogram titles: one for each of the first workers, or all workers.

    Return no titles if staleness is always 0.
    """
    if not experiment.sync.runs_free:
        return []
    if theme.crowded(experiment):
        return [ALL]
    return [f"rank {rank}" for rank in range(min(experiment.workers, HISTOGRAMS))]


class Staleness(RankLines):
    """Figure of every worker's staleness over time.

    Each worker has a histogram unless staleness is always 0.

    The histogram of a fast worker differs from that of a slow one, although the mean over
    all workers is the same.
    """

    title, field, unit = "Staleness", "staleness", "updates"

    def begin(self, run: Shown) -> None:
        """Add a run. Histograms show the run in front."""
        self.remove("histogram")
        self.remove("predicted")
        super().begin(run)
        self.predicted, self.names = predicted_mean(run.experiment), histograms(run.experiment)
        for number, name in enumerate(self.names):
            self.add_trace(f"histogram {number}", _histogram(number, name), ("updates", "worker-steps"))
        if self.predicted is not None:
            style = theme.predicted_line(f"predicted mean, N − 1 = {self.predicted}")
            self.line = self.add_trace("predicted", style, ("seconds", "updates"))
        self.relayout(self.time_axes(), 520 if self.names else 430, **self._layout())

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Update the axes, the histograms and the caption."""
        if not self.every:
            return
        self.fit_axes(ended)
        if self.predicted is not None:
            self.line.replace(np.array([(end, self.predicted) for end in (0.0, self.end_of(self.x))]))
        most, least = 1, max(4.0, 1.0 + (self.predicted or 0))
        right = max(float(self.largest), least) if ended else theme.doubled(self.largest, least)
        drawn = [self.every] if self.names == [ALL] else self.counts
        for number, (name, counts) in enumerate(zip(self.names, drawn)):
            if counts:
                self.series(f"histogram {number}").replace(np.array(sorted(counts.items()), dtype=float))
                title = _histogram_title(f"{name}<br>mean {captions.quantity(mean(counts))}")
                self.set_axis(f"xaxis{number + 2}", title=title, range=[-0.6, right + 0.6])
                most = max(most, *counts.values())
        if self.names:
            self.grow("yaxis2", 1.15 * most, ended)
        self.say(captions.staleness(self.largest, mean(self.every), self.front.experiment, self.predicted))

    def _layout(self) -> theme.Look:
        yaxis = theme.axis("staleness (updates)", (-0.25, max(4.0, 2.0 * (self.predicted or 0))))
        if not self.names:
            return {"yaxis": yaxis}
        looks = {"tickfont": {"size": 11}, "nticks": 5 if len(self.names) > 1 else 12, "anchor": "y2"}
        below, at = {}, self.predicted
        for n, (name, domain) in enumerate(zip(self.names, theme.columns(len(self.names), 0.02)), start=2):
            axis = theme.axis("", (-0.6, 4.6), domain=domain, **looks)
            below[f"xaxis{n}"] = axis | {"title": _histogram_title(name)}
        line = {**theme.LOOKS["predicted mean"], "x0": at, "x1": at}
        marks = [] if at is None else [{**line, "xref": axis.replace("axis", "")} for axis in below]
        counts = theme.axis("worker-steps", (0, 16), domain=[0, 0.3], anchor="x2")
        above = {"xaxis": {"anchor": "y"}, "yaxis": yaxis | {"domain": [0.52, 1]}, "yaxis2": counts}
        return {**above, **below, "shapes": marks, "barmode": "overlay", "bargap": 0.1}


def _histogram(number: int, name: str) -> theme.Look:
    colour = theme.GREY if name == ALL else theme.RANKS[number]
    where = {"xaxis": f"x{number + 2}", "yaxis": "y2"}
    return {**theme.LOOKS["histogram"], "marker": {"color": colour}, "name": name, **where}


def _histogram_title(text: str) -> theme.Look:
    return {"font": {"size": 12}, "standoff": 4, "text": text}


class Lead(RankLines):
    """Figure of every worker's lead at the start of each clock. The region above a bound is shaded."""

    title, field, unit = "Lead", "lead", "clocks"

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether a worker can run ahead of another, and knows how far."""
        return experiment.sync.runs_free and experiment.sync.counts_lead and experiment.workers > 1

    def begin(self, run: Shown) -> None:
        """Add a run."""
        super().begin(run)
        self.bound = run.experiment.sync.lead_bound
        # The axis has room for the bound. No point may ever lie above the bound.
        top = 4.0 if self.bound is None else max(4.0, self.bound * 1.6 + 1)
        yaxis = theme.axis("lead over the slowest (clocks)", (-0.25, top))
        self.relayout(self.time_axes(), yaxis=yaxis, **({} if self.bound is None else _bound(self.bound)))

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Update the axes and the caption."""
        if self.every:
            self.fit_axes(ended)
            self.say(captions.lead([max(own, default=0) for own in self.counts], self.bound))


def _bound(bound: int) -> theme.Look:
    edge = bound + 0.25
    zone, line = {**theme.LOOKS["above"], "y0": edge}, {**theme.LOOKS["bound"], "y0": edge, "y1": edge}
    text = f"above the bound s = {bound}: no worker may start a clock here"
    words = theme.annotation(text, 0.5, edge, yref="y", font={"size": 13})
    return {"shapes": [zone, line], "annotations": [words]}


def staleness(run: Run) -> Figure:
    """Draw the staleness (updates) of the weights behind each gradient, over time and as histograms."""
    return drawn(Staleness(), single(run))


def lead(run: Run) -> Figure:
    """Draw each worker's lead (clocks ahead of the slowest) at the start of each clock, and the bound."""
    return drawn(Lead(), single(run))
