"""Static figure of which rank holds which piece of which layer, as the split itself has cut the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import spmd
from dlpar.jobs.run import Run
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.figure import Figure, blank, saying
from dlpar.lab.live import rank_lines as shown

if TYPE_CHECKING:
    import torch

    from dlpar.lab.probes import Holdings, Piece


CELL, BIAS = (0.06, 0.94), (0.84, 0.94)
"""From where to where in a rank's column a layer reaches, and its bias; the weight ends short of the bias."""

TALL = 0.76
"""Height of a layer in its row."""

WHOLE = "rgba(128,128,128,0.22)"
"""Colour of what a rank does not hold of a layer."""

MOST = 64
"""Most ranks whose holdings are looked at."""


class Box(NamedTuple):
    """A piece as it is drawn: its lower left corner, its size, and what it is."""

    x: float
    y: float
    width: float
    height: float
    hover: str


def pieces(of: Experiment | Run) -> Figure:
    """Which rank holds which piece of which layer.

    The split cuts the model as in training; then each rank is asked what it has (:mod:`dlpar.lab.probes`).
    Weights are drawn as matrices, outputs downwards and inputs to the right, with the bias as a strip
    beside them; of a spatial split images, too, with the halo that is lent.  Ranks of one colour and
    pattern hold the same.  With ``zero=1`` every rank has all weights: drawn is what it updates.

    Parameters
    ----------
    of : Experiment or Run
        With up to 64 workers; the first 16 are drawn.

    Raises
    ------
    ValueError
        If there are more workers, or a workload stands in for the model, which then has no weights.
    """
    experiment = of.experiment if isinstance(of, Run) else of
    numbered = plain(experiment, dtype="float64")  # in which weights can be told apart by numbers
    held = spmd(_look, numbered, workers=experiment.workers, world="simulated")
    return drawing(experiment, held[: shown.workers(experiment)])


def plain(experiment: Experiment, **changes: Any) -> Experiment:
    """The same split of the same model for a single step, without servers.

    Raises
    ------
    ValueError
        If there are more workers than can be looked at, or a workload stands in for the model.
    """
    if experiment.workers > MOST:
        raise ValueError(
            f"workers: got {experiment.workers}, allowed is at most {MOST}: each rank is looked at"
        )
    if experiment.cluster.stand_in_for is not None:
        raise ValueError(
            f"cluster.stand_in_for: got {experiment.cluster.stand_in_for!r}, allowed is nothing: it has no weights"
        )
    sync = {} if experiment.sync.scheme == "ring" else "ring"
    return experiment.replace(sync=sync, steps=1, cluster={"messages": "values"}, **changes)


def _look(comm: Any, experiment: Experiment) -> Holdings:
    """What a rank answers."""
    from dlpar.lab.probes import holdings  # here: imports torch

    return holdings(comm, experiment)


