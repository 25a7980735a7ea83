"""One run in a figure of convergence: loss of every global step, and tests on held-out samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dlpar.experiment import Experiment
from dlpar.lab import theme
from dlpar.lab.global_steps import GlobalStep, GlobalSteps
from dlpar.lab.live_plot import LivePlot

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
