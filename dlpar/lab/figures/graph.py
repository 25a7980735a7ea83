"""The graph over which replicas average."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.graphs import Graph, grid_shape, neighbours, partners, receivers
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned
from dlpar.lab.figures.consensus import contraction, disagreement
from dlpar.lab.labels import WITH_PEERS, has_peers

COLOURS = "Cividis"
"""Colour scale of the nodes, readable with any colour vision (Nunez, Anderton and Renslow 2018)."""


def show_graph(of: Experiment | Run) -> Figure:
    """Draw the graph over which workers average; of a run, each node has the colour of its final distance.

    An arrow means that only its tail sends (push-sum). For pairwise averaging, the edges
    along which workers average are drawn. For random peers there is no graph: only the workers are drawn.

    Parameters
    ----------
    of : Experiment or Run
        Experiment whose workers average with neighbours, or a run of it.
    """
    experiment = of.experiment if isinstance(of, Run) else of
    if not has_peers(experiment.sync):
        raise ValueError(f"sync: got {experiment.sync}, allowed is {WITH_PEERS}: others have no graph")
    graph, places = _used(experiment), _places(experiment)
    node = max(12, min(34, 400 // experiment.workers))  # pixels across
    margin, hidden = {"l": 40, "r": 40, "t": 30, "b": 30}, {"visible": False, "automargin": False}
    square = {"xaxis": dict(hidden), "yaxis": {**hidden, "scaleanchor": "x"}}  # both axes have the same scale
    figure = blank(theme.layout(**square, margin=margin), 460)
    figure.add_scatter(**_edges(graph, places, node if experiment.sync.exchange == "push_sum" else None))
    found = of.from_the_mean() if isinstance(of, Run) else None
    apart = found[-1][1] if found else None  # None without sketches of the weights
    colour = theme.scheme_colour(experiment.sync.scheme)
    marker = {"size": node, "color": colour, "line": {"color": theme.GREY, "width": 1}}
    if apart is not None:
        title = {"text": "distance from the mean", "side": "right"}
        bar = {"title": title, "exponentformat": "power", "thickness": 14}
        scale = {"colorscale": COLOURS, "cmin": 0, "cmax": max(apart) or 1.0}
        marker |= {"color": apart, "colorbar": bar, **scale}
    text = {"text": [str(rank) for rank in range(experiment.workers)], "textfont": {"size": 15}}
    look = {"mode": "markers+text", "name": "workers", "marker": marker, "showlegend": False, **text}
    x, y = places.T
    figure.add_scatter(x=x, y=y, textposition=_text_positions(experiment, places), **look)
    return captioned(figure, _graph_in_words(experiment, graph, apart))


def _used(experiment: Experiment) -> Graph:
    """Receivers of each worker, where they are the same at every step."""
    sync, workers, seed = experiment.sync, experiment.workers, experiment.seed
    if sync.exchange == "random":
        return [()] * workers
    if sync.exchange == "push_sum":
        return receivers(sync, workers, seed)
    graph = neighbours(sync, workers, seed)
    return partners(graph)[1] if sync.exchange == "pairwise" else graph


def _edges(graph: Graph, places: np.ndarray, node: int | None) -> dict[str, Any]:
    """All edges as one trace; with `node`, a node's size in pixels, edges are directed and have heads."""
    edges = [(a, b) for a, to in enumerate(graph) for b in to if node or a < b]
    lines = np.array([p for a, b in edges for p in (places[a], places[b], (np.nan, np.nan))]).reshape(-1, 2)
    drawn = {"x": lines[:, 0], "y": lines[:, 1], "mode": "lines", "line": {"color": theme.GREY, "width": 2}}
    if node:
        head = {"symbol": "arrow", "angleref": "previous", "standoff": node / 2, "color": theme.GREY}
        sizes = [0, 9 + node // 6, 0] * len(edges)
        drawn |= {"mode": "lines+markers", "marker": {**head, "opacity": 1, "size": sizes}}
    return {**drawn, "name": "edges", "hoverinfo": "skip", "showlegend": False}


def _graph_in_words(experiment: Experiment, graph: Graph, apart: np.ndarray | None) -> str:
    if experiment.workers == 1:
        return "A single worker has nobody to average with."
    text = f"{experiment.workers} workers{_exchange(experiment, graph)}"
    factor = contraction(experiment)
    if factor is not None:
        text += f"; {captions.mixing(factor, experiment, 'their distance')}"
    if apart is not None:
        most = int(np.argmax(apart))
        far = captions.quantity(float(apart[most]))
        text += f"; at the end worker {most} is farthest from the mean, {far}"
    warning = disagreement(experiment)
    return f"{text}.{f' {warning}' if warning else ''}"


def _exchange(experiment: Experiment, graph: Graph) -> str:
    """Number of partners of each worker, as the end of a clause that begins with the workers."""
    exchange, peers = experiment.sync.exchange, experiment.sync.peers
    if exchange == "random":
        others = f"{peers} other{'s' * (peers > 1)}"
        return f"; each sends to {others}, drawn anew every time they average, so no fixed edges can be drawn"
    degrees = [len(to) for to in graph]
    mean = sum(degrees) / len(degrees)
    number, uneven = f"{mean:.3g}", " on average" * (len(set(degrees)) > 1)
    if exchange == "push_sum":
        return f"; each sends to {number} other{'s' * (mean != 1)}{uneven}, along the arrows"
    other = "neighbour" if exchange == "neighbours" else "partner"
    return f" with {number} {other}{'s' * (mean != 1)} each{uneven}"


def _places(experiment: Experiment) -> np.ndarray:
    """Positions of the nodes, shape (workers, 2): a grid, a circle, or a circle around a star's centre."""
    n, kind = experiment.workers, _shape(experiment)
    if kind == "grid":
        _, columns = grid_shape(n)
        return np.array([(i % columns, -(i // columns)) for i in range(n)], dtype=float)
    rim = n - 1 if kind == "star" else n
    angles = [2 * math.pi * k / rim for k in range(rim)]
    centre = [(0.0, 0.0)] if kind == "star" else []
    return np.array(centre + [(math.sin(angle), math.cos(angle)) for angle in angles])


def _shape(experiment: Experiment) -> str:
    """The topology; "random" for random peers, which have none."""
    return "random" if experiment.sync.exchange == "random" else experiment.sync.topology


def _text_positions(experiment: Experiment, places: np.ndarray) -> list[str]:
    """Position of each node's number, clear of its edges: outside a circle, between the lines of a grid."""
    if _shape(experiment) == "grid":
        return ["top right"] * len(places)
    up = np.where(places[:, 1] > 0.35, "top", np.where(places[:, 1] < -0.35, "bottom", "middle"))
    side = np.where(places[:, 0] > 0.35, "right", np.where(places[:, 0] < -0.35, "left", "center"))
    return ["top right" if (u, s) == ("middle", "center") else f"{u} {s}" for u, s in zip(up, side)]