def drawing(experiment: Experiment, held: Sequence[Holdings]) -> Figure:
    """The picture of what was found."""
    shapes = held[0].shapes
    layers = list(dict.fromkeys(_layer(name) for name in shapes))
    with_bias = {_layer(name) for name in shapes if name.endswith(".bias")}
    figure = blank(_layout(experiment, layers, shapes, held), 150 + _row_height(layers) * len(layers))
    frames = [
        _box(
            rank,
            layers.index(_layer(name)),
            name,
            shapes,
            with_bias,
            (0, shapes[name][0]),
            (0, shapes[name][1]),
        )
        for rank in range(len(held))
        for name in shapes
    ]
    _add(figure, frames, name="not held", marker={"color": WHOLE}, hoverinfo="skip")
    for number, ranks in enumerate(_alike(held)):
        colour = theme.RANKS[number % len(theme.RANKS)]
        pattern = theme.PATTERNS[(number + number // len(theme.RANKS)) % len(theme.PATTERNS)]
        for kind in ("halos", "pieces"):
            boxes = [
                _box(
                    rank,
                    layers.index(_layer(piece.name)),
                    piece.name,
                    shapes,
                    with_bias,
                    piece.rows,
                    piece.columns,
                )
                for rank in ranks
                for piece in getattr(held[rank], kind)
            ]
            hatch = {**theme.hatch(pattern), "fgopacity": 0.5} if pattern else {}
            style = {"marker": {"color": colour, "pattern": hatch}}
            if kind == "halos":
                style = {"marker": {"color": theme.faint(colour)}, "opacity": 0.6, "showlegend": False}
            _add(figure, boxes, name=f"rank{'s' * (len(ranks) > 1)} {says.listed(map(str, ranks))}", **style)
    saying(figure, _sentence(experiment, held))
    figure.layout.meta = {**figure.layout.meta, "table": _table(held)}
    return figure


def _row_height(layers: list[str]) -> int:
    """In pixels; few layers are drawn taller."""
    return round(max(20, min(70, 700 / len(layers))))


def _layer(name: str) -> str:
    """The layer of a parameter; images are rows of their own."""
    return name if name.startswith("image.") else name.rpartition(".")[0]


def _alike(held: Sequence[Holdings]) -> list[list[int]]:
    """Ranks that hold the same, together."""
    same: dict[tuple, list[int]] = defaultdict(list)
    for rank, own in enumerate(held):
        same[tuple(own.pieces)].append(rank)
    return list(same.values())


def _box(
    rank: int,
    row: int,
    name: str,
    shapes: dict[str, tuple[int, int]],
    with_bias: set[str],
    rows: tuple[int, int],
    columns: tuple[int, int],
) -> Box:
    """Where a block of a parameter is drawn."""
    left, right = CELL
    if name.endswith(".bias"):
        left, right = BIAS
    elif _layer(name) in with_bias:
        right = BIAS[0] - 0.03
    tall, wide = shapes[name]
    x, width = left + (right - left) * columns[0] / wide, (right - left) * (columns[1] - columns[0]) / wide
    y, height = TALL * (rows[0] / tall - 0.5), TALL * (rows[1] - rows[0]) / tall
    hover = f"rank {rank}, {name}<br>rows {_span(rows, tall)}<br>columns {_span(columns, wide)}"
    return Box(rank + x, row + y, width, height, hover)


def _span(part: tuple[int, int], of: int) -> str:
    return f"{part[0]:,} to {part[1] - 1:,} of {of:,}" if part[1] - part[0] < of else f"all {of:,}"


def _add(figure: Figure, boxes: list[Box], **style: Any) -> None:
    if boxes:
        figure.add_bar(
            orientation="h",
            base=[b.x for b in boxes],
            x=[b.width for b in boxes],
            y=[b.y + b.height / 2 for b in boxes],
            width=[b.height for b in boxes],
            text=[b.hover for b in boxes],
            textposition="none",
            **{"hovertemplate": "%{text}<extra></extra>", **style},
        )


def _layout(
    experiment: Experiment, layers: list[str], shapes: dict[str, tuple[int, int]], held: Sequence[Holdings]
) -> dict[str, Any]:
    ranks, rows = list(range(len(held))), list(range(len(layers)))
    crowded = len(held) > 8
    names = [
        "<br>".join([f"rank {rank}"[5 * crowded :], *_place(experiment, held[rank], crowded)])
        for rank in ranks
    ]
    yaxis = theme.axis(
        "",
        (len(layers) - 0.5, -0.5),
        tickvals=rows,
        ticktext=[_titled(layer, shapes) for layer in layers],
        showgrid=False,
        automargin=True,
    )
    across = {
        "tickvals": [rank + 0.5 for rank in ranks],
        "ticktext": names,
        "showgrid": False,
        "tickangle": 0,
    }
    axes = [axis for axis in held[0].place if _is_cut(experiment, axis)]
    title = f"rank{'; ' * bool(axes)}{', '.join(f'{axis[0]}: {axis}' for axis in axes)}" if crowded else ""
    xaxis = theme.axis(title, (0, len(held)), **across, automargin=True)
    return theme.layout(xaxis=xaxis, yaxis=yaxis, barmode="overlay", bargap=0)


def _place(experiment: Experiment, held: Holdings, crowded: bool) -> list[str]:
    """The rank's coordinates, a line each, of axes that are longer than 1."""
    return [
        f"{axis[0] if crowded else axis} {at}" for axis, at in held.place.items() if _is_cut(experiment, axis)
    ]


def _is_cut(experiment: Experiment, axis: str) -> bool:
    """Whether ranks differ along an axis."""
    return {"data": experiment.replicas, **experiment.split.axes(experiment.workers)}[axis] > 1


def _titled(layer: str, shapes: dict[str, tuple[int, int]]) -> str:
    """A layer and its size."""
    if layer.startswith("image."):
        return f"image into {layer[6:]}  {shapes[layer][0]} × {shapes[layer][1]}"
    shape = shapes.get(f"{layer}.weight") or next(
        shape for name, shape in shapes.items() if _layer(name) == layer
    )
    return f"{layer}  {shape[0]:,}" + (f" × {shape[1]:,}" if shape[1] > 1 else "")


def _elements(pieces: Sequence[Piece], images: bool) -> int:
    """Of weights and biases, or of images."""
    return sum(
        (p.rows[1] - p.rows[0]) * (p.columns[1] - p.columns[0])
        for p in pieces
        if p.name.startswith("image.") == images
    )


def _sentence(experiment: Experiment, held: Sequence[Holdings]) -> str:
    total = sum(a * b for name, (a, b) in held[0].shapes.items() if not name.startswith("image."))
    own = [_elements(each.pieces, images=False) / total for each in held]
    holds = "updates" if getattr(experiment.split, "zero", 0) == 1 else "holds"
    text = f"Each rank {holds} {_shares(own)} of the model's {total:,} parameters"
    if experiment.workers == len(held) > 1:
        copies = round(sum(own), 2)
        text += f", all {len(held)} together {f'{copies:g} models' if copies != 1 else 'one model'}"
    if image := sum(a * b for name, (a, b) in held[0].shapes.items() if name.startswith("image.")):
        share = _shares([_elements(each.pieces, images=True) / image for each in held])
        text += f", and {share} of each image; what it borrows as halo is faint"
    alike = _alike(held)
    same = (
        f"; of {len(alike)} different parts, those of one colour are equal"
        if 1 < len(alike) < len(held)
        else ""
    )
    return shown.note(experiment, f"{text}{same}.")


def _shares(shares: Sequence[float]) -> str:
    least, most = f"{min(shares):.1%}", f"{max(shares):.1%}"
    if min(shares) == 1:
        return "all"
    return least if least == most else f"{least} to {most}"


def _table(held: Sequence[Holdings]) -> dict[str, list]:
    rows = [
        (rank, piece, kind)
        for rank, own in enumerate(held)
        for kind in ("pieces", "halos")
        for piece in getattr(own, kind)
    ]
    return {
        "rank": [rank for rank, _, _ in rows],
        "layer": [piece.name if kind == "pieces" else f"{piece.name} with halo" for _, piece, kind in rows],
        "rows": [f"{piece.rows[0]}–{piece.rows[1] - 1}" for _, piece, _ in rows],
        "columns": [f"{piece.columns[0]}–{piece.columns[1] - 1}" for _, piece, _ in rows],
        "elements": [_elements([piece], piece.name.startswith("image.")) for _, piece, _ in rows],
    }


ROUNDING = 1e-12
"""Share of the largest number up to which a difference of float64 is rounding, and is not drawn."""

SCALE = "Cividis"
"""Made to read the same with and without red-green blindness (Nuñez, Anderton and Renslow, PLOS ONE 2018)."""

GAP = 0.06
"""Between two images, of the figure's width."""


def differences(
    got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], titles: Sequence[str]
) -> Figure:
    """Where images differ, and by what share of the largest number expected; what is rounding stays empty.

    Parameters
    ----------
    got, expected : sequence of Tensor, shape (..., height, width)
        Images to compare, one with one; of several channels the largest difference is drawn.
    titles : sequence of str
        What each is called.

    Raises
    ------
    ValueError
        If there is none, or the lengths or shapes differ.
    """
    if not len(got) == len(expected) == len(titles) > 0:
        raise ValueError(
            f"got: got {len(got)}, allowed is as many as expected, {len(expected)}, and titles, from 1"
        )
    shares = [_share(mine, right) for mine, right in zip(got, expected)]
    figure, number = blank(_difference_layout(shares, titles), 430), len(shares)
    most = max(float(share.max()) for share in shares)
    for place, share in enumerate(shares, start=1):
        figure.add_heatmap(
            z=share.where(share > ROUNDING, float("nan")).tolist(),
            zmin=0,
            zmax=most or 1.0,
            colorscale=SCALE,
            showscale=place == number,
            hoverongaps=False,
            name=titles[place - 1],
            xaxis=f"x{place}",
            yaxis=f"y{place}",
            hovertemplate="row %{y}, column %{x}: %{z:.1%}<extra></extra>",
            colorbar={"title": {"text": "difference", "side": "right"}, "tickformat": ".0%", "thickness": 14},
        )
    saying(figure, _difference_sentence(shares, titles))
    figure.layout.meta = {
        **figure.layout.meta,
        "table": {
            "image": list(titles),
            "elements that differ": [int((share > ROUNDING).sum()) for share in shares],
            "of": [share.numel() for share in shares],
            "largest difference / largest number": [float(share.max()) for share in shares],
        },
    }
    return figure


def _share(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Shape (height, width): the largest difference of all channels, over the largest number expected."""
    if got.shape != expected.shape:
        raise ValueError(
            f"got: got shape {tuple(got.shape)}, allowed is the expected one, {tuple(expected.shape)}"
        )
    apart = (got.detach() - expected.detach()).abs().flatten(0, -3).amax(0)
    return apart / expected.detach().abs().max()


def _difference_layout(shares: Sequence[torch.Tensor], titles: Sequence[str]) -> dict[str, Any]:
    layout, wide = theme.layout(showlegend=False), (1 - GAP * (len(shares) - 1)) / len(shares)
    notes = []
    for place, (share, title) in enumerate(zip(shares, titles), start=1):
        left = (place - 1) * (wide + GAP)
        height, width = share.shape
        fixed = {"showgrid": False, "constrain": "domain", "constraintoward": "center"}
        across = {"domain": [left, left + wide], "anchor": f"y{place}", **fixed}
        down = {"anchor": f"x{place}", "scaleanchor": f"x{place}", **fixed}
        layout[f"xaxis{place}"] = theme.axis("column", (-0.5, width - 0.5), **across)
        layout[f"yaxis{place}"] = theme.axis("row" * (place == 1), (height - 0.5, -0.5), **down)
        middle = {"x": left + wide / 2, "xanchor": "center", "y": 1, "yanchor": "bottom"}
        notes.append({"text": title, **middle, "xref": "paper", "yref": "paper", "showarrow": False})
    return {**layout, "annotations": notes}


def _difference_sentence(shares: Sequence[torch.Tensor], titles: Sequence[str]) -> str:
    said = []
    for share, title in zip(shares, titles):
        off = int((share > ROUNDING).sum())
        most = f", by up to {says.quantity(100 * float(share.max()))}% of the largest number" if off else ""
        said.append(f"{title}: {f'{off:,}' if off else 'none'} of {share.numel():,}{most}")
    return f"Elements that are not as in one process, {'; '.join(said)}."
