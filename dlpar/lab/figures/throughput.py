"""Figures of speed: measured and predicted throughput (samples/s) over time, and each rank's time and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, Runs
from dlpar.lab.labels import rank_name
from dlpar.lab.plot import Plot, Series, Shown, drawn
from dlpar.theory import predict

if TYPE_CHECKING:
    from dlpar.lab.prediction import Prediction

WINDOW = 0.25
"""Seconds of the first windows on the wall clock. Windows double as a run gets longer."""

NAMED = 8
"""Maximum number of workers in the legend, so that it never scrolls. Hovering shows the rank of any line."""

COLUMNS = ("seconds", "samples/s")


class Rate:
    """Samples per second over windows, whose length doubles when there are too many windows.

    The class keeps the end of each window with all samples up to this end, so that windows can merge and
    every sample counts.

    Parameters
    ----------
    series : Series
        Takes the ends of windows (seconds) and their rates (samples/s).
    window : float, default `WINDOW`
        Seconds of the first windows; 0: one window per step, for runs as short as a millisecond of their
        clock.

    Attributes
    ----------
    mean : float or None
        Rate over all complete windows; None if there is none.
    """

    def __init__(self, series: Series, window: float = WINDOW) -> None:
        self.series, self.window, self.mean, self._samples, self._last = series, window, None, 0, 0.0
        self._ends: list[tuple[float, int]] = []

    def add(self, seconds: float, samples: int, began: float) -> None:
        """Count `samples` finished at `seconds`. `began` is the start of the first step."""
        self._ends = self._ends or [(began, 0)]
        self._samples, self._last = self._samples + samples, seconds
        if seconds - self._ends[-1][0] >= self.window:
            self.close()

    def close(self) -> None:
        """End the current window at the newest samples. A rank that has died has no rate afterwards."""
        if not self._ends or self._samples == self._ends[-1][1] or self._last <= self._ends[-1][0]:
            return
        self._ends.append((self._last, self._samples))
        self.series.add(_rates(self._ends[-2:])[0])
        self.mean = self._samples / (self._last - self._ends[0][0])
        if len(self._ends) == self.series.limit:
            self._ends = self._ends[::2]  # the newest window may be open again
            self.series.replace(_rates(self._ends))
            self.window = 2 * self.window or float(np.diff(self.series.rows[:, 0]).mean())


def _rates(ends: Sequence[tuple[float, int]]) -> np.ndarray:
    """Return ends and rates of the windows between points ``(seconds, samples until then)``."""
    seconds, samples = np.array(ends).T
    return np.stack([seconds[1:], np.diff(samples) / np.diff(seconds)], axis=1)


class Throughput(Plot):
    """Figure of throughput over time. A single run has a line for each rank.

    Parameters
    ----------
    prediction : Prediction, optional
        A student's prediction, in samples/s or in multiples of the first run's throughput.
    """

    title = "Throughput"

    def __init__(self, prediction: Prediction | None = None) -> None:
        super().__init__()
        self.asked, self.ghost = prediction, None
        rates = theme.axis("throughput (samples/s)", (0, 1000.0), visible=False)
        self.relayout(xaxis=theme.axis("", (0, 1.0), visible=False), yaxis=rates)

    def begin(self, run: Shown) -> None:
        """Add a run with its prediction."""
        super().begin(run)
        self.remove("rank ")
        self.remove("predicted")
        self.by_rank, self._dead, self._began, experiment = {}, set[int](), None, run.experiment
        self.kept[run.key] = self._rate(f"{run.key} all", run.line)
        found = predict(experiment)
        self.predicted = experiment.global_batch / found.seconds if found else None
        self.kind = found.kind if found else "exact"
        for rank in range(theme.workers(experiment) if experiment.workers > 1 and len(self.runs) == 1 else 0):
            self.by_rank[rank] = self._rate(f"rank {rank}", theme.rank_line(rank, experiment.workers > NAMED))
        self._name_clock(self.worlds())
        self._draw_levels()

    def foresee(self, name: str, rate: float | None) -> None:
        """Draw the simulated throughput of settings that have not run yet.

        The curve is a ghost. None removes it.
        """
        self.ghost = None if rate is None else (name, rate)
        if not self.runs:
            self._name_clock(["simulated"])
        self._draw_levels()

    def _name_clock(self, worlds: Iterable[str]) -> None:
        self.set_axis("xaxis", title=theme.axis(theme.titles(worlds)["seconds"])["title"], visible=True)
        self.set_axis("yaxis", visible=True)

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Process the record of one worker's step, or of a rank's death."""
        if record["k"] == "step":
            seconds = record["t"]
            began = seconds - record["compute"] - record["comm"] - record["wait"]
            self._began = began if self._began is None else min(began, self._began)
            if rank in self.by_rank and not record.get("dropped"):
                self.by_rank[rank].add(seconds, record["samples"], began)
        elif record.get("name") == "death":  # the ranks that go on have other conditions
            self._dead.add(record["dead"])

    def step(self, done: GlobalStep) -> None:
        """Process the record of a finished global step."""
        self.kept[self.front.key].add(done.seconds, done.batch, self._began)

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Update the axes and the caption."""
        total, last = self.kept[self.front.key], steps.last
        if last is None:
            return
        if ended:
            for rate in (total, *self.by_rank.values()):
                rate.close()
        if not len(total.series):
            return
        total.mean = steps.samples / (last.seconds - self._began)  # without lost steps
        self.grow("xaxis", max(r.series.rows[-1, 0] for r in self.kept.values() if len(r.series)), ended)
        self._make_room(total.series.rows[:, 1].max())
        self._draw_levels()
        if ended:
            self.restyle(f"{self.front.key} all", meta=total.mean)  # height of its name
            self._make_room(max(s.rows[:, 1].max() for _, s in self._traces.values() if len(s)), ended)
        if len(self.runs) == 1:
            rates = {n: rate.mean for n, rate in self.by_rank.items() if rate.mean and n not in self._dead}
            front = self.front.experiment
            return self.say(captions.throughput(total.mean, rates, front, self.predicted, self.kind))
        means = {self.runs[key].name: rate.mean for key, rate in self.kept.items() if rate.mean}
        said = f" You said {asked:g} {self.asked.unit}." if isinstance(asked := self._said(), float) else ""
        return self.set_caption(captions.compared("samples a second", means, self.worlds()) + said)

    def _make_room(self, height: float, ended: bool = False) -> None:
        self.grow("yaxis", 1.03 * height, ended)  # with room for the marks of the highest points

    def _draw_levels(self) -> None:
        """Draw horizontal lines for predictions: the formula's, the student's, and an earlier simulation's."""
        levels: dict[str, tuple[dict[str, Any], float]] = {}
        if self.runs and self.predicted is not None:
            levels["predicted"] = theme.predicted_line("predicted", self.front.colour), self.predicted
        value, first = self._said(), next(iter(self.kept.values()), None)
        if isinstance(value, float) and (self.asked.unit != "times" or (len(self.runs) > 1 and first.mean)):
            line = theme.predicted_line(f"you said {value:g} {self.asked.unit}", theme.ASKED)
            levels["asked"] = line, value * (first.mean if self.asked.unit == "times" else 1.0)
        if self.ghost:
            line = {"mode": "lines", "line": theme.line_by_source(theme.GREY, "simulated")}
            levels["ghost"] = {"name": self.ghost[0], **line}, self.ghost[1]
        for key in ("predicted", "asked", "ghost"):
            style, height = levels.get(key, ({}, None))
            if key in self._traces and self._traces[key][0]["style"] != style:
                self.remove(key)
            if height is not None:
                self._make_room(height)
                line = self.series(key) if key in self._traces else self.add_trace(key, style, COLUMNS)
                line.replace(np.array([(0.0, height), (self.end_of("xaxis"), height)]))

    def _said(self) -> Any:
        """Return the number that the student predicted, or None if there is none."""
        return self.asked and self.asked.value

    def _rate(self, key: str, style: dict[str, Any]) -> Rate:
        window = WINDOW if self.front.experiment.cluster.world == "real" else 0.0
        return Rate(self.add_trace(key, style, COLUMNS, limit=300), window)


