"""Figures of a split: mesh, pieces of layers on ranks, bytes sent for each layer, and image differences."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import spmd
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned, experiment_of, gantt, require, stacked
from dlpar.split.mesh import coordinates, groups, part_of, sizes_of
from dlpar.split.mesh import title as mesh_title
from dlpar.theory.layers import BOUNDARY, SHARED, boundary_elements, elements_by_layer
from dlpar.worlds.platforms import nodes_of

if TYPE_CHECKING:
    import torch

    from dlpar.lab.figures.probes import Holdings, Piece, SentByLayer

    Images = Sequence[torch.Tensor]
    Shapes = dict[str, tuple[int, int]]


MOST = 64
"""Maximum number of drawn ranks, and of ranks that run to report their pieces."""


def inspectable(of: Experiment | Run) -> Experiment:
    """Return an experiment, or a run's experiment. Raise ValueError if it has too many workers."""
    experiment = experiment_of(of)
    got = experiment.workers
    require(got <= MOST, f"workers: got {got}, allowed is at most {MOST}: each rank is looked at")
    return experiment


# ---- the mesh ---------------------------------------------------------------------------


SYMBOLS = ("circle", "square", "diamond", "hexagon")
"""Symbols of groups. A number on such a symbol stays readable."""


class Axis(NamedTuple):
    """Groups along one axis. `across` of them have ranks on more than one node."""

    name: str
    groups: list[list[int]]
    across: int


def mesh(of: Experiment | Run) -> Figure:
    """Draw an experiment's ranks on the nodes of its platform, once for each axis of its mesh.

    Ranks of one colour and symbol form a group along an axis: they differ only in their coordinate on this
    axis. With a parameter server, groups along ``data`` also contain the servers of their part. Real ranks
    are on one node.

    Parameters
    ----------
    of : Experiment or Run
        Experiment with up to 64 workers, or a run of it.

    Raises
    ------
    ValueError
        If there are more workers.
    BadExperiment
        If the platform cannot hold the ranks.
    """
    e = inspectable(of)
    nodes = [0] * e.members if e.cluster.world == "real" else nodes_of(e)[: e.members]
    sizes = sizes_of(e)
    axes = [_axis(e, name, nodes) for name, size in sizes.items() if size > 1] or [_axis(e, "data", nodes)]
    groups_of = [{rank: ", ".join(map(str, own)) for own in axis.groups for rank in own} for axis in axes]
    rows = []
    for rank, node in enumerate(nodes):
        at = coordinates(rank, sizes) if rank < e.workers else {}
        rows.append((rank, node, *map(at.get, sizes), *(own.get(rank, "") for own in groups_of)))
    heads = ("rank", "node", *sizes, *(f"{axis.name} group" for axis in axes))
    servers, number = e.members - e.workers, len(set(nodes))
    which = f"{e.workers} workers" + f" and {servers} server{'s' * (servers > 1)} (S)" * (servers > 0)
    parts = "; ".join(f"{axis.name}: {_where(axis)}" for axis in axes)
    where = f"{which} on {number} node{'s' * (number > 1)}"
    sentence = f"{mesh_title(sizes)}, {where}. {parts[0].upper()}{parts[1:]}."
    return captioned(_picture(e, axes, nodes), sentence, (heads, rows))


def _axis(experiment: Experiment, name: str, nodes: list[int]) -> Axis:
    found = groups(sizes_of(experiment), name)
    if name == "data":
        part = [0] * experiment.members  # replicas of one rank have the whole model
        if experiment.replicas < experiment.workers:
            part = [part_of(experiment, rank) for rank in range(experiment.members)]
        servers = range(experiment.workers, experiment.members)
        found = [[*own, *(rank for rank in servers if part[rank] == part[own[0]])] for own in found]
    return Axis(name, found, sum(len({nodes[rank] for rank in group}) > 1 for group in found))


