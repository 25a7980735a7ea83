"""Static figure of the pieces of each layer that each rank holds, as the split itself has cut the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import spmd
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned

if TYPE_CHECKING:
    import torch

    from dlpar.lab.figures.probes import Holdings, Piece


CELL, BIAS = (0.06, 0.94), (0.84, 0.94)
"""Left and right end of a layer and of its bias in a rank's column."""

TALL = 0.76
"""Height of a layer in its row."""

WHOLE = "rgba(128,128,128,0.22)"
"""Colour of the parts of a layer that a rank does not hold."""

MOST = 64
"""Most ranks that are run to see what they hold."""


class Rectangle(NamedTuple):
    """A piece as it is drawn: its lower left corner, its size, and its hover text."""

    x: float
    y: float
    width: float
    height: float
    hover: str


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
    """Report what this rank holds."""
    from dlpar.lab.figures.probes import holdings  # here: imports torch

    return holdings(comm, experiment)


def drawing(experiment: Experiment, held: Sequence[Holdings]) -> Figure:
    """Draw what ranks hold."""
    shapes = held[0].shapes
    layers = list(dict.fromkeys(_layer(name) for name in shapes))
    place = partial(_box, layers=layers, shapes=shapes)
    height = round(max(20, min(70, 700 / len(layers))))  # pixels of a row; few layers have taller rows
    figure = blank(_layout(experiment, layers, shapes, held), 150 + height * len(layers))
    whole = [(name, (0, tall), (0, wide)) for name, (tall, wide) in shapes.items()]
    frames = [place(rank, *block) for rank in range(len(held)) for block in whole]
    _add(figure, frames, name="not held", marker={"color": WHOLE}, hoverinfo="skip")
    for number, ranks in enumerate(_alike(held)):
        colour = theme.RANKS[number % len(theme.RANKS)]
        pattern = theme.PATTERNS[(number + number // len(theme.RANKS)) % len(theme.PATTERNS)]
        for kind in ("halos", "pieces"):
            boxes = [place(rank, *piece) for rank in ranks for piece in getattr(held[rank], kind)]
            hatch = {**theme.hatch(pattern), "fgopacity": 0.5} if pattern else {}
            style = {"marker": {"color": colour, "pattern": hatch}}
            if kind == "halos":
                style = {"marker": {"color": theme.faint(colour)}, "opacity": 0.6, "showlegend": False}
            _add(
                figure,
                boxes,
                name=f"rank{'s' * (len(ranks) > 1)} {captions.listed(map(str, ranks))}",
                **style,
            )
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
) -> Rectangle:
    """Place a block of a parameter in a rank's column and a layer's row."""
    row, (left, right) = layers.index(_layer(name)), CELL
    if name.endswith(".bias"):
        left, right = BIAS
    elif f"{_layer(name)}.bias" in shapes:
        right = BIAS[0] - 0.03
    tall, wide = shapes[name]
    x, width = left + (right - left) * columns[0] / wide, (right - left) * (columns[1] - columns[0]) / wide
    y, height = TALL * (rows[0] / tall - 0.5), TALL * (rows[1] - rows[0]) / tall
    hover = f"rank {rank}, {name}<br>rows {_span(rows, tall)}<br>columns {_span(columns, wide)}"
    return Rectangle(rank + x, row + y, width, height, hover)


def _span(part: tuple[int, int], of: int) -> str:
    return f"{part[0]:,} to {part[1] - 1:,} of {of:,}" if part[1] - part[0] < of else f"all {of:,}"


def _add(figure: Figure, boxes: list[Rectangle], **style: Any) -> None:
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
    ranks, crowded = range(len(held)), len(held) > 8
    names = [
        "<br>".join([f"rank {rank}"[5 * crowded :], *_place(experiment, held[rank], crowded)])
        for rank in ranks
    ]
    yaxis = theme.rows([_titled(layer, shapes) for layer in layers], automargin=True)
    ticks = {"tickvals": [rank + 0.5 for rank in ranks], "ticktext": names, "tickangle": 0}
    axes = [axis for axis in held[0].place if _is_cut(experiment, axis)]
    title = f"rank{'; ' * bool(axes)}{', '.join(f'{axis[0]}: {axis}' for axis in axes)}" if crowded else ""
    xaxis = theme.axis(title, (0, len(held)), **ticks, showgrid=False, automargin=True)
    return theme.layout(xaxis=xaxis, yaxis=yaxis, barmode="overlay", bargap=0)


def _place(experiment: Experiment, held: Holdings, crowded: bool) -> list[str]:
    """Coordinates of a rank on the axes that are longer than 1, a line each."""
    return [
        f"{axis[0] if crowded else axis} {at}" for axis, at in held.place.items() if _is_cut(experiment, axis)
    ]


def _is_cut(experiment: Experiment, axis: str) -> bool:
    """Return whether ranks differ along an axis."""
    return {"data": experiment.replicas, **experiment.split.axes(experiment.workers)}[axis] > 1


def _titled(layer: str, shapes: dict[str, tuple[int, int]]) -> str:
    """Name and size of a layer."""
    if layer.startswith("image."):
        return f"image into {layer[6:]}  {shapes[layer][0]} × {shapes[layer][1]}"
    shape = shapes.get(f"{layer}.weight") or next(
        shape for name, shape in shapes.items() if _layer(name) == layer
    )
    return f"{layer}  {shape[0]:,}" + (f" × {shape[1]:,}" if shape[1] > 1 else "")


def _elements(pieces: Sequence[Piece], images: bool) -> int:
    """Number of elements, of weights and biases or of images."""
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
        text += f", and {share} of each image; its halo is faint"
    parts = len(_alike(held))
    if 1 < parts < len(held):
        text += f"; there are {parts} different parts, and ranks of one colour hold the same"
    return captions.shown_workers(experiment, f"{text}.")


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
"""Largest difference of float64 that counts as rounding and is not drawn, as a share of the largest number."""

SCALE = "Cividis"
"""Colour scale that reads the same with and without red-green blindness (Nuñez et al., PLOS ONE 2018)."""

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
    table = {
        "image": list(titles),
        "elements that differ": [int((share > ROUNDING).sum()) for share in shares],
        "of": [share.numel() for share in shares],
        "largest difference / largest number": [float(share.max()) for share in shares],
    }
    return captioned(figure, _difference_sentence(table), table)


def _share(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Largest difference of all channels over the largest expected number, shape (height, width)."""
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
        notes.append(theme.annotation(title, left + wide / 2, 1, xanchor="center"))
    return {**layout, "annotations": notes}


def _difference_sentence(table: dict[str, list]) -> str:
    parts = []
    for title, count, total, largest in zip(*table.values()):
        most = f", by up to {captions.quantity(100 * largest)}% of the largest number" if count else ""
        parts.append(f"{title}: {f'{count:,}' if count else 'none'} of {total:,}{most}")
    return f"Elements that differ from those of one process: {'; '.join(parts)}."
