"""Static figures of whether replicas agree: consensus distance, and the graph over which they mix."""

from __future__ import annotations

import math
from typing import Sequence

import numpy as np

from dlpar.experiment import Experiment
from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, finished, saying, thinned
from dlpar.lab.labels import labels, with_world
from dlpar.lab.live import consensus as distances
from dlpar.run import Run

COLOURS = "Cividis"
"""Scale of the nodes: readable with any colour vision (Nunez, Anderton and Renslow 2018)."""


def consensus(
    runs: Run | Sequence[Run], predicted: bool = True, titles: Sequence[str] | None = None
) -> Figure:
    """Consensus distance over steps, on a logarithmic axis.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of gossip or with local steps.
    predicted : bool
        Say how mixing alone would shrink it each step, on a fixed graph by |lambda_2| of its weights; and draw
        that, dashed, where replicas begin apart (``start="random"``).
    titles : sequence of str, optional
        What each of several runs is called; default: what tells them apart.
    """
    runs = finished(runs)
    figure, seen, said = blank(distances.layout(runs[0].experiment)), [], []
    names = (titles or labels([run.experiment for run in runs])) if len(runs) > 1 else [theme.HOW[runs[0].world]]
    for number, (run, name) in enumerate(zip(runs, names)):
        rows = run.consensus
        if rows.empty:
            raise ValueError(f"run {run.id}: got sync {run.experiment.sync}, allowed is gossip, or averaging: "
                             f"its replicas are equal at every step")  # fmt: skip
        rows = rows[(rows["distance"] > distances.FLOOR).cummax()]  # the zero of replicas that begin equal is left out
        if rows.empty:
            raise ValueError(f"run {run.id}: its replicas were equal at every step, so there is no distance to draw")
        drawn = np.maximum(rows["distance"], distances.FLOOR)
        style = theme.beside(theme.scheme_colour(run.experiment.sync.scheme), number, run.world)
        kept = thinned(rows.assign(distance=drawn))
        figure.add_scatter(x=kept["step"], y=kept["distance"], name=with_world(name, run.experiment), **style)
        first, last = ((int(r["step"]), float(r["distance"])) for _, r in rows.iloc[[0, -1]].iterrows())
        factor = distances.contraction(run.experiment) if predicted else None
        if factor is not None and distances.starts_apart(run.experiment):
            points = distances.predicted_points(first, factor, last[0])
            line = distances.predicted_line(factor)
            shown = {"name": f"{name}: predicted × {factor:.3f}"} if len(runs) > 1 else {}
            figure.add_scatter(x=points[:, 0], y=points[:, 1], **{**line, **shown})
        seen.append(drawn.to_numpy())
        warning = distances.disagreement(run.experiment)
        sentence = says.consensus(first, last, float(rows["distance"].max()), factor, warning)
        said.append(f"{name}: {sentence}" if len(runs) > 1 else sentence)
    figure.layout.yaxis.range = ends = distances.decades(np.concatenate(seen))
    figure.layout.yaxis.dtick = distances.tick_every(*ends)
    figure.layout.xaxis.range = [0, max(run.experiment.steps for run in runs)]
    return saying(figure, " ".join(said))


