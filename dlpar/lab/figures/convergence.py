"""Figures of loss and held-out accuracy over steps, samples, seconds or bytes, and of time to accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, Names, Runs, blank, captioned, finished, require, single
from dlpar.lab.labels import labels, scheme, with_world
from dlpar.lab.plot import Plot, Series, Shown, drawn, shown

COLUMNS = tuple(theme.TITLES)
"""Quantities over which a curve can be drawn."""

X_AXES = {"step": "step", "samples": "samples", "seconds": "seconds", "bytes": "MB sent"}
"""Horizontal axes that a reader may choose, and the column of each."""


def is_regression(experiment: Experiment) -> bool:
    """Return whether the task has no classes and so no accuracy."""
    return experiment.data.name == "diabetes"


def loss_title(experiment: Experiment) -> str:
    """Return the name and unit of the loss."""
    return "loss (squared error)" if is_regression(experiment) else "loss (nats)"


class Curve:
    """Loss and test results of one run."""

    def __init__(self, plot: Plot, run: Shown) -> None:
        self.experiment, self.accuracy, self.first, self.top = run.experiment, None, math.nan, 0.0
        tested = "held-out loss" if is_regression(run.experiment) else "accuracy"
        style = {**run.line, "legendgroup": run.key}
        mark = {**style["marker"], "size": 8, "maxdisplayed": 20}
        tests = {**style, "name": tested, "marker": {**mark, "symbol": f"{mark['symbol']}-open"}}
        tests |= {"yaxis": "y2", "showlegend": False} if tested == "accuracy" else {}
        self.loss = plot.add_trace(f"{run.key} loss", style, (*COLUMNS, "loss"), {"x": "*", "y": "loss"})
        at = {"x": "*", "y": tested}
        self.tests = plot.add_trace(f"{run.key} test", tests, (*COLUMNS, tested), at, limit=400)
        self._pending: list[dict[str, Any]] = []
        self.held_out: list[float] = []  # the first and the newest loss
        self.done: GlobalStep | None = None
        # Repeated steps, and ranks that died, with the step at which the others continued.
        self.lost, self.deaths = 0, {}
        self._plot, self._run, self._extra = plot, run, {}

    def _beside(self, name: str, **look: Any) -> Series:
        """Return an extra series on the run's loss axis. Add the series at its first use."""
        if name not in self._extra:
            style, at = {**self._run.line, **look, "name": name, "showlegend": False}, {"x": "*", "y": "loss"}
            self._extra[name] = self._plot.add_trace(f"{self._run.key} {name}", style, (*COLUMNS, "loss"), at)
        return self._extra[name]

    @property
    def diverged(self) -> bool:
        """Return whether the loss is NaN or infinite, or ends far above the first loss and the first held-out loss."""
        # A small batch may be odd, so the newest held-out loss counts, if there is one.
        last = self.held_out[-1] if self.held_out else self.done.loss
        learns = math.isfinite(self.done.loss) and last < max([2 * self.first, *self.held_out[:1]])
        return bool(self.samples) and not learns

    @property
    def samples(self) -> int:
        """Return the samples of all workers so far."""
        return self.done.samples if self.done else 0

    def step(self, done: GlobalStep) -> None:
        """Process the record of a finished global step. Draw earlier tests at the previous step."""
        if self.done:
            self.draw_tests(self.done)
            if done.attempt > self.done.attempt:
                self._go_back(done)
        self.done = done
        self.loss.add(_row(done))
        self.first = done.loss if math.isnan(self.first) else self.first
        self.top = max(self.top, min(done.loss, 2 * self.first))  # NaN is ignored

    def _go_back(self, done: GlobalStep) -> None:
        """Draw the steps that an attempt lost as a broad band. The next attempt begins at the stroke."""
        rows, again = self.loss.rows, self.loss.rows[:, 0] >= done.step
        colour, gap = theme.SPENT["done again"][0], [[np.nan] * rows.shape[1]]
        band = self._beside("done again", mode="lines", opacity=0.5, line={"color": colour, "width": 12})
        stroke = {"symbol": "line-ns", "size": 24, "line": {"width": 3, "color": colour}}
        self._beside("resumed", mode="markers", marker=stroke).add(_row(done))
        self.lost += self.done.step + 1 - done.step
        band.replace(np.concatenate([band.rows, rows[again], gap]))
        self.loss.replace(rows[~again])
        self.tests.replace(self.tests.rows[self.tests.rows[:, 0] <= done.step])
        self._pending = [each for each in self._pending if each["attempt"] >= done.attempt]

    def draw_deaths(self) -> None:
        """Mark the deaths of ranks on the curve at the steps where the others continued."""
        rows, mark = self.loss.rows, {"symbol": "x", "size": 11, "color": self._run.colour}
        for step in sorted(set(self.deaths.values()))[len(self._extra.get("a rank died", ())) :]:
            if step <= rows[-1, 0]:
                marks = self._beside("a rank died", mode="markers", marker=mark)
                marks.add(rows[np.searchsorted(rows[:, 0], step)])

    def draw_tests(self, done: GlobalStep) -> None:
        """Draw tests whose steps are done. For free-running workers, draw tests up to this step's time."""
        at, until = ("t", done.seconds) if self.experiment.sync.runs_free else ("step", done.step + 1)
        is_due = lambda record: record["attempt"] <= done.attempt and record[at] <= until
        while self._pending and is_due(self._pending[0]):
            self._add(self._pending.pop(0), done)

    def test(self, record: dict[str, Any]) -> None:
        """Process a test result. It is drawn when all workers have done the steps before it."""
        self.accuracy = record["accuracy"]
        self.held_out = [*self.held_out[:1], record["loss"]]
        self._pending.append(record)

    def finish(self, last: GlobalStep) -> None:
        """End the curve on the run's last step and draw the remaining tests."""
        self.loss.finish(_row(last))
        for record in self._pending:
            self._add(record, last)
        self._pending.clear()

    def _add(self, record: dict[str, Any], done: GlobalStep) -> None:
        value = record["loss"] if record["accuracy"] is None else record["accuracy"]
        self.tests.add((record["step"], done.samples, record["t"], done.bytes / 1e6, value))

    def words(self) -> str:
        """Describe the final loss and accuracy of a run that is compared with others."""
        if not self.samples:
            return "no sample, so no loss"
        loss = f"loss {captions.quantity(self.done.loss)}" + " (diverged)" * self.diverged
        return loss if self.accuracy is None else f"{loss}, accuracy {self.accuracy:.1%}"


