"""Static figure of whether replicas agree: their consensus distance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.figure import Figure, blank, finished, saying, thinned
from dlpar.lab.labels import labels, with_world
from dlpar.lab.live import consensus as distances

if TYPE_CHECKING:
    from dlpar.graphs import Graph


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
    runs = finished(runs, titles)
    figure, seen, said = blank(distances.layout(runs[0].experiment)), [], []
    names = (
        (titles or labels([run.experiment for run in runs])) if len(runs) > 1 else [theme.HOW[runs[0].world]]
    )
    for number, (run, name) in enumerate(zip(runs, names)):
        rows = run.consensus
        if rows.empty:
            n = run.experiment.workers
            raise ValueError(
                f"run {run.id}: got sync {run.experiment.sync} with {n} worker{'s' * (n != 1)}, allowed is "
                f"gossip, or averaging, with two or more: its replicas are equal at every step"
            )
        rows = rows[
            (rows["distance"] > distances.FLOOR).cummax()
        ]  # the zero of replicas that begin equal is left out
        if rows.empty:
            raise ValueError(
                f"run {run.id}: its replicas were equal at every step, so there is no distance to draw"
            )
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
        mixed = "" if factor is None else says.mixing(factor, run.experiment)
        sentence = says.consensus(first, last, float(rows["distance"].max()), mixed, warning)
        said.append(f"{name}: {sentence}" if len(runs) > 1 else sentence)
    figure.layout.yaxis.range = ends = distances.decades(np.concatenate(seen))
    figure.layout.yaxis.dtick = distances.tick_every(*ends)
    figure.layout.xaxis.range = [0, max(run.experiment.steps for run in runs)]
    return saying(figure, " ".join(said))


COLOURS = "Cividis"
"""Scale of the nodes: readable with any colour vision (Nunez, Anderton and Renslow 2018)."""

EDGE = "#7f7f7f"


def show_graph(of: Experiment | Run) -> Figure:
    """The graph of a gossip scheme; of a run, each node coloured by its distance from the mean at the end.

    An arrow says that only its tail sends (push-sum).  Pairwise gossip shows the edges along which it averages.
    Random peers have no graph: only the workers are drawn.

    Parameters
    ----------
    of : Experiment or Run
        With ``sync="gossip"``.
    """
    experiment = of.experiment if isinstance(of, Run) else of
    if experiment.sync.scheme != "gossip":
        raise ValueError(f"sync: got {experiment.sync}, allowed is gossip: others have no graph")
    graph, places = _used(experiment), _places(experiment)
    node = max(12, min(34, 400 // experiment.workers))  # pixels across
    figure = blank(_empty(), 460)
    figure.add_scatter(**_edges(graph, places, node if experiment.sync.exchange == "push_sum" else None))
    apart = _apart(of) if isinstance(of, Run) else None
    marker = {"size": node, "color": theme.scheme_colour("gossip"), "line": {"color": EDGE, "width": 1}}
    if apart is not None:
        bar = {
            "title": {"text": "distance from the mean", "side": "right"},
            "exponentformat": "power",
            "thickness": 14,
        }
        marker |= {
            "color": apart,
            "colorscale": COLOURS,
            "cmin": 0,
            "cmax": max(apart) or 1.0,
            "colorbar": bar,
        }
    names = [f"{rank}" for rank in range(experiment.workers)]
    figure.add_scatter(
        x=places[:, 0],
        y=places[:, 1],
        mode="markers+text",
        name="workers",
        text=names,
        marker=marker,
        textfont={"size": 15},
        textposition=_beside(experiment, places),
        showlegend=False,
    )
    return saying(figure, _graph_in_words(experiment, graph, apart))


def _used(experiment: Experiment) -> Graph:
    """To whom each worker sends, as far as that is the same every time."""
    from dlpar import graphs as sides
    from dlpar import graphs as topology

    sync, workers, seed = experiment.sync, experiment.workers, experiment.seed
    if sync.exchange == "random":
        return [()] * workers
    if sync.exchange == "push_sum":
        return topology.receivers(sync, workers, seed)
    graph = topology.neighbours(sync, workers, seed)
    return sides.partners(graph)[1] if sync.exchange == "pairwise" else graph


def _edges(graph: Graph, places: np.ndarray, node: int | None) -> dict[str, Any]:
    """All edges as one trace; directed ones have a head at the rim of the node, `node` pixels across, they lead to."""
    edges = [(a, b) for a, to in enumerate(graph) for b in to if node or a < b]
    lines = np.array([p for a, b in edges for p in (places[a], places[b], (np.nan, np.nan))]).reshape(-1, 2)
    drawn = {"x": lines[:, 0], "y": lines[:, 1], "mode": "lines", "line": {"color": EDGE, "width": 2}}
    if node:
        head = {"symbol": "arrow", "angleref": "previous", "standoff": node / 2, "color": EDGE, "opacity": 1}
        drawn |= {"mode": "lines+markers", "marker": {**head, "size": [0, 9 + node // 6, 0] * len(edges)}}
    return {**drawn, "name": "edges", "hoverinfo": "skip", "showlegend": False}


def _graph_in_words(experiment: Experiment, graph: Graph, apart: np.ndarray | None) -> str:
    if experiment.workers == 1:
        return "A single worker has nobody to average with."
    text = f"{experiment.workers} workers{_meeting(experiment, graph)}"
    factor = distances.contraction(experiment)
    if factor is not None:
        text += f"; {says.mixing(factor, experiment, 'their distance')}"
    if apart is not None:
        most = int(np.argmax(apart))
        text += f"; at the end worker {most} is farthest from the mean, {says.quantity(float(apart[most]))}"
    warning = distances.disagreement(experiment)
    return f"{text}.{f' {warning}' if warning else ''}"


def _meeting(experiment: Experiment, graph: Graph) -> str:
    """With whom each averages, as the end of a clause that begins with the workers."""
    exchange, peers = experiment.sync.exchange, experiment.sync.peers
    if exchange == "random":
        others = f"{peers} other{'s' * (peers > 1)}"
        return f"; each sends to {others}, picked anew every time they average, so that no edge stays to be drawn"
    degrees = [len(to) for to in graph]
    mean = sum(degrees) / len(degrees)
    number, uneven = f"{mean:.3g}", " on average" * (len(set(degrees)) > 1)
    if exchange == "push_sum":
        return f"; each sends to {number} other{'s' * (mean != 1)}{uneven}, along the arrows"
    other = "neighbour" if exchange == "neighbours" else "partner"
    return f" with {number} {other}{'s' * (mean != 1)} each{uneven}"


def _places(experiment: Experiment) -> np.ndarray:
    """Where nodes are drawn: on a grid, on a circle around the star's middle, or on a circle; shape (workers, 2)."""
    from dlpar.graphs import grid_shape

    n, kind = experiment.workers, _shape(experiment)
    if kind == "grid":
        _, columns = grid_shape(n)
        return np.array([(i % columns, -(i // columns)) for i in range(n)], dtype=float)
    rim = range(1, n) if kind == "star" else range(n)
    around = [
        (math.sin(2 * math.pi * k / len(rim)), math.cos(2 * math.pi * k / len(rim))) for k in range(len(rim))
    ]
    return np.array(([(0.0, 0.0)] if kind == "star" else []) + around)


def _shape(experiment: Experiment) -> str:
    """The topology; of random peers, which heed none, "random"."""
    return "random" if experiment.sync.exchange == "random" else experiment.sync.topology


def _beside(experiment: Experiment, places: np.ndarray) -> list[str]:
    """Where each node's number stands, clear of its edges: outside a circle, between the lines of a grid."""
    if _shape(experiment) == "grid":
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
    from dlpar.jobs.run import from_the_mean

    rows = from_the_mean(run)
    return (
        None
        if rows.empty
        else rows[rows["step"] == rows["step"].max()].sort_values("rank")["distance"].to_numpy()
    )