def show_graph(of: Experiment | Run) -> Figure:
    """The graph of a gossip scheme; of a run, each node coloured by its distance from the mean at the end.

    Parameters
    ----------
    of : Experiment or Run
        With ``sync="gossip"``.
    """
    from dlpar.sync import topology

    experiment = of.experiment if isinstance(of, Run) else of
    if experiment.sync.scheme != "gossip":
        raise ValueError(f"sync: got {experiment.sync}, allowed is gossip: others have no graph")
    graph = topology.neighbours(experiment.sync, experiment.workers, experiment.seed)
    places = _places(experiment, topology)
    figure = blank(_empty(), 460)
    edges = [(a, b) for a, to in enumerate(graph) for b in to if a < b]
    lines = np.array([p for a, b in edges for p in (places[a], places[b], (np.nan, np.nan))]).reshape(-1, 2)
    figure.add_scatter(x=lines[:, 0], y=lines[:, 1], mode="lines", name="edges", hoverinfo="skip", showlegend=False,
                       line={"color": "#7f7f7f", "width": 2})  # fmt: skip
    apart = _apart(of) if isinstance(of, Run) else None
    marker = {"size": 34, "color": theme.scheme_colour("gossip"), "line": {"color": "#7f7f7f", "width": 1}}
    if apart is not None:
        bar = {"title": {"text": "distance from the mean", "side": "right"}, "exponentformat": "power", "thickness": 14}
        marker |= {"color": apart, "colorscale": COLOURS, "cmin": 0, "cmax": max(apart) or 1.0, "colorbar": bar}
    names = [f"{rank}" for rank in range(experiment.workers)]
    figure.add_scatter(x=places[:, 0], y=places[:, 1], mode="markers+text", name="workers", text=names, marker=marker,
                       textfont={"size": 15}, textposition=_beside(experiment, places), showlegend=False)  # fmt: skip
    return saying(figure, _graph_in_words(experiment, graph, apart))


def _graph_in_words(experiment: Experiment, graph: list, apart: np.ndarray | None) -> str:
    degree = sum(map(len, graph)) / len(graph)
    text = f"{experiment.workers} workers with {degree:.3g} neighbour{'s' * (degree != 1)} each on average"
    factor = distances.contraction(experiment)
    if factor is not None:
        text += f"; mixing shrinks their distance by {factor:.3f} a step (spectral gap {1 - factor:.3f})"
    if apart is not None:
        most = int(np.argmax(apart))
        text += f"; at the end worker {most} is farthest from the mean, {says.quantity(float(apart[most]))}"
    warning = distances.disagreement(experiment)
    return f"{text}.{f' {warning}' if warning else ''}"


def _places(experiment: Experiment, topology) -> np.ndarray:
    """Where nodes are drawn: on a grid, on a circle around the star's middle, or on a circle; shape (workers, 2)."""
    n, kind = experiment.workers, experiment.sync.topology
    if kind == "grid":
        _, columns = topology.grid_shape(n)
        return np.array([(i % columns, -(i // columns)) for i in range(n)], dtype=float)
    rim = range(1, n) if kind == "star" else range(n)
    around = [(math.sin(2 * math.pi * k / len(rim)), math.cos(2 * math.pi * k / len(rim))) for k in range(len(rim))]
    return np.array(([(0.0, 0.0)] if kind == "star" else []) + around)


def _beside(experiment: Experiment, places: np.ndarray) -> list[str]:
    """Where each node's number stands, clear of its edges: outside a circle, between the lines of a grid."""
    if experiment.sync.topology == "grid":
        return ["top right"] * len(places)
    up = np.where(places[:, 1] > 0.35, "top", np.where(places[:, 1] < -0.35, "bottom", "middle"))
    side = np.where(places[:, 0] > 0.35, "right", np.where(places[:, 0] < -0.35, "left", "center"))
    return ["top right" if (u, s) == ("middle", "center") else f"{u} {s}" for u, s in zip(up, side)]


def _empty() -> dict:
    """A layout without axes, its unit as long upwards as sideways."""
    none = {"visible": False, "automargin": False}
    margin = {"l": 40, "r": 40, "t": 30, "b": 30}
    return theme.layout(xaxis=dict(none), yaxis={**none, "scaleanchor": "x"}, margin=margin)


def _apart(run: Run) -> np.ndarray | None:
    """Distance of each worker's last weights from their mean, from sketches; None if there are none."""
    from dlpar.consensus import from_the_mean

    rows = from_the_mean(run)
    return None if rows.empty else rows[rows["step"] == rows["step"].max()].sort_values("rank")["distance"].to_numpy()