def _row(done: GlobalStep) -> tuple[float, ...]:
    return done.step, done.samples, done.seconds, done.bytes / 1e6, done.loss


class Convergence(Plot):
    """Figure of each global step's loss and each test's accuracy on held-out samples.

    A loss above twice the first leaves the figure, because it would flatten all others on a linear axis.

    Parameters
    ----------
    x : {"step", "samples", "seconds", "bytes"}, default "step"
        Horizontal axis at first.
    """

    title = "Convergence"

    def __init__(self, x: str = "step") -> None:
        super().__init__(logarithmic=True)
        require(x in X_AXES, f"x: got {x!r}, allowed is one of {', '.join(X_AXES)}")
        self.x = X_AXES[x]

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether a model is trained."""
        return experiment.cluster.messages == "values"

    def begin(self, run: Shown) -> None:
        """Add a run."""
        super().begin(run)
        self.kept[run.key] = Curve(self, run)
        self._relayout()

    def forget(self, key: str) -> None:
        """Remove a run."""
        super().forget(key)
        if self.runs:
            self._relayout()

    def step(self, done: GlobalStep) -> None:
        """Process the record of a finished global step."""
        self.kept[self.front.key].step(done)

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Process the result of a test on held-out samples."""
        if record["k"] == "eval":
            self.kept[self.front.key].test(record)
        elif record.get("name") == "death":
            self.kept[self.front.key].deaths.setdefault(record["dead"], record["step"])

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Update the axes and the caption."""
        curve, last = self.kept[self.front.key], steps.last
        if last is None:
            return
        curve.draw_tests(last)
        curve.draw_deaths()
        if ended:
            curve.finish(last)
        self.set_axis("yaxis", range=[0, max(self.end_of("yaxis"), theme.rounded_up(curve.top))])
        latest = _joint(*map(_latest, self.kept.values()), dict(zip(COLUMNS, _row(last))))
        for name in {"seconds", "MB sent"} & self.looks["x_axes"].keys():
            self.grow(name, latest[name], ended)
        self.set_caption(self._sentence(curve))

    def _sentence(self, curve: Curve) -> str:
        if len(self.kept) > 1:
            each = (f"{self.runs[key].name} {other.words()}" for key, other in self.kept.items())
            return f"At the last step of each run: {'; '.join(each)}."
        return captions.convergence(curve, curve.loss.stride)

    def _relayout(self) -> None:
        """Fit the axes to the displayed data."""
        first, curves = self.front.experiment, self.kept.values()
        ends = _joint(*(_ends(curve.experiment) for curve in curves))
        reach, titles = _joint(ends, *map(_latest, curves)), theme.titles(self.worlds())
        axes = {name: theme.axis(titles[name], (0, reach[name])) for name in ends}
        top = max([1.0, *(theme.rounded_up(curve.top) for curve in curves)])
        loss = theme.axis(loss_title(first), (0, top))
        if is_regression(first):
            return self.relayout(axes, xaxis={"anchor": "y"}, yaxis=loss)
        below = theme.axis("accuracy", (0, 1.04), domain=[0, 0.33], tickformat=".0%", dtick=0.25)
        return self.relayout(axes, xaxis={"anchor": "y2"}, yaxis=loss | {"domain": [0.42, 1]}, yaxis2=below)


def _ends(experiment: Experiment) -> dict[str, float]:
    """Return the initial upper limits of the horizontal axes. Steps and samples never exceed their limits."""
    found = {"step": experiment.steps, "samples": experiment.steps * experiment.global_batch, "seconds": 1.0}
    # The library's all-reduce does not report its bytes.
    return {**found, "MB sent": 1.0} if getattr(experiment.sync, "allreduce", "") != "library" else found


def _latest(curve: Curve) -> dict[str, float]:
    """Return a curve's latest position on each horizontal axis."""
    return dict(zip(COLUMNS, curve.loss.rows[-1])) if len(curve.loss) else {}


