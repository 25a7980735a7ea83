"""Live figure of loss and accuracy, with earlier runs behind the current one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.lab import captions, theme
from dlpar.lab.live_plot import LivePlot

COLUMNS = tuple(theme.TITLES)
"""Quantities a curve can be drawn over."""


def is_regression(experiment: Experiment) -> bool:
    """Return whether the task has no classes, and so no accuracy."""
    return experiment.data.name == "diabetes"


def loss_title(experiment: Experiment) -> str:
    """Name and unit of the loss."""
    return "loss (squared error)" if is_regression(experiment) else "loss (nats)"


def reports_bytes(experiment: Experiment) -> bool:
    """Return whether the bytes a run sends are known: a library's own all-reduce does not report them."""
    return getattr(experiment.sync, "allreduce", "") != "library"


def ends(experiment: Experiment) -> dict[str, float]:
    """Ends of the horizontal axes at the beginning of a run; steps and samples never pass them."""
    found = {"step": experiment.steps, "samples": experiment.steps * experiment.global_batch, "seconds": 1.0}
    return {**found, "MB sent": 1.0} if reports_bytes(experiment) else found


def joint(*reaches: dict[str, float]) -> dict[str, float]:
    """The farthest end of each axis."""
    found: dict[str, float] = {}
    for each in reaches:
        found |= {name: max(end, found.get(name, 0.0)) for name, end in each.items()}
    return found


def x_axes(reach: dict[str, float], worlds: Iterable[str]) -> dict[str, dict]:
    """Horizontal axes for curves of runs in these worlds, each from 0 to its reach."""
    titles = theme.titles(worlds)
    return {name: theme.axis(titles[name], (0, end)) for name, end in reach.items()}


def layout(experiment: Experiment) -> dict[str, Any]:
    """Loss above, accuracy below; only the loss of a regression."""
    if is_regression(experiment):
        return theme.layout(xaxis={"anchor": "y"}, yaxis=theme.axis(loss_title(experiment), (0, 1)))
    return theme.layout(
        xaxis={"anchor": "y2"},
        yaxis=theme.axis(loss_title(experiment), (0, 1), domain=[0.42, 1]),
        yaxis2=theme.axis("accuracy", (0, 1.04), domain=[0, 0.33], tickformat=".0%", dtick=0.25),
    )


def test_line(style: Mapping[str, Any], tested: str) -> dict[str, Any]:
    """Line of tests on held-out samples: the loss's colour, open marks; an accuracy has the lower axis."""
    own = {"yaxis": "y2", "showlegend": False} if tested == "accuracy" else {}
    colour = style["line"]["color"]
    mark = {"symbol": "circle", "color": colour, **style.get("marker", {})}
    return {
        "name": tested,
        "mode": "lines+markers",
        "marker": {"size": 8, "symbol": f"{mark['symbol']}-open", "color": mark["color"], "maxdisplayed": 20},
        "line": {"color": colour, "width": 1.5},
        "opacity": style.get("opacity", 1.0),
        **own,
    }


class CurvePlot(LivePlot):
    """A live plot for the curves of several runs.

    Parameters
    ----------
    experiment : Experiment
        Decides the layout.
    reach : dict of str to float
        Ends of the horizontal axes.
    worlds : iterable of str
        Worlds of the runs.
    height : int, default 400
        Pixels.
    """

    ROOM = "room for accuracy"

    def __init__(
        self, experiment: Experiment, reach: dict[str, float], worlds: Iterable[str], height: int = 400
    ) -> None:
        super().__init__(layout(experiment), x_axes(reach, worlds), height, logarithmic=True)
        self.make_room()

    def make_room(self) -> None:
        """Add an empty trace: without a trace plotly drops the accuracy's axes, and the figure would jump."""
        style = {"yaxis": "y2", "showlegend": False}
        self.add_trace(self.ROOM, style, ("step", "y"), {"x": "step", "y": "y"})

    def remove_run(self, key: str) -> None:
        """Remove the curves of a run; nothing happens if there are none."""
        for curve in ("loss", "test"):
            self.remove(f"{key} {curve}")

    def grow(
        self, reach: dict[str, float], latest: dict[str, float], last: GlobalStep, ended: bool
    ) -> dict[str, float]:
        """Lengthen the axes of seconds and bytes, whose ends are not known; returns the farthest points so far."""
        now = {"seconds": last.seconds, "MB sent": last.bytes / 1e6}
        latest = joint(latest, {n: v if math.isfinite(v) else 0.0 for n, v in now.items()})
        for name in [n for n in latest if n in reach]:
            end = theme.rounded_up(latest[name]) if ended else theme.doubled(latest[name], reach[name])
            reach[name] = end
            self.set_range(name, 0, end)
        return latest


