"""Figures of the replicas' averaging graph and consensus distance, computed from sketches of weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dlpar import theory
from dlpar.config.experiment import Experiment
from dlpar.graphs import Graph, grid_shape, neighbours, partners, receivers, warning
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, Names, Runs, blank, captioned, experiment_of, finished, require
from dlpar.lab.labels import WITH_PEERS, has_peers
from dlpar.lab.plot import Plot, Shown, drawn

FLOOR = 1e-16
"""Height of perfect agreement, below the axis, because a logarithmic axis has no zero."""

COLUMNS = ("step", "distance")


class Distance:
    """Consensus distance of one run after each step."""

    def __init__(self, plot: Plot, run: Shown, factor: float | None) -> None:
        self.experiment, self.factor, self.largest = run.experiment, factor, 0.0
        self.first, self.last = (0, 0.0), None
        self.line, self.mixed = plot.add_trace(f"{run.key} measured", run.line, COLUMNS), None
        start = getattr(run.experiment.sync, "start", "same")
        if factor is not None and start == "random":  # equal replicas first move apart
            style = theme.predicted_line(f"{run.name}: predicted × {factor:.3f} a step", run.colour)
            self.mixed = plot.add_trace(f"{run.key} predicted", style, COLUMNS)

    def add(self, done: GlobalStep) -> None:
        """Process the record of a global step."""
        held = np.array(list(done.sketches.values()), dtype=float)
        if not len(held):
            return
        if self.last and done.step <= self.last[0]:  # a later attempt repeats the steps that were lost
            self.line.replace(self.line.rows[self.line.rows[:, 0] < done.step])
        self.last = done.step, float(np.sqrt(((held - held.mean(0)) ** 2).sum(1).mean()))
        if self.first[1] <= FLOOR:  # equal replicas have no distance to shrink: they are left out
            self.first = self.last
        self.largest = max(self.largest, self.last[1])
        if self.first[1] > FLOOR:
            self.line.add((done.step, max(self.last[1], FLOOR)))

    def draw(self, ended: bool) -> None:
        """Draw the distance under mixing alone. After the end of the run, also draw the run's last distance."""
        if self.first[1] > FLOOR:
            if ended:
                self.line.finish((self.last[0], max(self.last[1], FLOOR)))
            if self.mixed is not None:
                self.mixed.replace(_mixed(self.first, self.factor, self.last[0]))


class Consensus(Plot):
    """Figure of the consensus distance after every global step.

    It includes the contraction that the graph predicts.

    Parameters
    ----------
    predicted : bool, default True
        State the factor by which mixing alone shrinks the distance in each step: |lambda_2| of a fixed
        graph's weights. If replicas start apart (``start="random"``), this prediction is also drawn, dashed.
    """

    title = "Consensus"

    def __init__(self, predicted: bool = True) -> None:
        super().__init__()
        self.predicted = predicted

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether replicas may differ. A sketch describes the weights of a whole replica."""
        differ = has_peers(experiment.sync) or experiment.averaging.method != "none"
        computes = experiment.cluster.messages == "values"
        return differ and computes and 1 < experiment.workers == experiment.replicas

    def begin(self, run: Shown) -> None:
        """Add a run."""
        super().begin(run)
        self.kept[run.key] = Distance(self, run, contraction(run.experiment) if self.predicted else None)
        yaxis = theme.axis("consensus distance<br>(length of weights)", (-4, 1), type="log", dtick=1)
        end = max(other.experiment.steps for other in self.runs.values())
        xaxis = theme.axis(theme.TITLES["step"], (0, end))
        self.relayout(xaxis=xaxis, yaxis={**yaxis, "exponentformat": "power"})

    def step(self, done: GlobalStep) -> None:
        """Process the record of a finished global step."""
        self.kept[self.front.key].add(done)

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Update the axis and the caption."""
        own = self.kept[self.front.key]
        if own.last is None:
            return self.set_caption("No replica has reported its weights yet.")
        own.draw(ended)
        low, high = _decades(np.concatenate([each.line.rows[:, 1] for each in self.kept.values()]))
        self.set_axis("yaxis", range=[low, high], dtick=max(1, math.ceil((high - low) / 9)))
        said = []
        for key, each in self.kept.items():
            sentence = captions.consensus(each, disagreement(each.experiment))
            said.append(f"{self.runs[key].name}: " * (len(self.runs) > 1) + sentence)
        return self.set_caption(" ".join(said))