def _joint(*reaches: dict[str, float]) -> dict[str, float]:
    """Return the largest upper limit of each axis. NaN is ignored."""
    return pd.DataFrame(reaches).max().fillna(0.0).to_dict()


def convergence(runs: Runs, x: str = "step", titles: Names = None) -> Figure:
    """Draw each global step's training loss and the held-out accuracy, with one curve for each run.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of one kind of task.
    x : {"step", "samples", "seconds", "bytes"}, default "step"
        Horizontal axis. "steps" means "step".
    titles : sequence of str, optional
        Name of each run; default: the settings in which it differs from the others.

    Raises
    ------
    ValueError
        If `x` is none of these, tasks differ in kind, or titles do not match the runs. Also if a run has
        no finished step or, for "bytes", no record of sent bytes.
    """
    runs, plot = trained(finished(runs, titles)), Convergence("step" if x == "steps" else x)
    of_one_kind([run.experiment for run in runs], "runs")
    why = "the library moved the data and does not report how much, so x bytes has no place for it"
    for run in runs:
        require(plot.x in _ends(run.experiment), f"run {run.id}: {why}; allowed is step, samples or seconds")
    return drawn(plot, runs, titles)


overlay = convergence
"""Name of :func:`convergence` in the labs, for several runs in one figure."""


def of_one_kind(experiments: Iterable[Experiment], name: str) -> None:
    """Raise ValueError unless all tasks have the same loss, and all or none have an accuracy.

    The message names the argument.
    """
    fine = len(set(map(loss_title, experiments))) < 2
    require(fine, f"{name}: got classification and regression, allowed is one kind of task")


def trained(runs: list[Run]) -> list[Run]:
    """Return the runs. Raise ValueError if a run sent only sizes and so has no loss."""
    why = "its messages carried sizes only, so nothing was trained: there is no loss"
    for run in runs:
        require(Convergence.fits(run.experiment), f"run {run.id}: {why}")
    return runs


# ---- after training ---------------------------------------------------------------------


def check_goal(goal: float) -> None:
    """Raise ValueError unless `goal` is an accuracy that a run can reach."""
    require(0 < goal <= 1, f"goal: got {goal:g}, allowed is a share above 0 and at most 1")


