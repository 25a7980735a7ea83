"""The live figure of how far the replicas are apart: the consensus distance, from sketches each worker writes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.live_plot import LivePlot

FLOOR = 1e-16
"""Where perfect agreement is drawn, below the axis: a logarithmic one has no zero."""


def distance(sketches: Any) -> float:
    """Root of the mean squared distance of replicas from their mean, estimated from their sketches.

    Parameters
    ----------
    sketches : array, shape (workers, buckets)
        One row a replica.
    """
    sketches = np.asarray(sketches)
    return float(np.sqrt(((sketches - sketches.mean(0)) ** 2).sum(1).mean()))


def contraction(experiment: Experiment) -> float | None:
    """Factor by which mixing alone should shrink the distance each step; None for other schemes and local steps."""
    if experiment.sync.scheme != "gossip" or experiment.averaging.method != "none":
        return None
    from dlpar import theory

    return theory.contraction(experiment)


def starts_apart(experiment: Experiment) -> bool:
    """Whether there is a distance from the first step on that mixing can shrink; equal replicas first move apart."""
    return getattr(experiment.sync, "start", "same") == "random"


def layout(experiment: Experiment) -> dict[str, Any]:
    """Distance on a logarithmic axis over steps."""
    yaxis = theme.axis(
        "consensus distance (length of weights)", (-4, 1), type="log", dtick=1, exponentformat="power"
    )
    return theme.layout(xaxis=theme.axis(theme.TITLES["step"], (0, experiment.steps)), yaxis=yaxis)


def predicted_line(factor: float) -> dict[str, Any]:
    """Style of the line mixing alone would follow."""
    name = f"predicted by mixing alone: × {factor:.3f} a step"
    return {"mode": "lines", "name": name, "line": {**theme.PREDICTED, "color": "#7f7f7f", "width": 2}}


def decades(values: np.ndarray) -> tuple[float, float]:
    """Ends of a logarithmic axis that shows all of `values` but perfect agreement."""
    seen = values[np.isfinite(values) & (values > FLOOR)]
    if not len(seen):
        return -4.0, 1.0
    return float(np.floor(np.log10(seen.min()) - 0.05)), float(np.ceil(np.log10(seen.max()) + 0.05))


def tick_every(low: float, high: float) -> int:
    """Decades between two ticks: so many that they can be read."""
    return max(1, math.ceil((high - low) / 9))


class Consensus:
    """Consensus distance after every global step, with the contraction the graph predicts."""

    title = "Consensus"

    def __init__(self, experiment: Experiment) -> None:
        self.plot = LivePlot(layout(experiment))

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Where replicas may differ."""
        differ = experiment.sync.scheme == "gossip" or experiment.averaging.method != "none"
        return differ and experiment.workers > 1

    def begin(self, experiment: Experiment) -> None:
        """Start anew for a run."""
        self.experiment, self.factor = experiment, contraction(experiment)
        self.has_line = self.factor is not None and starts_apart(experiment)
        self.plot.refigure(layout(experiment))
        self.plot.remove("predicted")
        style = {**theme.run_line(theme.scheme_colour(experiment.sync.scheme)), "name": "measured"}
        self.line = self.plot.add_trace(
            "measured", style, ("step", "distance"), {"x": "step", "y": "distance"}
        )
        if self.has_line:
            line = predicted_line(self.factor)
            columns, at = ("step", "distance"), {"x": "step", "y": "distance"}
            self.predicted = self.plot.add_trace("predicted", line, columns, at)
        self._newest: dict[int, list[float]] = {}
        self.first = self.last = None
        self.largest = 0.0

    def step(self, done: GlobalStep) -> None:
        """Take a finished global step; a worker that did no part of it stands where it stood before."""
        self._newest |= done.sketches
        if len(self._newest) < self.experiment.workers:
            return
        self.last = done.step, distance(list(self._newest.values()))
        if (
            self.first is None or self.first[1] <= FLOOR
        ):  # replicas that begin equal have no distance to shrink
            self.first = self.last
        self.largest = max(self.largest, self.last[1])
        self.line.add((done.step, drawn(self.last[1], self.first[1])))

    def settle(self, _steps: GlobalSteps, ended: bool) -> None:
        """Bring axis and sentence up to date."""
        if self.last is None:
            self.plot.say("No replica has said yet where it is.")
            return
        if ended:
            self.line.finish((self.last[0], drawn(self.last[1], self.first[1])))
        if self.has_line and self.first[1] > FLOOR:
            self.predicted.replace(predicted_points(self.first, self.factor, self.last[0]))
        self.plot.set_range("yaxis", *(ends := decades(self.line.rows[:, 1])), tick_every=tick_every(*ends))
        mixed = "" if self.factor is None else says.mixing(self.factor, self.experiment)
        self.plot.say(
            says.consensus(self.first, self.last, self.largest, mixed, disagreement(self.experiment))
        )


def drawn(value: float, first: float) -> float:
    """Where a distance is drawn: agreement at the floor, the zero of replicas that begin equal not at all."""
    return max(value, FLOOR) if first > FLOOR else float("nan")


def predicted_points(first: tuple[int, float], factor: float, last: int) -> np.ndarray:
    """Points ``(step, distance)`` of first distance × factor^steps, down to the floor."""
    steps = np.unique(np.linspace(first[0], max(last, first[0]), 200).astype(int))
    return np.stack([steps, np.maximum(first[1] * factor ** (steps - first[0]), FLOOR)], axis=1)


def disagreement(experiment: Experiment) -> str:
    """The warning that a graph is in pieces, whose workers cannot agree; empty for all else."""
    if experiment.sync.scheme != "gossip":
        return ""
    from dlpar.graphs import warning

    said = warning(experiment)
    return f"{said}." if said else ""
