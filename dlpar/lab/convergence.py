"""The live figure of loss and accuracy, with earlier runs behind the present one."""

from __future__ import annotations

import math
from typing import Any

from dlpar.experiment import Experiment
from dlpar.lab import says, theme
from dlpar.lab.global_steps import GlobalStep, GlobalSteps
from dlpar.lab.live_plot import LivePlot

COLUMNS = ("step", "samples", "seconds")


def is_regression(experiment: Experiment) -> bool:
    """Whether there is nothing to classify, so no accuracy."""
    return experiment.data.name == "diabetes"


def loss_title(experiment: Experiment) -> str:
    """Name and unit of the loss."""
    return "loss (squared error)" if is_regression(experiment) else "loss (nats)"


def test_line(colour: str, tested: str) -> dict[str, Any]:
    """Line of tests on held-out samples: open circles, on the lower axis if they give an accuracy."""
    own = {"yaxis": "y2", "showlegend": False} if tested == "accuracy" else {}
    marker = {"size": 6, "symbol": "circle-open", "color": colour}
    return {
        "name": tested,
        "mode": "lines+markers",
        "marker": marker,
        "line": {"color": colour, "width": 1.5},
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


def x_axes(experiment: Experiment) -> dict[str, dict]:
    """What the curves can be drawn over; steps and samples end where the run will."""
    ends = {"step": experiment.steps, "samples": experiment.steps * experiment.global_batch, "seconds": 1}
    return {name: theme.axis(theme.TITLES[name], (0, ends[name])) for name in COLUMNS}


class Convergence:
    """Loss of every global step and accuracy of every test on held-out samples."""

    def __init__(self, experiment: Experiment) -> None:
        self.plot = LivePlot(layout(experiment), x_axes(experiment), logarithmic=True)
        self.earlier: list[str] = []
        self._top, self._end, self._latest = 1.0, 1.0, 0.0
        self._reach = {"step": 0.0, "samples": 0.0}
        # Without a trace plotly leaves the accuracy's axes out, and the figure would jump at the first point.
        self.plot.add_trace(
            "room for accuracy", {"yaxis": "y2", "showlegend": False}, ("step", "y"), {"x": "step", "y": "y"}
        )

    def begin(self, experiment: Experiment, key: str, label: str, earlier: dict[str, str]) -> None:
        """Start the curves of run `key`; `earlier`: keys of runs to keep -> their labels, newest first."""
        for old in [k for k in self.earlier if k not in earlier]:
            self._remove(old)
        self.experiment, self.key, self.accuracy = experiment, key, None
        self.plot.remove("room for accuracy")
        self._fit_axes(fresh=not earlier)
        for age, (old, old_label) in enumerate(earlier.items(), start=1):
            self._fade(old, old_label, age)
        self.earlier = [key, *earlier]
        colour = theme.scheme_colour(experiment.sync.scheme)
        style = {**theme.run_line(colour), "name": label, "legendgroup": key}
        self.loss = self.plot.add_trace(f"{key} loss", style, (*COLUMNS, "loss"), {"x": "*", "y": "loss"})
        tested = "held-out loss" if is_regression(experiment) else "accuracy"
        style = {**test_line(colour, tested), "legendgroup": key}
        self.tests = self.plot.add_trace(
            f"{key} test", style, (*COLUMNS, tested), {"x": "*", "y": tested}, limit=400
        )

    def forget_earlier(self) -> None:
        """Take the earlier runs away."""
        for old in self.earlier[1:]:
            self._remove(old)
        self.earlier = self.earlier[:1]

    def step(self, done: GlobalStep) -> None:
        """Take a finished global step."""
        self.loss.add((done.step, done.samples, done.seconds, done.loss))
        if math.isfinite(done.loss) and done.loss > self._top:
            self._top = max(theme.rounded_up(done.loss), self._top)

    def test(self, record: dict[str, Any]) -> None:
        """Take a test on held-out samples."""
        self.accuracy = record["accuracy"]
        value = record["loss"] if self.accuracy is None else self.accuracy
        self.tests.add((record["step"], record["step"] * self.experiment.global_batch, record["t"], value))

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Bring axes and sentence up to date."""
        if not steps.last:
            return
        if ended:
            self.loss.finish((steps.last.step, steps.last.samples, steps.last.seconds, steps.last.loss))
        self._latest = max(self._latest, steps.last.seconds)
        self._end = theme.rounded_up(self._latest) if ended else theme.doubled(self._latest, self._end)
        self.plot.set_range("yaxis", 0, self._top)
        self.plot.set_range("seconds", 0, self._end)
        self.plot.say(
            says.convergence(
                self.experiment,
                steps.done,
                steps.first.loss,
                steps.last.loss,
                self.accuracy,
                self.loss.stride,
            )
        )

    def _fit_axes(self, fresh: bool) -> None:
        """Room for this run and those that stay; axes shrink only when nothing is left to compare with."""
        if fresh:
            self._top, self._end, self._latest, self._reach = 1.0, 1.0, 0.0, {"step": 0.0, "samples": 0.0}
        axes = x_axes(self.experiment)
        for name in self._reach:
            self._reach[name] = max(self._reach[name], axes[name]["range"][1])
            axes[name]["range"] = [0, self._reach[name]]
        axes["seconds"]["range"] = [0, self._end]
        fitted = layout(self.experiment)
        fitted["yaxis"]["range"] = [0, self._top]
        self.plot.refigure(fitted, axes)

    def _fade(self, key: str, label: str, age: int) -> None:
        colour = self.plot.style(f"{key} loss")["line"]["color"]
        self.plot.restyle(f"{key} loss", **theme.run_line(colour, age), name=label)
        line = theme.run_line(colour, age)
        self.plot.restyle(f"{key} test", **{**line, "showlegend": False})

    def _remove(self, key: str) -> None:
        for curve in ("loss", "test"):
            self.plot.remove(f"{key} {curve}")