def time_to_accuracy(runs: Runs, goal: float = 0.95, titles: Names = None) -> Figure:
    """Draw the seconds to a held-out accuracy and both factors: number of steps and time of a step.

    The number of steps to the goal is the statistical efficiency of a scheme, and the time of a step is its
    hardware efficiency. Seconds to the goal are their product (Zhang and Re, "DimmWitted", VLDB 2014).

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of a task with an accuracy.
    goal : float, default 0.95
        Held-out accuracy, above 0 and at most 1. The first test that reaches it counts.
    titles : sequence of str, optional
        Name of each run; default: the settings in which it differs from the others.

    Notes
    -----
    Seconds of different clocks, such as those of a real and a simulated run, are not comparable. The caption
    names the first run of each clock.
    """
    runs = trained(finished(runs, titles))
    allowed = "allowed is a task with classes: others have no accuracy"
    for run in runs:
        got = f"got data {run.experiment.data.name}, a regression"
        require(not is_regression(run.experiment), f"run {run.id}: {got}, {allowed}")
    check_goal(goal)
    experiments = [run.experiment for run in runs]
    names = titles or (labels(experiments) if len(runs) > 1 else [scheme(experiments[0])])
    reached, clocks = [first_at(run, goal) for run in runs], [theme.CLOCKS[run.world] for run in runs]
    several = len(set(clocks)) > 1
    if several:
        names = [with_world(name, experiment) for name, experiment in zip(names, experiments)]
    own_clocks = "<br>each on its own clock" if several else ""
    clock = f"{clocks[0]} " if not several and clocks[0] != "wall" else ""
    panels = {
        f"{clock}seconds to {100 * goal:g}%{own_clocks}": [t for _, t in reached],
        f"steps to {100 * goal:g}%": [step for step, _ in reached],
        f"time of a step (ms){own_clocks}": [step and 1e3 * t / step for step, t in reached],
    }
    height, margin = max(260, 46 * len(names) + 140), {"l": 92, "r": 16, "t": 16, "b": 74}
    rows, colours = theme.rows(names, automargin=True), theme.run_colours(experiments)
    figure = blank(height, yaxis=rows, bargap=0.35, showlegend=False, margin=margin)
    for number, ((title, values), domain) in enumerate(zip(panels.items(), theme.columns(3, 0.08)), start=1):
        lengths = [value if step else 0 for value, (step, _) in zip(values, reached)]
        texts = [captions.quantity(value) if value else "not reached" for value in lengths]
        end = 1.25 * max(lengths) or 1
        figure.layout[f"xaxis{number}"] = theme.axis(title, (0, end), domain=domain, anchor="y", nticks=5)
        bar = {"orientation": "h", "textposition": "outside", "cliponaxis": False, "xaxis": f"x{number}"}
        name, places = title.partition("<br>")[0], list(range(len(names)))
        figure.add_bar(y=places, x=lengths, text=texts, name=name, marker_color=colours, **bar)
    found = [(*each, *at) for *each, at in zip(names, clocks, reached)]
    return captioned(figure, captions.time_to_accuracy(goal, found))


def first_at(run: Run, goal: float) -> tuple[int | None, float]:
    """Return step and seconds of the first test with accuracy `goal` or more.

    Without such a test, the step is None.
    """
    good = single(run).evals.loc[lambda tests: tests["accuracy"].astype(float) >= goal]
    return (int(good["step"].iloc[0]), float(good["t"].iloc[0])) if len(good) else (None, float("nan"))


POINTS = 1000
"""Minimum number of drawn points of a curve. At most twice as many are drawn."""

FLOOR = 1e-12
"""Smallest distance that is drawn. Smaller ones are rounding errors."""


def suboptimality(runs: Runs, least: float, titles: Names = None) -> Figure:
    """Draw the suboptimality, which is training loss minus its minimum, over steps on a logarithmic axis.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of one kind of task.
    least : float
        Smallest loss of any weights.
    titles : sequence of str, optional
        Name of each run; default: the settings in which it differs from the others.
    """
    runs = finished(runs, titles)
    experiments = [run.experiment for run in runs]
    xaxis = theme.axis("global step", (0, max(experiment.steps for experiment in experiments)))
    title = f"{loss_title(experiments[0])} above the least"
    yaxis = theme.axis(title, type="log", exponentformat="power", dtick=1)
    figure, parts = blank(xaxis=xaxis, yaxis=yaxis), []
    for run, look in zip(runs, shown(experiments, [run.id for run in runs], titles)):
        rows = run.curve[:: max(1, len(run.curve) // POINTS)]
        figure.add_scatter(x=rows["step"], y=(rows["loss"] - least).clip(lower=FLOOR), **look.line)
        parts.append(f"{look.name} {captions.quantity(float(run.curve['loss'].iloc[-1] - least))}")
    return captioned(figure, f"At the end the loss is above the least by: {'; '.join(parts)}.")
