"""The live figure of loss and accuracy, with earlier runs behind the present one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dlpar.experiment import Experiment
from dlpar.lab import says, theme
from dlpar.lab.global_steps import GlobalStep, GlobalSteps
from dlpar.lab.live.run_curve import RunCurve, ends, layout
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
