"""Static figures of a split: the pieces of each layer that each rank holds, the bytes sent for each, and images."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import spmd
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned, gantt, stacked
from dlpar.theory.layers import BOUNDARY, SHARED, boundary_elements, elements_by_layer

if TYPE_CHECKING:
    import torch

    from dlpar.lab.figures.probes import Holdings, Piece, SentByLayer


CELL, BIAS = (0.06, 0.94), (0.84, 0.94)
"""Left and right end of a layer and of its bias in a rank's column."""

TALL = 0.76
"""Height of a layer in its row."""

WHOLE = "rgba(128,128,128,0.22)"
"""Colour of the parts of a layer that a rank does not hold."""

MOST = 64
"""Most ranks that are run to see what they hold."""


def pieces(of: Experiment | Run) -> Figure:
    """Draw the pieces of each layer that each rank holds.

    The split cuts the model as in training; then each rank reports its weights (:mod:`dlpar.lab.figures.probes`).
    Weights are drawn as matrices, outputs downwards and inputs to the right, with the bias as a strip
    beside them. A spatial split also cuts images, which are drawn with their halos. Ranks of one colour and
    pattern hold the same. With ``zero=1`` every rank has all weights; the part it updates is drawn.

    Parameters
    ----------
    of : Experiment or Run
        Experiment with up to 64 workers, or a run of it; the first 16 workers are drawn.

    Raises
    ------
    ValueError
        If there are more workers, or a workload stands in for the model, which then has no weights.
    """
    experiment = of.experiment if isinstance(of, Run) else of
    numbered = plain(experiment, dtype="float64")  # exact for the numbers that identify weights
    held = spmd(_look, numbered, workers=experiment.workers, world="simulated")
    return drawing(experiment, held[: theme.workers(experiment)])


def plain(experiment: Experiment, **changes: Any) -> Experiment:
    """The same split of the same model for a single step, without servers.

    Raises
    ------
    ValueError
        If there are too many workers, or a workload stands in for the model.
    """
    workers, workload = experiment.workers, experiment.cluster.stand_in_for
    if workers > MOST:
        raise ValueError(f"workers: got {workers}, allowed is at most {MOST}: each rank is looked at")
    if workload is not None:
        allowed = "allowed is nothing: it has no weights"
        raise ValueError(f"cluster.stand_in_for: got {workload!r}, {allowed}")
    sync = {} if experiment.sync.scheme == "ring" else "ring"
    return experiment.replace(sync=sync, steps=1, cluster={"messages": "values"}, **changes)


def _look(comm: Any, experiment: Experiment) -> Holdings:
    """Report what this rank holds."""
    from dlpar.lab.figures.probes import holdings  # here: imports torch

    return holdings(comm, experiment)


