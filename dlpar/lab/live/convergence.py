"""The live figure of loss and accuracy, with earlier runs behind the present one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.live_plot import LivePlot


def x_axes(reach: dict[str, float], worlds: Iterable[str]) -> dict[str, dict]:
    """What the curves of runs in these worlds can be drawn over, each from 0 to its reach."""
    titles = theme.titles(worlds)
    return {name: theme.axis(titles[name], (0, end)) for name, end in reach.items()}


class Convergence:
    """Loss of every global step and accuracy of every test on held-out samples."""

    title = "Convergence"

    def __init__(self, experiment: Experiment) -> None:
        self._top, self._reach = 1.0, ends(experiment)
        self.plot = LivePlot(
            layout(experiment), x_axes(self._reach, [experiment.cluster.world]), logarithmic=True
        )
        self.earlier: list[str] = []
        self._worlds: dict[str, str] = {}
        # Without a trace plotly leaves the accuracy's axes out, and the figure would jump at the first point.
        self.plot.add_trace(
            "room for accuracy", {"yaxis": "y2", "showlegend": False}, ("step", "y"), {"x": "step", "y": "y"}
        )

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Where something is trained."""
        return experiment.cluster.messages == "values"

    @property
    def loss(self) -> Any:
        """Points of the present run's loss."""
        return self.curve.loss

    @property
    def accuracy(self) -> float | None:
        """Of the present run's latest test."""
        return self.curve.accuracy

    def begin(self, experiment: Experiment, key: str, label: str, earlier: dict[str, str]) -> None:
        """Start the curves of run `key`; `earlier`: keys of runs to keep -> their labels, newest first."""
        for old in [k for k in self.earlier if k not in earlier]:
            self._remove(old)
        self.experiment, self.key, world = experiment, key, experiment.cluster.world
        self._worlds = {old: self._worlds[old] for old in earlier} | {key: world}
        self.plot.remove("room for accuracy")
        self._fit_axes(fresh=not earlier)
        for age, (old, old_label) in enumerate(earlier.items(), start=1):
            self._fade(old, old_label, age)
        self.earlier = [key, *earlier]
        style = {**theme.run_line(theme.scheme_colour(experiment.sync.scheme)), "name": label}
        style = theme.of_world(style, world)
        self.curve = RunCurve(self.plot, key, experiment, style)

    def forget_earlier(self) -> None:
        """Take the earlier runs away."""
        for old in self.earlier[1:]:
            self._remove(old)
        self.earlier = self.earlier[:1]
        self._worlds = {old: self._worlds[old] for old in self.earlier}

    def step(self, done: GlobalStep) -> None:
        """Take a finished global step."""
        self.curve.step(done)

    def test(self, record: dict[str, Any], last: GlobalStep | None) -> None:
        """Take a test on held-out samples."""
        self.curve.test(record, last)

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Bring axes and sentence up to date."""
        if ended:
            self.curve.finish(steps)
        if not steps.last:
            return
        self._top = max(self._top, theme.rounded_up(self.curve.top)) if self.curve.top else self._top
        self.plot.set_range("yaxis", 0, self._top)
        self._latest = grow(self.plot, self._reach, self._latest, steps.last, ended)
        self.plot.say(
            says.convergence(
                self.experiment,
                steps.done,
                steps.samples,
                steps.first.loss,
                steps.last.loss,
                self.accuracy,
                self.loss.stride,
            )
        )

    def _fit_axes(self, fresh: bool) -> None:
        """Room for this run and those that stay; axes shrink only when nothing is left to compare with."""
        own = ends(self.experiment)
        if fresh:
            self._top, self._reach, self._latest = 1.0, own, {}
        self._reach = {
            name: max(end, self._reach.get(name, 0.0)) for name, end in {**self._reach, **own}.items()
        }
        fitted = layout(self.experiment)
        fitted["yaxis"]["range"] = [0, self._top]
        self.plot.refigure(fitted, x_axes(self._reach, self._worlds.values()))

    def _fade(self, key: str, label: str, age: int) -> None:
        colour = self.plot.style(f"{key} loss")["line"]["color"]
        line = theme.of_world(theme.run_line(colour, age), self._worlds[key])
        self.plot.restyle(f"{key} loss", **line, name=label)
        self.plot.restyle(f"{key} test", **{**line, "showlegend": False})

    def _remove(self, key: str) -> None:
        for curve in ("loss", "test"):
            self.plot.remove(f"{key} {curve}")


def grow(
    plot: LivePlot, reach: dict[str, float], latest: dict[str, float], last: GlobalStep, ended: bool
) -> dict[str, float]:
    """Lengthen the axes of seconds and bytes, whose end nobody knows; returns the farthest points so far."""
    now = {"seconds": last.seconds, "MB sent": last.bytes / 1e6}
    latest = {
        n: max(latest.get(n, 0.0), v) if math.isfinite(v) else latest.get(n, 0.0) for n, v in now.items()
    }
    for name in [n for n in latest if n in reach]:
        reach[name] = theme.rounded_up(latest[name]) if ended else theme.doubled(latest[name], reach[name])
        plot.set_range(name, 0, reach[name])
    return latest


COLUMNS = tuple(theme.TITLES)
"""What a curve can be drawn over."""


def is_regression(experiment: Experiment) -> bool:
    """Whether there is nothing to classify, so no accuracy."""
    return experiment.data.name == "diabetes"


def loss_title(experiment: Experiment) -> str:
    """Name and unit of the loss."""
    return "loss (squared error)" if is_regression(experiment) else "loss (nats)"


def test_line(style: Mapping[str, Any], tested: str) -> dict[str, Any]:
    """Line of tests on held-out samples, on the lower axis if they give an accuracy: the loss's colour, open marks."""
    own = {"yaxis": "y2", "showlegend": False} if tested == "accuracy" else {}
    colour = style["line"]["color"]
    own_mark = {"symbol": "circle", "color": colour, **style.get("marker", {})}
    marker = {
        "size": 8,
        "symbol": f"{own_mark['symbol']}-open",
        "color": own_mark["color"],
        "maxdisplayed": 20,
    }
    return {
        "name": tested,
        "mode": "lines+markers",
        "marker": marker,
        "line": {"color": colour, "width": 1.5},
        "opacity": style.get("opacity", 1.0),
        **own,
    }