def throughput(runs: Runs) -> Figure:
    """Draw samples per second over time, for all workers of each run.

    For a single run, also draw each worker.
    """
    return drawn(Throughput(), runs)


# ---- sums of time and bytes --------------------------------------------------------------


KINDS = {"compute": "forward", "comm": "communicate", "wait": "wait"}
"""Kinds of time in a record, each with the phase that gives the bars' style."""


class Waiting(Plot):
    """Figure of seconds and bytes: each rank of the run in front, then earlier runs' average workers."""

    title, pause = "Waiting", 0.5

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether a rank can wait for another rank."""
        return experiment.ranks > 1

    def begin(self, run: Shown) -> None:
        """Add a run."""
        super().begin(run)
        self.kept[run.key] = np.zeros((run.experiment.ranks, 4))
        self.ranks = theme.ranks(run.experiment)
        self.remove()
        for kind, phase in KINDS.items():
            style = {**theme.phase_bar(phase), "name": theme.PHASES[phase].group}
            self.add_trace(kind, style, ("row", "time (s)"), {"y": "row", "x": "time (s)"})
        self.add_trace("bytes", theme.LOOKS["sent"], ("row", "MB"), {"y": "row", "x": "MB"})
        self._relayout(1.0, 1.0)

    def _relayout(self, most_seconds: float, most_mb: float) -> None:
        *earlier, front = self.runs.values()
        names = [rank_name(front.experiment, rank) for rank in self.ranks]
        names += [f"{run.name}, a worker" for run in earlier]
        title = theme.on_clock("time of a rank (s)", *self.worlds())
        sent = theme.axis("sent by a rank (MB)", (0, most_mb), domain=[0.66, 1], anchor="y")
        axes = {"xaxis": theme.axis(title, (0, most_seconds), domain=[0, 0.6]), "xaxis2": sent}
        rows, height = theme.rows(names, automargin=True), max(260, 34 * len(names) + 140)
        self.relayout(height=height, **axes, yaxis=rows, barmode="stack", bargap=0.25)

    def forget(self, key: str) -> None:
        """Remove a run."""
        super().forget(key)
        if self.runs:
            self._relayout(self.end_of("xaxis"), self.end_of("xaxis2"))

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Process the record of one worker's step, or the bytes that a server reports at its end."""
        sums = self.kept[self.front.key][rank]
        if record["k"] == "step":
            sent = np.nan if record["bytes"] is None else record["bytes"] / 1e6
            sums += (record["compute"], record["comm"], record["wait"], sent)
        elif record.get("name") == "served":
            sums[3] += (record.get("bytes") or 0) / 1e6

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Update the bars, the axes and the caption."""
        front, sums = self.front.key, self.kept[self.front.key]
        if not sums[:, :3].any() or not self.is_due(ended):
            return
        means = {k: self.kept[k][: run.experiment.workers].mean(0) for k, run in self.runs.items()}
        rows = np.array([*sums[self.ranks], *(mean for key, mean in means.items() if key != front)])
        for column, key in enumerate((*KINDS, "bytes")):
            self.series(key).replace(np.stack([np.arange(len(rows)), rows[:, column]], axis=1))
        self.grow("xaxis", rows[:, :3].sum(1).max(), ended)
        self.grow("xaxis2", np.nan_to_num(rows[:, 3]).max(), ended)
        if len(means) > 1:
            shares = (f"{self.runs[k].name} {m[2] / (m[:3].sum() or 1):.0%}" for k, m in means.items())
            return self.set_caption(f"Share of its time that a worker waited: {captions.listed(shares)}.")
        return self.say(captions.waiting(sums[: self.front.experiment.workers, :3], sums[:, 3]))


def waiting(runs: Runs) -> Figure:
    """Draw each rank's seconds of computing, communicating and waiting, and its sent bytes.

    For earlier runs, draw means.
    """
    return drawn(Waiting(), runs)


def per_rank(run: Run) -> np.ndarray:
    """Return every rank's seconds of computing, communicating and waiting, and MB sent: shape (ranks, 4)."""
    drawn(plot := Waiting(), run)
    return plot.kept[run.id]