def drawing(experiment: Experiment, held: Sequence[Holdings]) -> Figure:
    """Draw what ranks hold."""
    shapes = held[0].shapes
    layers = list(dict.fromkeys(map(_layer, shapes)))
    height = round(max(20, min(70, 700 / len(layers))))  # pixels of a row; few layers have taller rows
    figure = blank(150 + height * len(layers), **_layout(experiment, layers, held))

    def add(blocks: Iterable[tuple[int, Piece]], **look: Any) -> None:
        boxes = [_box(rank, *piece, layers, shapes) for rank, piece in blocks]
        if boxes:
            look = {"textposition": "none", "hovertemplate": "%{text}<extra></extra>", **look}
            gantt(figure, [box for box, _ in boxes], width=[tall for _, tall in boxes], **look)

    whole = [(name, (0, tall), (0, wide)) for name, (tall, wide) in shapes.items()]
    everything = [(rank, block) for rank in range(len(held)) for block in whole]
    add(everything, name="not held", marker_color=WHOLE, hoverinfo="skip", hovertemplate=None)
    for number, ranks in enumerate(_alike(held)):
        colour = theme.RANKS[number % len(theme.RANKS)]
        marker = {"color": colour, "pattern": theme.hatch(theme.PATTERNS[number // len(theme.RANKS)])}
        name = f"rank{'s' * (len(ranks) > 1)} {captions.listed(map(str, ranks))}"
        faint = {"marker_color": theme.faint(colour), "opacity": 0.6, "showlegend": False}
        add([(rank, halo) for rank in ranks for halo in held[rank].halos], name=name, **faint)
        add([(rank, piece) for rank in ranks for piece in held[rank].pieces], name=name, marker=marker)
    return captioned(figure, _sentence(experiment, held), _table(held))


def _layer(name: str) -> str:
    """Layer of a parameter; images have rows of their own."""
    return name if name.startswith("image.") else name.rpartition(".")[0]


def _alike(held: Sequence[Holdings]) -> list[list[int]]:
    """Groups of ranks that hold the same."""
    same: dict[tuple, list[int]] = defaultdict(list)
    for rank, own in enumerate(held):
        same[tuple(own.pieces)].append(rank)
    return list(same.values())


def _box(
    rank: int,
    name: str,
    rows: tuple[int, int],
    columns: tuple[int, int],
    layers: list[str],
    shapes: dict[str, tuple[int, int]],
) -> tuple[tuple[float, float, float, str], float]:
    """Place a block of a parameter in a rank's column and a layer's row: its bar, and its height."""
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
    axes = [axis for axis in held[0].place if lengths[axis] > 1]  # along others, ranks do not differ
    names = [
        "<br>".join([f"{rank}" if crowded else f"rank {rank}",
                     *(f"{axis[0] if crowded else axis} {own.place[axis]}" for axis in axes)])
        for rank, own in enumerate(held)
    ]  # fmt: skip
    title = f"rank{'; ' * bool(axes)}{', '.join(f'{axis[0]}: {axis}' for axis in axes)}" if crowded else ""
    ticks = {"tickvals": [rank + 0.5 for rank in range(len(held))], "ticktext": names, "tickangle": 0}
    xaxis = theme.axis(title, (0, len(held)), **ticks, showgrid=False, automargin=True)
    yaxis = theme.rows([_titled(layer, shapes) for layer in layers], automargin=True)
    return {"xaxis": xaxis, "yaxis": yaxis, "barmode": "overlay", "bargap": 0}


def _titled(layer: str, shapes: dict[str, tuple[int, int]]) -> str:
    """Name and size of a layer."""
    tall, wide = next(shape for name, shape in shapes.items() if _layer(name) == layer)
    if layer.startswith("image."):
        return f"image into {layer[6:]}  {tall} × {wide}"
    return f"{layer}  {tall:,}" + (f" × {wide:,}" if wide > 1 else "")


def _elements(pieces: Sequence[Piece]) -> int:
    """Number of elements, of weights and biases or of images."""
    return sum((p.rows[1] - p.rows[0]) * (p.columns[1] - p.columns[0]) for p in pieces)


def _sentence(experiment: Experiment, held: Sequence[Holdings]) -> str:
    shapes = held[0].shapes
    images = {name for name in shapes if name.startswith("image.")}
    image, total = (sum(math.prod(shapes[name]) for name in of) for of in (images, shapes.keys() - images))
    own = [_elements([piece for piece in each.pieces if piece.name not in images]) / total for each in held]
    holds = "updates" if getattr(experiment.split, "zero", 0) == 1 else "holds"
    text = f"Each rank {holds} {_shares(own)} of the model's {total:,} parameters"
    if experiment.workers == len(held) > 1:
        copies = round(sum(own), 2)
        text += f", all {len(held)} together {f'{copies:g} models' if copies != 1 else 'one model'}"
    if image:
        parts = [_elements([piece for piece in each.pieces if piece.name in images]) / image for each in held]
        text += f", and {_shares(parts)} of each image; its halo is faint"
    parts = len(_alike(held))
    if 1 < parts < len(held):
        text += f"; there are {parts} different parts, and ranks of one colour hold the same"
    return captions.shown_workers(experiment, f"{text}.")


def _shares(shares: Sequence[float]) -> str:
    least, most = f"{min(shares):.1%}", f"{max(shares):.1%}"
    if min(shares) == 1:
        return "all"
    return least if least == most else f"{least} to {most}"


def _table(held: Sequence[Holdings]) -> tuple[Sequence[str], list[tuple]]:
    span = lambda ends: f"{ends[0]}–{ends[1] - 1}"
    rows = [
        (rank, f"{piece.name}{suffix}", span(piece.rows), span(piece.columns), _elements([piece]))
        for rank, own in enumerate(held)
        for suffix, pieces in (("", own.pieces), (" with halo", own.halos))
        for piece in pieces
    ]
    return ("rank", "layer", "rows", "columns", "elements"), rows


# ---- bytes sent for each layer ------------------------------------------------------


KINDS = ("tensor", "spatial", "pipeline", "hybrid")
"""Splits whose ranks send in the forward and the backward pass."""

PASSES = {"forward": "#3A97CC", "backward": "#2CA079"}
"""Colour of each pass, as in figures of pipelines."""


def layer_bytes(of: Experiment | Run) -> Figure:
    """Draw the bytes that the ranks of one replica send for each layer in a step, and the closed form.

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
    experiment = of.experiment if isinstance(of, Run) else of
    if experiment.split.kind not in KINDS:
        kinds = ", ".join(KINDS)
        raise ValueError(f"split: got {experiment.split}, allowed is one of {kinds}: its layers send nothing")
    ranks = spmd(_count, plain(experiment), workers=experiment.workers, world="simulated")
    return drawn_bytes(experiment, [rank for rank in ranks if rank.replica == 0])


def _count(comm: Any, experiment: Experiment) -> SentByLayer:
    """Report the bytes that this rank sends."""
    from dlpar.lab.figures.probes import sent  # here: imports torch

    return sent(comm, experiment)


def drawn_bytes(experiment: Experiment, ranks: list[SentByLayer]) -> Figure:
    """Draw the bytes that the ranks of a replica sent."""
    measured: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(PASSES, 0))
    for rank in ranks:
        for (name, during), sent in rank.bytes.items():
            measured[name][during] += sent
    formula = _formulas(experiment, list(measured))
    order = [name for layer in [*ranks[0].layers, "whole"] for name in (layer, BOUNDARY + layer)]
    names = sorted({*measured, *formula}, key=lambda name: order.index(name) if name in order else len(order))
    if not names:
        split, workers = experiment.split, experiment.workers
        raise ValueError(f"workers: got {workers}, allowed with split {split} is more: nothing is sent")
    rows = [(name, *measured[name].values(), formula.get(name)) for name in names]
    scale, unit = (1e6, "MB") if max(max(a + b, form or 0) for _, a, b, form in rows) >= 1e6 else (1e3, "kB")
    parts = {}
    for during, colour in PASSES.items():
        parts[during] = {"marker_color": colour}, [measured[name][during] / scale for name in names]
    marks = "closed form, both passes", [form and form / scale for *_, form in rows]
    figure = stacked(f"sent by the ranks of one replica in a step ({unit})", names, parts, marks)
    heads = ("layer", "forward (bytes)", "backward (bytes)", "both (bytes)", "closed form (bytes)")
    table = [(name, forward, backward, forward + backward, form) for name, forward, backward, form in rows]
    return captioned(figure, _bytes_in_words(table, len(ranks)), (heads, table))


def _formulas(experiment: Experiment, measured: list[str]) -> dict[str, float]:
    """Bytes by the closed forms, for layers and for the boundaries that were measured."""
    full = {"float32": 4, "float64": 8}[experiment.dtype]
    of_activations = full if experiment.precision == "full" else 2
    found = {}
    for name, elements in elements_by_layer(experiment).items():
        found[name] = (full if name == SHARED else of_activations) * elements
    for name in measured:
        if name.startswith(BOUNDARY):
            found[name] = of_activations * boundary_elements(experiment, name.removeprefix(BOUNDARY))
    return found


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
        which = "every row is" if len(known) == len(table) else f"{len(known)} of {len(table)} rows are"
        text += f"; {which} equal to the closed form, to the byte"
    return f"{text}."


# ---- differences of images ----------------------------------------------------------


ROUNDING = 1e-12
"""Largest difference of float64 that counts as rounding and is not drawn, as a share of the largest number."""

GAP = 0.06
"""Gap between two images, as a share of the figure's width."""


def differences(
    got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], titles: Sequence[str]
) -> Figure:
    """Draw the differences of images, as shares of the largest expected number; rounding stays empty.

    Parameters
    ----------
    got, expected : sequence of Tensor, shape (..., height, width)
        Images to compare in pairs; the largest difference of all channels is drawn.
    titles : sequence of str
        Name of each pair.

    Raises
    ------
    ValueError
        If there is no image, or lengths or shapes differ.
    """
    if not len(got) == len(expected) == len(titles) > 0:
        allowed = f"as many as expected, {len(expected)}, and titles, from 1"
        raise ValueError(f"got: got {len(got)}, allowed is {allowed}")
    shares = [_share(mine, right) for mine, right in zip(got, expected)]
    most, domains = max(float(share.max()) for share in shares), theme.columns(len(shares), GAP)
    figure, rows = blank(showlegend=False), []
    for place, (share, title, domain) in enumerate(zip(shares, titles, domains), start=1):
        fixed = {"showgrid": False, "constrain": "domain", "constraintoward": "center"}
        across = {"domain": domain, "anchor": f"y{place}", **fixed}
        down = {"anchor": f"x{place}", "scaleanchor": f"x{place}", **fixed}
        height, width = share.shape
        figure.layout[f"xaxis{place}"] = theme.axis("column", (-0.5, width - 0.5), **across)
        figure.layout[f"yaxis{place}"] = theme.axis("row" * (place == 1), (height - 0.5, -0.5), **down)
        figure.add_annotation(theme.annotation(title, sum(domain) / 2, 1, xanchor="center"))
        bar = {"title": {"text": "difference", "side": "right"}, "tickformat": ".0%", "thickness": 14}
        z, hover = share.where(share > ROUNDING, float("nan")).tolist(), "row %{y}, column %{x}: %{z:.1%}"
        scale = {
            "zmin": 0,
            "zmax": most or 1,
            "colorscale": theme.SCALE,
            "colorbar": bar,
            "hoverongaps": False,
        }
        where = {"name": title, "xaxis": f"x{place}", "yaxis": f"y{place}", "showscale": place == len(shares)}
        figure.add_heatmap(z=z, hovertemplate=f"{hover}<extra></extra>", **scale, **where)
        rows.append((title, int((share > ROUNDING).sum()), share.numel(), float(share.max())))
    parts = []
    for title, count, total, largest in rows:
        by = f", by up to {captions.quantity(100 * largest)}% of the largest number" if count else ""
        parts.append(f"{title}: {f'{count:,}' if count else 'none'} of {total:,}{by}")
    heads = ("image", "elements that differ", "of", "largest difference / largest number")
    sentence = f"Elements that differ from those of one process: {'; '.join(parts)}."
    return captioned(figure, sentence, (heads, rows))


def _share(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Largest difference of all channels over the largest expected number, shape (height, width)."""
    if got.shape != expected.shape:
        allowed = f"allowed is the expected one, {tuple(expected.shape)}"
        raise ValueError(f"got: got shape {tuple(got.shape)}, {allowed}")
    apart = (got.detach() - expected.detach()).abs().flatten(0, -3).amax(0)
    return apart / expected.detach().abs().max()