class RunCurve:
    """Loss and tests of one run.

    Parameters
    ----------
    plot : LivePlot
        Has the layout of :func:`layout`; the curves are added to it.
    key : str
        Identifies the run; its traces are ``"<key> loss"`` and ``"<key> test"``.
    experiment : Experiment
        Settings of the run.
    style : mapping
        plotly attributes of the loss: line, marker, name.
    """

    def __init__(self, plot: LivePlot, key: str, experiment: Experiment, style: dict[str, Any]) -> None:
        self.experiment, self.accuracy, self.top = experiment, None, 0.0
        tested = "held-out loss" if is_regression(experiment) else "accuracy"
        style = {**style, "legendgroup": key}
        line = {**test_line(style, tested), "legendgroup": key}
        self.loss = plot.add_trace(f"{key} loss", style, (*COLUMNS, "loss"), {"x": "*", "y": "loss"})
        self.tests = plot.add_trace(
            f"{key} test", line, (*COLUMNS, tested), {"x": "*", "y": tested}, limit=400
        )
        self._pending: list[dict[str, Any]] = []

    def step(self, done: GlobalStep) -> None:
        """Take a finished global step."""
        self.loss.add(_row(done))
        if math.isfinite(done.loss):
            self.top = max(self.top, done.loss)
        while self._pending and self._pending[0]["step"] <= done.step + 1:
            self._add(self._pending.pop(0), done)

    def test(self, record: dict[str, Any], last: GlobalStep | None) -> None:
        """Take a test; it is drawn when all workers have done the steps before it."""
        self.accuracy = record["accuracy"]
        if last and record["step"] <= last.step + 1:
            self._add(record, last)
        else:
            self._pending.append(record)

    def finish(self, steps: GlobalSteps) -> None:
        """End the curve on the run's last step, and draw the tests that still wait."""
        if steps.last:
            self.loss.finish(_row(steps.last))
            for record in self._pending:
                self._add(record, steps.last)
        self._pending.clear()

    def _add(self, record: dict[str, Any], done: GlobalStep) -> None:
        value = record["loss"] if record["accuracy"] is None else record["accuracy"]
        self.tests.add((record["step"], done.samples, record["t"], done.bytes / 1e6, value))


def _row(done: GlobalStep) -> tuple[float, ...]:
    return done.step, done.samples, done.seconds, done.bytes / 1e6, done.loss


class Convergence:
    """Loss of every global step, and accuracy of every test on held-out samples."""

    title = "Convergence"

    def __init__(self, experiment: Experiment) -> None:
        self._top, self._reach = 1.0, ends(experiment)
        self.plot = CurvePlot(experiment, self._reach, [experiment.cluster.world])
        self.earlier: list[str] = []
        self._worlds: dict[str, str] = {}

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether a model is trained."""
        return experiment.cluster.messages == "values"

    @property
    def loss(self) -> Any:
        """Points of the current run's loss."""
        return self.curve.loss

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the current run's latest test."""
        return self.curve.accuracy

    def begin(self, experiment: Experiment, key: str, label: str, earlier: dict[str, str]) -> None:
        """Start the curves of run `key`; `earlier`: keys of runs to keep and their labels, newest first."""
        for old in [k for k in self.earlier if k not in earlier]:
            self.plot.remove_run(old)
        self.experiment, self.key, world = experiment, key, experiment.cluster.world
        self._worlds = {old: self._worlds[old] for old in earlier} | {key: world}
        self.plot.remove(CurvePlot.ROOM)
        self._fit_axes(fresh=not earlier)
        for age, (old, old_label) in enumerate(earlier.items(), start=1):
            self._fade(old, old_label, age)
        self.earlier = [key, *earlier]
        style = {**theme.run_line(theme.scheme_colour(experiment.sync.scheme)), "name": label}
        self.curve = RunCurve(self.plot, key, experiment, theme.of_world(style, world))

    def forget_earlier(self) -> None:
        """Remove the earlier runs."""
        for old in self.earlier[1:]:
            self.plot.remove_run(old)
        self.earlier = self.earlier[:1]
        self._worlds = {old: self._worlds[old] for old in self.earlier}

    def step(self, done: GlobalStep) -> None:
        """Take a finished global step."""
        self.curve.step(done)

    def test(self, record: dict[str, Any], last: GlobalStep | None) -> None:
        """Take a test on held-out samples."""
        self.curve.test(record, last)

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Bring axes and caption up to date."""
        if ended:
            self.curve.finish(steps)
        if not steps.last:
            return
        self._top = max(self._top, theme.rounded_up(self.curve.top)) if self.curve.top else self._top
        self.plot.set_range("yaxis", 0, self._top)
        self._latest = self.plot.grow(self._reach, self._latest, steps.last, ended)
        first, last = steps.first.loss, steps.last.loss
        self.plot.set_caption(
            captions.convergence(
                self.experiment, steps.done, steps.samples, first, last, self.accuracy, self.loss.stride
            )
        )

    def _fit_axes(self, fresh: bool) -> None:
        """Make room for this run and those that stay; axes shrink only when no run is left to compare with."""
        own = ends(self.experiment)
        if fresh:
            self._top, self._reach, self._latest = 1.0, own, {}
        self._reach = joint(self._reach, own)
        fitted = layout(self.experiment)
        fitted["yaxis"]["range"] = [0, self._top]
        self.plot.refigure(fitted, x_axes(self._reach, self._worlds.values()))

    def _fade(self, key: str, label: str, age: int) -> None:
        colour = self.plot.style(f"{key} loss")["line"]["color"]
        line = theme.of_world(theme.run_line(colour, age), self._worlds[key])
        self.plot.restyle(f"{key} loss", **line, name=label)
        self.plot.restyle(f"{key} test", **{**line, "showlegend": False})
