"""Live figure of the consensus distance: how far apart the replicas are, from sketches that workers write."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dlpar import theory
from dlpar.config.experiment import Experiment
from dlpar.graphs import warning
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.lab import captions, theme
from dlpar.lab.labels import has_peers
from dlpar.lab.live_plot import LivePlot

FLOOR = 1e-16
"""Height at which perfect agreement is drawn, below the axis: a logarithmic axis has no zero."""


def distance(sketches: Any) -> float:
    """Estimate the root of the mean squared distance of replicas from their mean.

    Parameters
    ----------
    sketches : array, shape (workers, buckets)
        One row per replica.
    """
    sketches = np.asarray(sketches)
    return float(np.sqrt(((sketches - sketches.mean(0)) ** 2).sum(1).mean()))


def contraction(experiment: Experiment) -> float | None:
    """Factor by which mixing alone shrinks the distance each step; None without a graph or with local steps."""
    if not has_peers(experiment.sync) or experiment.averaging.method != "none":
        return None
    return theory.contraction(experiment)


def starts_apart(experiment: Experiment) -> bool:
    """Return whether replicas differ from the first step; equal replicas first move apart."""
    return getattr(experiment.sync, "start", "same") == "random"


def layout(experiment: Experiment) -> dict[str, Any]:
    """Distance on a logarithmic axis over steps."""
    title = "consensus distance (length of weights)"
    yaxis = theme.axis(title, (-4, 1), type="log", dtick=1, exponentformat="power")
    return theme.layout(xaxis=theme.axis(theme.TITLES["step"], (0, experiment.steps)), yaxis=yaxis)


def mixing_line(factor: float) -> dict[str, Any]:
    """Style of the line that mixing alone would follow."""
    return theme.predicted_line(f"predicted by mixing alone: × {factor:.3f} a step")


def decades(values: np.ndarray) -> tuple[float, float]:
    """Ends of a logarithmic axis that shows all of `values` except perfect agreement."""
    seen = values[np.isfinite(values) & (values > FLOOR)]
    if not len(seen):
        return -4.0, 1.0
    return float(np.floor(np.log10(seen.min()) - 0.05)), float(np.ceil(np.log10(seen.max()) + 0.05))


def tick_every(low: float, high: float) -> int:
    """Decades between two ticks, so many that the ticks can be read."""
    return max(1, math.ceil((high - low) / 9))


class Consensus:
    """Consensus distance after every global step, with the contraction that the graph predicts."""

    title = "Consensus"

    def __init__(self, experiment: Experiment) -> None:
        self.plot = LivePlot(layout(experiment))

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether replicas may differ."""
        differ = has_peers(experiment.sync) or experiment.averaging.method != "none"
        return differ and experiment.workers > 1

    def begin(self, experiment: Experiment) -> None:
        """Start a run."""
        self.experiment, self.factor = experiment, contraction(experiment)
        self.has_line = self.factor is not None and starts_apart(experiment)
        self.plot.refigure(layout(experiment))
        self.plot.remove("predicted")
        style = {**theme.run_line(theme.scheme_colour(experiment.sync.scheme)), "name": "measured"}
        columns, at = ("step", "distance"), {"x": "step", "y": "distance"}
        self.line = self.plot.add_trace("measured", style, columns, at)
        if self.has_line:
            self.predicted = self.plot.add_trace("predicted", mixing_line(self.factor), columns, at)
        self.first = self.last = None
        self.largest = 0.0

    def step(self, done: GlobalStep) -> None:
        """Take a finished global step."""
        if len(done.sketches) < self.experiment.workers:
            return
        self.last = done.step, distance(list(done.sketches.values()))
        if self.first is None or self.first[1] <= FLOOR:  # equal replicas have no distance to shrink
            self.first = self.last
        self.largest = max(self.largest, self.last[1])
        self.line.add((done.step, drawn(self.last[1], self.first[1])))

    def settle(self, _steps: GlobalSteps, ended: bool) -> None:
        """Bring axis and caption up to date."""
        if self.last is None:
            self.plot.set_caption("No replica has reported its weights yet.")
            return
        if ended:
            self.line.finish((self.last[0], drawn(self.last[1], self.first[1])))
        if self.has_line and self.first[1] > FLOOR:
            self.predicted.replace(predicted_points(self.first, self.factor, self.last[0]))
        self.plot.set_range("yaxis", *(ends := decades(self.line.rows[:, 1])), tick_every=tick_every(*ends))
        self.plot.set_caption(
            caption(self.experiment, self.first, self.last, self.largest, factor=self.factor)
        )


def caption(
    experiment: Experiment,
    first: tuple[int, float],
    last: tuple[int, float],
    largest: float,
    factor: float | None,
) -> str:
    """Caption of the figure: first and last ``(step, distance)``, the largest distance, and the contraction."""
    mixed = "" if factor is None else captions.mixing(factor, experiment)
    return captions.consensus(first, last, largest, mixed, disagreement(experiment))


def drawn(value: float, first: float) -> float:
    """Height of a distance: agreement lies at the floor; the zero of replicas that begin equal is not drawn."""
    return max(value, FLOOR) if first > FLOOR else float("nan")


def predicted_points(first: tuple[int, float], factor: float, last: int) -> np.ndarray:
    """Points ``(step, distance)`` of first distance × factor^steps, down to the floor."""
    steps = np.unique(np.linspace(first[0], max(last, first[0]), 200).astype(int))
    return np.stack([steps, np.maximum(first[1] * factor ** (steps - first[0]), FLOOR)], axis=1)


def disagreement(experiment: Experiment) -> str:
    """Warning that a graph is in pieces, so that its workers cannot agree; otherwise empty."""
    sentence = warning(experiment)
    return f"{sentence}." if sentence else ""