def layout(experiment: Experiment) -> dict[str, Any]:
    """Loss above, accuracy below; only the loss where there is nothing to classify."""
    regression = is_regression(experiment)
    upper = [0, 1] if regression else [0.42, 1]
    lower = (
        {}
        if regression
        else {"yaxis2": theme.axis("accuracy", (0, 1.04), domain=[0, 0.33], tickformat=".0%", dtick=0.25)}
    )
    anchor = {"anchor": "y" if regression else "y2"}
    return theme.layout(xaxis=anchor, yaxis=theme.axis(loss_title(experiment), (0, 1), domain=upper), **lower)


def says_bytes(experiment: Experiment) -> bool:
    """Whether it is known how much a run sends: a library's own all-reduce does not say."""
    return getattr(experiment.sync, "allreduce", "") != "library"


def ends(experiment: Experiment) -> dict[str, float]:
    """Where each horizontal axis begins to end; steps and samples end there for good."""
    found = {"step": experiment.steps, "samples": experiment.steps * experiment.global_batch, "seconds": 1.0}
    return {**found, "MB sent": 1.0} if says_bytes(experiment) else found


class RunCurve:
    """Loss and tests of run `key`, added to `plot`.

    Parameters
    ----------
    plot : LivePlot
        With the layout of :func:`layout`.
    key : str
        Names the run; its traces are ``"<key> loss"`` and ``"<key> test"``.
    experiment : Experiment
        What runs.
    style : mapping
        plotly attributes of the loss: line, marker, name.
    """

    def __init__(self, plot: LivePlot, key: str, experiment: Experiment, style: dict[str, Any]) -> None:
        self.experiment, self.accuracy, self.top = experiment, None, 0.0
        tested = "held-out loss" if is_regression(experiment) else "accuracy"
        style = {**style, "legendgroup": key}
        self.loss = plot.add_trace(f"{key} loss", style, (*COLUMNS, "loss"), {"x": "*", "y": "loss"})
        line = test_line(style, tested)
        self.tests = plot.add_trace(
            f"{key} test",
            {**line, "legendgroup": key},
            (*COLUMNS, tested),
            {"x": "*", "y": tested},
            limit=400,
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
        """Take a test; it is drawn once all workers have done the steps before it."""
        self.accuracy = record["accuracy"]
        if last and record["step"] <= last.step + 1:
            self._add(record, last)
        else:
            self._pending.append(record)

    def finish(self, steps: GlobalSteps) -> None:
        """The run is over: end the curve on its last step, and draw tests still waiting."""
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