def contraction(experiment: Experiment) -> float | None:
    """Return the factor by which mixing alone shrinks the distance per step.

    Return None without a graph, with local steps, or in pairs, which may need many steps for an average.
    """
    exchange, averaging = getattr(experiment.sync, "exchange", "pairwise"), experiment.averaging.method
    return theory.contraction(experiment) if exchange != "pairwise" and averaging == "none" else None


def disagreement(experiment: Experiment) -> str:
    """Return a warning if a graph is disconnected. Its workers then cannot agree.

    Otherwise return an empty string.
    """
    return f"{sentence}." if (sentence := warning(experiment)) else ""


def _mixed(first: tuple[int, float], factor: float, last: int) -> np.ndarray:
    """Return points ``(step, distance)`` of first distance × factor^steps, down to the floor."""
    steps = np.unique(np.linspace(first[0], max(last, first[0]), 200).astype(int))
    return np.stack([steps, np.maximum(first[1] * factor ** (steps - first[0]), FLOOR)], axis=1)


def _decades(values: np.ndarray) -> tuple[float, float]:
    """Return the limits of a logarithmic axis for all of `values` except perfect agreement."""
    seen = values[np.isfinite(values) & (values > FLOOR)]
    if not len(seen):
        return -4.0, 1.0
    return float(np.floor(np.log10(seen.min()) - 0.05)), float(np.ceil(np.log10(seen.max()) + 0.05))


def consensus(runs: Runs, predicted: bool = True, titles: Names = None) -> Figure:
    """Draw the consensus distance over steps on a logarithmic axis.

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
        got = f"run {run.id}: got sync {experiment.sync} with {n} worker{'s' * (n != 1)}"
        allowed = f"allowed is {WITH_PEERS}, or averaging, with two or more"
        require(not run.consensus.empty, f"{got}, {allowed}: its replicas are equal at every step")
    figure = drawn(plot := Consensus(predicted), runs, titles)
    why = "its replicas were equal at every step, so there is no distance to draw"
    for run, each in zip(runs, plot.kept.values()):
        require(each.first[1] > FLOOR, f"run {run.id}: {why}")
    return figure


# ---- the graph --------------------------------------------------------------------------


def show_graph(of: Experiment | Run) -> Figure:
    """Draw the graph over which workers average. For a run, a node's colour shows its final distance.

    An arrow means that only its tail sends (push-sum). For pairwise averaging, the figure shows the edges
    along which workers average. For random peers there is no graph: only the workers are drawn.

    Parameters
    ----------
    of : Experiment or Run
        Experiment whose workers average with neighbours, or a run of it.
    """
    experiment = experiment_of(of).of_replicas()
    allowed = f"allowed is {WITH_PEERS}: others have no graph"
    require(has_peers(experiment.sync), f"sync: got {experiment.sync}, {allowed}")
    graph, places = _used(experiment), _places(experiment)
    node = max(12, min(34, 400 // experiment.workers))  # pixels across
    margin, hidden = {"l": 40, "r": 40, "t": 30, "b": 30}, {"visible": False, "automargin": False}
    figure = blank(460, xaxis=hidden, yaxis={**hidden, "scaleanchor": "x"}, margin=margin)  # equal scales
    figure.add_scatter(**_edges(graph, places, node if experiment.sync.exchange == "push_sum" else None))
    found = of.from_the_mean() if isinstance(of, Run) else None
    # None without sketches of the weights, and where deaths have changed the graph.
    apart = found[-1][1] if found and sorted(found[-1][0].sketches) == list(range(len(places))) else None
    marker = {"size": node, "line": {"color": theme.GREY, "width": 1}}
    if apart is None:
        marker["color"] = theme.scheme_colour(experiment.sync.scheme)
    else:
        scale = {"colorscale": theme.SCALE, "cmin": 0, "cmax": max(apart) or 1.0}
        marker |= {"color": apart, "colorbar": theme.LOOKS["distance"], **scale}
    numbers, where = list(map(str, range(len(places)))), _text_positions(experiment, places)
    x, y = places.T
    figure.add_scatter(x=x, y=y, text=numbers, textposition=where, marker=marker, **theme.LOOKS["nodes"])
    return captioned(figure, _graph_in_words(experiment, graph, apart))


def _used(experiment: Experiment) -> Graph:
    """Return each worker's receivers, if they are the same at every step."""
    sync, workers, seed = experiment.sync, experiment.workers, experiment.seed
    if not sync.has_graph:
        return [()] * workers
    if sync.exchange == "push_sum":
        return receivers(sync, workers, seed)
    graph = neighbours(sync, workers, seed)
    return partners(graph)[1] if sync.exchange == "pairwise" else graph


