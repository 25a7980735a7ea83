"""Static figure of a mesh: its ranks on their nodes, once for each axis, coloured by the groups that communicate."""

from __future__ import annotations

from typing import NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned
from dlpar.split.mesh import coordinates, groups, part_of, sizes_of
from dlpar.split.mesh import title as mesh_title
from dlpar.worlds.platforms import nodes_of

MOST = 64
"""Most workers that are drawn."""

CARRIES = {
    "data": "gradients", "pipeline": "activations at boundaries", "tensor": "sums inside layers",
    "rows": "halos", "columns": "halos",
}  # fmt: skip
"""Messages that the ranks of a group send each other."""

SYMBOLS = ("circle", "square", "diamond", "hexagon")
"""Symbols of groups: those on which a number can be read."""


class Axis(NamedTuple):
    """Groups along one axis; `across` of them have ranks on more than one node."""

    name: str
    groups: list[list[int]]
    across: int


def mesh(of: Experiment | Run) -> Figure:
    """Draw the ranks of an experiment on the nodes of its platform, once for each axis of its mesh.

    Ranks of one colour and symbol are a group along that axis: only their coordinate on it differs. With a
    parameter server, the groups along ``data`` contain the servers of their part, too. Real ranks are on one node.

    Parameters
    ----------
    of : Experiment or Run
        Experiment with up to 64 workers, or a run of it.

    Raises
    ------
    ValueError
        If there are more workers.
    BadExperiment
        If the platform does not hold the ranks.
    """
    experiment = of.experiment if isinstance(of, Run) else of
    if experiment.workers > MOST:
        raise ValueError(f"workers: got {experiment.workers}, allowed is at most {MOST}: each rank is drawn")
    nodes = [0] * experiment.ranks if experiment.cluster.world == "real" else nodes_of(experiment)
    sizes = sizes_of(experiment)
    axes = [_axis(experiment, name, nodes) for name, size in sizes.items() if size > 1]
    axes = axes or [_axis(experiment, "data", nodes)]
    ranks = range(experiment.ranks)
    at = [coordinates(rank, sizes) if rank < experiment.workers else {} for rank in ranks]
    group = [{rank: ", ".join(map(str, own)) for own in axis.groups for rank in own} for axis in axes]
    columns = [[at[rank].get(name) for rank in ranks] for name in sizes]
    columns += [[each.get(rank, "") for rank in ranks] for each in group]
    rows = list(zip(ranks, nodes, *columns))
    heads = ("rank", "node", *sizes, *(f"{axis.name} group" for axis in axes))
    servers, number = experiment.ranks - experiment.workers, len(set(nodes))
    which = f"{experiment.workers} workers"
    which += f" and {servers} server{'s' * (servers > 1)} (S)" if servers else ""
    parts = "; ".join(f"{axis.name}: {_where(axis)}" for axis in axes)
    where = f"{which} on {number} node{'s' * (number > 1)}"
    sentence = f"{mesh_title(sizes)}, {where}. {parts[0].upper()}{parts[1:]}."
    return captioned(_picture(experiment, axes, nodes), sentence, (heads, rows))


def _axis(experiment: Experiment, name: str, nodes: list[int]) -> Axis:
    found = groups(sizes_of(experiment), name)
    if name == "data":
        part = [0] * experiment.ranks  # replicas of one rank have the whole model
        if experiment.replicas < experiment.workers:
            part = [part_of(experiment, rank) for rank in range(experiment.ranks)]
        servers = range(experiment.workers, experiment.ranks)
        found = [[*own, *(rank for rank in servers if part[rank] == part[own[0]])] for own in found]
    return Axis(name, found, sum(len({nodes[rank] for rank in group}) > 1 for group in found))


def _picture(experiment: Experiment, axes: list[Axis], nodes: list[int]) -> Figure:
    """A panel for each axis, and in it a frame for each node: a column of ranks, or one row if there is one node."""
    alone = len(set(nodes)) == 1
    places = [(rank, 0) if alone else (node, nodes[:rank].count(node)) for rank, node in enumerate(nodes)]
    wide, tall = (1 + max(place[way] for place in places) for way in (0, 1))
    frames = [(-0.5, wide - 0.5)] if alone else [(node - 0.42, node + 0.42) for node in sorted(set(nodes))]
    ticks = {"ticks": "", "tickvals": [] if alone else list(range(wide))}
    look = {"type": "rect", "line": {"color": "rgba(128,128,128,0.7)", "width": 1.5}, "layer": "below"}
    figure = blank(150 + 52 * tall, showlegend=False, margin={"l": 16, "r": 16, "t": 70, "b": 44})
    size = max(16, min(34, 300 // (wide * len(axes)) + 8))
    for number, (axis, domain) in enumerate(zip(axes, theme.columns(len(axes), 0.04)), start=1):
        across = theme.axis("one node" if alone else "node", (-0.6, wide - 0.4), domain=domain, **ticks)
        plain = {"anchor": f"y{number}", "showgrid": False, "showline": False}
        figure.layout[f"xaxis{number}"] = {**across, **plain}
        down = {"range": (tall - 0.4, -0.6), "anchor": f"x{number}", "visible": False}
        figure.layout[f"yaxis{number}"] = down
        text = f"<b>{axis.name}</b>: {CARRIES[axis.name]}<br>{_where(axis)}"
        figure.add_annotation(theme.annotation(text, sum(domain) / 2, 1, xanchor="center"))
        own = {"xref": f"x{number}", "yref": f"y{number}", "y0": -0.5, "y1": tall - 0.5}
        for left, right in frames:
            figure.add_shape(x0=left, x1=right, **own, **look)
        for which, group in enumerate(axis.groups):
            symbol = SYMBOLS[(which + which // len(theme.RANKS)) % len(SYMBOLS)]
            x, y = zip(*(places[rank] for rank in group))
            text = ["S" * (rank >= experiment.workers) + str(rank) for rank in group]
            members = f"%{{text}}, in a group with ranks {captions.listed(map(str, group))}<extra></extra>"
            marker = {"size": size, "symbol": symbol, "color": theme.RANKS[which % len(theme.RANKS)]}
            numbers = {"mode": "markers+text", "textfont": {"color": "#000000", "size": 13}}
            where = {"xaxis": f"x{number}", "yaxis": f"y{number}", "name": f"{axis.name} group {which}"}
            figure.add_scatter(x=x, y=y, text=text, hovertemplate=members, marker=marker, **numbers, **where)
    return figure


def _where(axis: Axis) -> str:
    """Number and size of the groups, and whether they cross nodes."""
    number, size = len(axis.groups), len(axis.groups[0])
    inside = {0: "inside nodes", number: "across nodes"}.get(axis.across, f"{axis.across} across nodes")
    return f"{number} group{'s' * (number > 1)} of {size}, {inside}"
