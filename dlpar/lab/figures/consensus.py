"""The consensus distance: how far apart the replicas are, from sketches that workers write."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dlpar import theory
from dlpar.config.experiment import Experiment
from dlpar.graphs import warning
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.drawing import Series
from dlpar.lab.figure import Figure, finished
from dlpar.lab.labels import WITH_PEERS, has_peers
from dlpar.lab.plot import Plot, Shown, drawn

FLOOR = 1e-16
"""Height at which perfect agreement is drawn, below the axis: a logarithmic axis has no zero."""

COLUMNS, AT = ("step", "distance"), {"x": "step", "y": "distance"}


class Distance:
    """Consensus distance of one run, step by step."""

    def __init__(self, run: Shown, line: Series) -> None:
        self.run, self.line, self.largest = run, line, 0.0
        self.first = self.last = (0, 0.0)

    def add(self, done: GlobalStep) -> None:
        """Take a global step."""
        held = np.array(list(done.sketches.values()))
        if len(held) < self.run.experiment.workers:
            return
        self.last = done.step, float(np.sqrt(((held - held.mean(0)) ** 2).sum(1).mean()))
        if self.first[1] <= FLOOR:  # equal replicas have no distance to shrink: they are left out
            self.first = self.last
        self.largest = max(self.largest, self.last[1])
        if self.first[1] > FLOOR:
            self.line.add((done.step, max(self.last[1], FLOOR)))

    def words(self, factor: float | None) -> str:
        """Sentence about the run."""
        mixed = "" if factor is None else captions.mixing(factor, self.run.experiment)
        said = disagreement(self.run.experiment)
        return captions.consensus(self.first, self.last, self.largest, mixed, said)


class Consensus(Plot):
    """Consensus distance after every global step, with the contraction that the graph predicts.

    Parameters
    ----------
    predicted : bool, default True
        State by how much mixing alone would shrink the distance each step: on a fixed graph |lambda_2| of its
        weights. Where replicas begin apart (``start="random"``) it is drawn, too, dashed.
    """

    title = "Consensus"

    def __init__(self, predicted: bool = True) -> None:
        super().__init__()
        self.predicted, self.distances = predicted, dict[str, Distance]()

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether replicas may differ."""
        differ = has_peers(experiment.sync) or experiment.averaging.method != "none"
        return differ and experiment.workers > 1

    def begin(self, run: Shown) -> None:
        """Add a run."""
        super().begin(run)
        line = self.add_trace(f"{run.key} measured", run.line, COLUMNS, AT)
        self.distances[run.key] = Distance(run, line)
        if self._is_mixed(run.experiment):
            name = f"{run.name}: predicted × {contraction(run.experiment):.3f} a step"
            self.add_trace(f"{run.key} predicted", theme.predicted_line(name, run.colour), COLUMNS, AT)
        yaxis = theme.axis("consensus distance (length of weights)", (-4, 1), type="log", dtick=1)
        end = max(other.experiment.steps for other in self.runs.values())
        xaxis = theme.axis(theme.TITLES["step"], (0, end))
        self.relayout(theme.layout(xaxis=xaxis, yaxis={**yaxis, "exponentformat": "power"}))

    def forget(self, key: str) -> None:
        """Remove a run."""
        super().forget(key)
        self.distances.pop(key, None)

    def step(self, done: GlobalStep) -> None:
        """Take a finished global step."""
        self.distances[self.front.key].add(done)

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Bring axis and sentence up to date."""
        run, own = self.front, self.distances[self.front.key]
        if not own.last[0] and not own.last[1]:
            return self.set_caption("No replica has reported its weights yet.")
        if own.first[1] > FLOOR:
            if ended:
                own.line.finish((own.last[0], max(own.last[1], FLOOR)))
            if self._is_mixed(run.experiment):
                points = _mixed(own.first, contraction(run.experiment), own.last[0])
                self.series(f"{run.key} predicted").replace(points)
        low, high = _decades(np.concatenate([each.line.rows[:, 1] for each in self.distances.values()]))
        self.set_range("yaxis", low, high, tick_every=max(1, math.ceil((high - low) / 9)))
        said = []
        for each in self.distances.values():
            factor = contraction(each.run.experiment) if self.predicted else None
            said.append(f"{each.run.name}: " * (len(self.runs) > 1) + each.words(factor))
        return self.set_caption(" ".join(said))

    def _is_mixed(self, experiment: Experiment) -> bool:
        """Return whether mixing alone is drawn; equal replicas first move apart."""
        apart = getattr(experiment.sync, "start", "same") == "random"
        return self.predicted and apart and contraction(experiment) is not None


def contraction(experiment: Experiment) -> float | None:
    """Factor by which mixing alone shrinks the distance each step; None without a graph or with local steps."""
    if not has_peers(experiment.sync) or experiment.averaging.method != "none":
        return None
    return theory.contraction(experiment)


def disagreement(experiment: Experiment) -> str:
    """Warning that a graph is in pieces, so that its workers cannot agree; otherwise empty."""
    sentence = warning(experiment)
    return f"{sentence}." if sentence else ""


def _mixed(first: tuple[int, float], factor: float, last: int) -> np.ndarray:
    """Points ``(step, distance)`` of first distance × factor^steps, down to the floor."""
    steps = np.unique(np.linspace(first[0], max(last, first[0]), 200).astype(int))
    return np.stack([steps, np.maximum(first[1] * factor ** (steps - first[0]), FLOOR)], axis=1)


def _decades(values: np.ndarray) -> tuple[float, float]:
    """Ends of a logarithmic axis that shows all of `values` except perfect agreement."""
    seen = values[np.isfinite(values) & (values > FLOOR)]
    if not len(seen):
        return -4.0, 1.0
    return float(np.floor(np.log10(seen.min()) - 0.05)), float(np.ceil(np.log10(seen.max()) + 0.05))


def consensus(
    runs: Run | Sequence[Run], predicted: bool = True, titles: Sequence[str] | None = None
) -> Figure:
    """Draw the consensus distance over steps, on a logarithmic axis.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs with a graph or with local steps.
    predicted : bool, default True
        As for :class:`Consensus`.
    titles : sequence of str, optional
        Name of each of several runs; default: the settings in which it differs from the others.
    """
    for run in (runs := finished(runs, titles)):
        experiment, n = run.experiment, run.experiment.workers
        if run.consensus.empty:
            got = f"run {run.id}: got sync {experiment.sync} with {n} worker{'s' * (n != 1)}"
            allowed = f"allowed is {WITH_PEERS}, or averaging, with two or more"
            raise ValueError(f"{got}, {allowed}: its replicas are equal at every step")
    figure = drawn(plot := Consensus(predicted), runs, titles)
    for run, each in zip(runs, plot.distances.values()):
        if each.first[1] <= FLOOR:
            why = "its replicas were equal at every step, so there is no distance to draw"
            raise ValueError(f"run {run.id}: {why}")
    return figure