def _edges(graph: Graph, places: np.ndarray, node: int | None) -> dict[str, Any]:
    """Return all edges as one trace. With `node`, a node's size in pixels, edges have arrowheads."""
    edges = [(a, b) for a, to in enumerate(graph) for b in to if node or a < b]
    lines = np.array([p for a, b in edges for p in (places[a], places[b], (np.nan, np.nan))]).reshape(-1, 2)
    drawn = {**theme.LOOKS["edges"], "x": lines[:, 0], "y": lines[:, 1]}
    if node:
        head = {**theme.LOOKS["heads"], "standoff": node / 2, "size": [0, 9 + node // 6, 0] * len(edges)}
        drawn |= {"mode": "lines+markers", "marker": head}
    return drawn


def _graph_in_words(experiment: Experiment, graph: Graph, apart: np.ndarray | None) -> str:
    if experiment.workers == 1:
        return "A single worker has nobody to average with."
    text = f"{experiment.workers} workers{_exchange(experiment, graph)}"
    factor = contraction(experiment)
    if factor is not None:
        text += f"; {captions.mixing(factor, experiment, 'their distance')}"
    if apart is not None:
        most = int(np.argmax(apart))
        text += f"; at the end worker {most} is farthest from the mean ({captions.quantity(apart[most])})"
    return " ".join(filter(None, (f"{text}.", disagreement(experiment))))


def _exchange(experiment: Experiment, graph: Graph) -> str:
    """Return words for each worker's number of partners, which end a clause about workers."""
    exchange, peers = experiment.sync.exchange, experiment.sync.peers
    if not experiment.sync.has_graph:
        to = {"random": f"{peers} random others each time", "one_peer": "one worker 1, 2, 4 … places ahead"}
        return f"; each sends to {to[exchange]}: no edges are fixed"
    degrees = [len(to) for to in graph]
    mean = sum(degrees) / len(degrees)
    number, uneven = f"{mean:.3g}", " on average" * (len(set(degrees)) > 1)
    if exchange == "push_sum":
        return f"; each sends to {number} other{'s' * (mean != 1)}{uneven}, along the arrows"
    other = "neighbour" if exchange == "neighbours" else "partner"
    return f" with {number} {other}{'s' * (mean != 1)} each{uneven}"


def _places(experiment: Experiment) -> np.ndarray:
    """Return node positions, shape (workers, 2): a grid, a ring, or a ring around a star's centre."""
    n, kind = experiment.workers, experiment.sync.topology
    if kind == "grid":
        _, columns = grid_shape(n)
        return np.array([(i % columns, -(i // columns)) for i in range(n)], dtype=float)
    centre = np.zeros((int(kind == "star"), 2))
    angles = np.linspace(0, 2 * math.pi, n - len(centre), endpoint=False)
    return np.concatenate([centre, np.stack([np.sin(angles), np.cos(angles)], axis=1)])


def _text_positions(experiment: Experiment, places: np.ndarray) -> list[str]:
    """Return the position of each node's number: outside a ring, between the lines of a grid."""
    if experiment.sync.topology == "grid":
        return ["top right"] * len(places)
    up = np.where(places[:, 1] > 0.35, "top", np.where(places[:, 1] < -0.35, "bottom", "middle"))
    side = np.where(places[:, 0] > 0.35, "right", np.where(places[:, 0] < -0.35, "left", "center"))
    return ["top right" if (u, s) == ("middle", "center") else f"{u} {s}" for u, s in zip(up, side)]