def _picture(experiment: Experiment, axes: list[Axis], nodes: list[int]) -> Figure:
    """Draw a panel for each axis. Each node has a frame: a column, or a row if there is one node."""
    alone = len(set(nodes)) == 1
    places = [(rank, 0) if alone else (node, nodes[:rank].count(node)) for rank, node in enumerate(nodes)]
    wide, tall = (1 + max(place[way] for place in places) for way in (0, 1))
    frames = [(-0.5, wide - 0.5)] if alone else [(node - 0.42, node + 0.42) for node in sorted(set(nodes))]
    ticks = {"ticks": "", "tickvals": [] if alone else list(range(wide))}
    figure = blank(150 + 52 * tall, showlegend=False, margin={"l": 16, "r": 16, "t": 70, "b": 44})
    size = max(16, min(34, 300 // (wide * len(axes)) + 8))
    for number, (axis, domain) in enumerate(zip(axes, theme.columns(len(axes), 0.04)), start=1):
        where, plain = {"xaxis": f"x{number}", "yaxis": f"y{number}"}, {"showgrid": False, "showline": False}
        title, ends = "one node" if alone else "node", (-0.6, wide - 0.4)
        across = theme.axis(title, ends, domain=domain, anchor=f"y{number}", **ticks)
        figure.layout[f"xaxis{number}"] = {**across, **plain}
        down = {"range": (tall - 0.4, -0.6), "anchor": f"x{number}", "visible": False}
        figure.layout[f"yaxis{number}"] = down
        text = f"<b>{axis.name}</b>: {theme.CARRIES[axis.name]}<br>{_where(axis)}"
        figure.add_annotation(theme.annotation(text, sum(domain) / 2, 1, xanchor="center"))
        frame = {**theme.LOOKS["frame"], "xref": f"x{number}", "yref": f"y{number}", "y1": tall - 0.5}
        for left, right in frames:
            figure.add_shape(x0=left, x1=right, **frame)
        for which, group in enumerate(axis.groups):
            x, y = zip(*(places[rank] for rank in group))
            text = ["S" * (rank >= experiment.workers) + str(rank) for rank in group]
            members = f"%{{text}}, in a group with ranks {captions.listed(map(str, group))}<extra></extra>"
            symbol = SYMBOLS[(which + which // len(theme.RANKS)) % len(SYMBOLS)]
            marker = {"size": size, "symbol": symbol, "color": theme.RANKS[which % len(theme.RANKS)]}
            look = {**theme.LOOKS["ranks"], "marker": marker, "name": f"{axis.name} group {which}", **where}
            figure.add_scatter(x=x, y=y, text=text, hovertemplate=members, **look)
    return figure


def _where(axis: Axis) -> str:
    """State the number and size of the groups, and whether groups cross nodes."""
    number, size = len(axis.groups), len(axis.groups[0])
    inside = {0: "inside nodes", number: "across nodes"}.get(axis.across, f"{axis.across} across nodes")
    return f"{number} group{'s' * (number > 1)} of {size}, {inside}"


# ---- pieces of layers -------------------------------------------------------------------


CELL, BIAS = (0.06, 0.94), (0.84, 0.94)
"""Left and right end of a layer and of its bias in a rank's column."""

TALL = 0.76
"""Height of a layer in its row."""

WHOLE = "rgba(128,128,128,0.22)"
"""Colour of the parts of a layer that a rank does not hold."""


def pieces(of: Experiment | Run) -> Figure:
    """Draw each rank's pieces of each layer.

    The split cuts the model as in training. Then each rank reports its weights
    (:mod:`dlpar.lab.figures.probes`). Weights are drawn as matrices, outputs downwards and inputs to the
    right, and the bias as a strip beside the matrix. A spatial split also cuts images, which are drawn with
    halos. Ranks of one colour and pattern hold the same pieces. With ``zero=1`` every rank has all weights,
    and the figure shows the part that the rank updates.

    Parameters
    ----------
    of : Experiment or Run
        Experiment with up to 64 workers, or a run of it. The first 16 workers are drawn.

    Raises
    ------
    ValueError
        If there are more workers, or if a workload stands in for the model, so that there are no weights.
    """
    experiment = inspectable(of)
    require(experiment.split.kind != "stacking", "split: got stacking, allowed is one that cuts one model")
    # Exact for the numbers that identify weights.
    numbered = plain(experiment, dtype="float64", precision="full")
    held = spmd(probed, "holdings", numbered, workers=experiment.workers, world="simulated")
    return drawing(experiment, held[: theme.workers(experiment)])


def plain(experiment: Experiment, **changes: Any) -> Experiment:
    """Return an experiment with the same split and model for a single step, without servers, averages or deaths.

    Raises
    ------
    ValueError
        If a workload stands in for the model.
    """
    workload, allowed = experiment.cluster.stand_in_for, "allowed is nothing: it has no weights"
    require(workload is None, f"cluster.stand_in_for: got {workload!r}, {allowed}")
    sync = {} if experiment.sync.scheme == "ring" else "ring"
    changes |= {"sync": sync, "averaging": "none", "deaths": "end", "cluster": {"messages": "values"}}
    return experiment.replace(steps=1, **changes)


def probed(comm: Any, what: str, experiment: Experiment) -> Any:
    """Call a function of :mod:`dlpar.lab.figures.probes` on this rank."""
    from dlpar.lab.figures import probes  # imported here, because it imports torch

    return getattr(probes, what)(comm, experiment)


def drawing(experiment: Experiment, held: Sequence[Holdings]) -> Figure:
    """Draw the pieces that ranks hold."""
    shapes, ranks = held[0].shapes, range(len(held))
    layers = list(dict.fromkeys(map(_layer, shapes)))
    height = round(max(20, min(70, 700 / len(layers))))  # pixels of a row; few layers have taller rows
    figure = blank(150 + height * len(layers), **_layout(experiment, layers, held))

    def add(of: Iterable[int], pieces: str, **look: Any) -> None:
        found = [(rank, piece) for rank in of for piece in getattr(held[rank], pieces, whole)]
        boxes = [_box(rank, piece, layers, shapes) for rank, piece in found]
        if boxes:
            look = {"textposition": "none", "hovertemplate": "%{text}<extra></extra>", **look}
            gantt(figure, [box for box, _ in boxes], width=[tall for _, tall in boxes], **look)

    whole = [(name, (0, tall), (0, wide)) for name, (tall, wide) in shapes.items()]
    add(ranks, "", name="not held", marker_color=WHOLE, hoverinfo="skip", hovertemplate=None)
    for number, alike in enumerate(_alike(held)):
        colour = theme.RANKS[number % len(theme.RANKS)]
        marker = {"color": colour, "pattern": theme.hatch(theme.PATTERNS[number // len(theme.RANKS)])}
        name = f"rank{'s' * (len(alike) > 1)} {captions.listed(map(str, alike))}"
        faint = {"marker_color": theme.faint(colour), "opacity": 0.6, "showlegend": False}
        add(alike, "halos", name=name, **faint)
        add(alike, "pieces", name=name, marker=marker)
    return captioned(figure, _sentence(experiment, held), _table(held))


def _layer(name: str) -> str:
    """Return the layer of a parameter. Images have their own rows."""
    return name if name.startswith("image.") else name.rpartition(".")[0]


def _alike(held: Sequence[Holdings]) -> list[list[int]]:
    """Return groups of ranks that hold the same pieces."""
    same = defaultdict[tuple, list[int]](list)
    for rank, own in enumerate(held):
        same[tuple(own.pieces)].append(rank)
    return list(same.values())


def _box(rank: int, piece: tuple, layers: list[str], shapes: Shapes) -> tuple[tuple, float]:
    """Return the bar and height of a parameter's block in a rank's column and a layer's row."""
    name, rows, columns = piece
    layer, (left, right), (tall, wide) = _layer(name), CELL, shapes[name]
    if name.endswith(".bias"):
        left, right = BIAS
    elif f"{layer}.bias" in shapes:
        right = BIAS[0] - 0.03
    start, stop = (left + (right - left) * end / wide for end in columns)
    middle = layers.index(layer) + TALL * (sum(rows) / 2 / tall - 0.5)
    hover = f"rank {rank}, {name}<br>rows {_span(rows, tall)}<br>columns {_span(columns, wide)}"
    return (middle, rank + start, stop - start, hover), TALL * (rows[1] - rows[0]) / tall


def _span(part: tuple[int, int], of: int) -> str:
    return f"{part[0]:,} to {part[1] - 1:,} of {of:,}" if part[1] - part[0] < of else f"all {of:,}"


def _layout(experiment: Experiment, layers: list[str], held: Sequence[Holdings]) -> dict[str, Any]:
    crowded, shapes = len(held) > 8, held[0].shapes
    lengths = {"data": experiment.replicas, **experiment.split.axes(experiment.workers)}
    axes = [axis for axis in held[0].place if lengths[axis] > 1]  # along other axes, ranks do not differ
    names = []
    for rank, own in enumerate(held):
        places = [f"{axis[0] if crowded else axis} {own.place[axis]}" for axis in axes]
        names.append("<br>".join([f"{rank}" if crowded else f"rank {rank}", *places]))
    title = f"rank{'; ' * bool(axes)}{', '.join(f'{axis[0]}: {axis}' for axis in axes)}" if crowded else ""
    ticks = {"tickvals": [rank + 0.5 for rank in range(len(held))], "ticktext": names, "tickangle": 0}
    xaxis = theme.axis(title, (0, len(held)), **ticks, showgrid=False, automargin=True)
    yaxis = theme.rows([_titled(layer, shapes) for layer in layers], automargin=True)
    return {"xaxis": xaxis, "yaxis": yaxis, "barmode": "overlay", "bargap": 0}


def _titled(layer: str, shapes: Shapes) -> str:
    """Return the name and size of a layer."""
    tall, wide = next(shape for name, shape in shapes.items() if _layer(name) == layer)
    if layer.startswith("image."):
        return f"image into {layer[6:]}  {tall} × {wide}"
    return f"{layer}  {tall:,}" + (f" × {wide:,}" if wide > 1 else "")


def _elements(piece: Piece) -> int:
    """Return the number of elements of weights, of a bias or of an image."""
    return (piece.rows[1] - piece.rows[0]) * (piece.columns[1] - piece.columns[0])


def _held(own: Holdings, of_images: bool) -> int:
    """Return the number of elements of images, or of weights and biases, that a rank holds."""
    return sum(_elements(piece) for piece in own.pieces if piece.name.startswith("image.") == of_images)


def _sentence(experiment: Experiment, held: Sequence[Holdings]) -> str:
    shapes = [(name.startswith("image."), math.prod(shape)) for name, shape in held[0].shapes.items()]
    total, image = (sum(size for of_image, size in shapes if of_image == which) for which in (False, True))
    own = [_held(each, of_images=False) / total for each in held]
    holds = "updates" if getattr(experiment.split, "zero", 0) == 1 else "holds"
    text = f"Each rank {holds} {_shares(own)} of the model's {total:,} parameters"
    if experiment.workers == len(held) > 1:
        copies = round(sum(own), 2)
        text += f", and all {len(held)} together hold {f'{copies:g} models' if copies != 1 else 'one model'}"
    if image:
        of_image = _shares([_held(each, of_images=True) / image for each in held])
        text += f", and {of_image} of all images together; its halo is drawn faint"
    parts = len(_alike(held))
    if 1 < parts < len(held):
        text += f"; there are {parts} different parts, and ranks of the same colour hold the same part"
    return captions.shown_workers(experiment, f"{text}.")


def _shares(shares: Sequence[float]) -> str:
    least, most = f"{min(shares):.1%}", f"{max(shares):.1%}"
    return "all" if min(shares) == 1 else least if least == most else f"{least} to {most}"


def _table(held: Sequence[Holdings]) -> tuple[Sequence[str], list[tuple]]:
    span = lambda ends: f"{ends[0]}–{ends[1] - 1}"
    rows = [
        (rank, f"{piece.name}{suffix}", span(piece.rows), span(piece.columns), _elements(piece))
        for rank, own in enumerate(held)
        for suffix, pieces in (("", own.pieces), (" with halo", own.halos))
        for piece in pieces
    ]
    return ("rank", "layer", "rows", "columns", "elements"), rows


# ---- bytes sent for each layer ------------------------------------------------------


KINDS = ("tensor", "spatial", "pipeline", "hybrid")
"""Splits whose ranks send in the forward and the backward pass."""

PASSES = ("forward", "backward")


def layer_bytes(of: Experiment | Run) -> Figure:
    """Draw the bytes that one replica's ranks send for each layer in a step, and their closed form.

    One step runs in the simulated world, and every message is counted where it is sent. The
    synchronisation of replicas is not included (:func:`dlpar.lab.waiting`).

    Parameters
    ----------
    of : Experiment or Run
        Experiment with up to 64 workers, split by tensor, spatial, pipeline or hybrid, or a run of it.

    Raises
    ------
    ValueError
        If it is split in another way, has more workers, or a workload stands in for its model.
    """
    experiment, kinds = inspectable(of), ", ".join(KINDS)
    refusal = f"split: got {experiment.split}, allowed is one of {kinds}: its layers send nothing"
    require(experiment.split.kind in KINDS, refusal)
    ranks = spmd(probed, "sent", plain(experiment), workers=experiment.workers, world="simulated")
    return drawn_bytes(experiment, [rank for rank in ranks if rank.replica == 0])


def drawn_bytes(experiment: Experiment, ranks: list[SentByLayer]) -> Figure:
    """Draw the bytes that the ranks of a replica sent."""
    measured: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(PASSES, 0))
    for rank in ranks:
        for (name, during), sent in rank.bytes.items():
            measured[name][during] += sent
    formula = _formulas(experiment, list(measured))
    order = [name for layer in [*ranks[0].layers, "whole"] for name in (layer, BOUNDARY + layer)]
    names = sorted({*measured, *formula}, key=lambda name: order.index(name) if name in order else len(order))
    split, workers = experiment.split, experiment.workers
    require(len(names) > 0, f"workers: got {workers}, allowed with split {split} is more: nothing is sent")
    heads = ("layer", "forward (bytes)", "backward (bytes)", "both (bytes)", "closed form (bytes)")
    table = []
    for name in names:
        sent = measured[name].values()
        table.append((name, *sent, sum(sent), formula.get(name)))
    scale, unit = theme.unit_of(max(max(both, form or 0) for *_, both, form in table))
    parts = {}
    for during in PASSES:
        bytes_in = [measured[name][during] / scale for name in names]
        parts[during] = {"marker_color": theme.PIPELINE[during]}, bytes_in
    marks = "closed form, both passes", [form and form / scale for *_, form in table]
    figure = stacked(f"sent by the ranks of one replica in a step ({unit})", names, parts, marks)
    return captioned(figure, _bytes_in_words(table, len(ranks)), (heads, table))


def _formulas(experiment: Experiment, measured: list[str]) -> dict[str, float]:
    """Return closed-form bytes for layers and for the measured boundaries."""
    full = experiment.itemsize
    of_activations = full if experiment.precision != "bf16" else 2
    found = dict(elements_by_layer(experiment))
    for name in measured:
        if name.startswith(BOUNDARY):
            found[name] = boundary_elements(experiment, name.removeprefix(BOUNDARY))
    return {name: (full if name == SHARED else of_activations) * n for name, n in found.items()}


def _bytes_in_words(table: list[tuple], ranks: int) -> str:
    totals = {name: both for name, _, _, both, _ in table}
    most, everything = max(totals, key=totals.__getitem__), sum(totals.values())
    text = f"In a step the {ranks} ranks of a replica send each other {captions.nbytes(everything)}"
    text += f", {totals[most] / everything:.0%} of it for {most}" if everything else ""
    known = {name: form for name, *_, form in table if form is not None}
    off = [name for name, form in known.items() if form != totals[name]]
    if off:
        text += f"; {captions.listed(off)} {'differs' if len(off) == 1 else 'differ'} from the closed form"
    elif known:
        which = " that has one" * (len(known) < len(table))
        text += f"; every row{which} equals the closed form, to the byte"
    return f"{text}."


# ---- differences of images ----------------------------------------------------------


ROUNDING = 1e-12
"""Largest float64 difference that counts as rounding and is not drawn, as a share of the largest number."""

GAP = 0.06
"""Gap between two images, as a share of the figure's width."""


def differences(got: Images, expected: Images, titles: Sequence[str]) -> Figure:
    """Draw the differences between images as shares of the largest expected value.

    Rounding errors are left out.

    Parameters
    ----------
    got, expected : sequence of Tensor, shape (..., height, width)
        Images to compare in pairs. The largest difference of all channels is drawn.
    titles : sequence of str
        Name of each pair.

    Raises
    ------
    ValueError
        If there is no image, or lengths or shapes differ.
    """
    allowed = f"as many as expected, {len(expected)}, and titles, from 1"
    require(len(got) == len(expected) == len(titles) > 0, f"got: got {len(got)}, allowed is {allowed}")
    shares = [_share(mine, right) for mine, right in zip(got, expected)]
    most, domains = max(float(share.max()) for share in shares), theme.columns(len(shares), GAP)
    figure, rows = blank(showlegend=False), []
    for place, (share, title, domain) in enumerate(zip(shares, titles, domains), start=1):
        across = {"domain": domain, "anchor": f"y{place}", **theme.LOOKS["image"]}
        down = {"anchor": f"x{place}", "scaleanchor": f"x{place}", **theme.LOOKS["image"]}
        height, width = share.shape
        figure.layout[f"xaxis{place}"] = theme.axis("column", (-0.5, width - 0.5), **across)
        figure.layout[f"yaxis{place}"] = theme.axis("row" * (place == 1), (height - 0.5, -0.5), **down)
        figure.add_annotation(theme.annotation(title, sum(domain) / 2, 1, xanchor="center"))
        z, hover = share.where(share > ROUNDING, float("nan")).tolist(), "row %{y}, column %{x}: %{z:.1%}"
        scale = {**theme.LOOKS["differences"], "zmax": most or 1, "colorbar": theme.LOOKS["difference"]}
        where = {"name": title, "xaxis": f"x{place}", "yaxis": f"y{place}", "showscale": place == len(shares)}
        figure.add_heatmap(z=z, hovertemplate=f"{hover}<extra></extra>", **scale, **where)
        rows.append((title, int((share > ROUNDING).sum()), share.numel(), float(share.max())))
    parts = []
    for title, count, total, largest in rows:
        by = f", by up to {captions.quantity(100 * largest)}% of the largest number" if count else ""
        parts.append(f"{title}: {f'{count:,}' if count else 'none'} of {total:,}{by}")
    heads = ("image", "pixels that differ", "of", "largest difference / largest number")
    sentence = f"Pixels that differ from those of one process: {'; '.join(parts)}."
    return captioned(figure, sentence, (heads, rows))


def _share(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the largest difference over all channels, divided by the largest expected value.

    The shape is (height, width).
    """
    allowed = f"allowed is the expected one, {tuple(expected.shape)}"
    require(got.shape == expected.shape, f"got: got shape {tuple(got.shape)}, {allowed}")
    return (got.detach() - expected.detach()).abs().flatten(0, -3).amax(0) / expected.detach().abs().max()
