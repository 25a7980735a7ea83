"""Static figure of what the ranks of a replica send for each layer, beside the closed form."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import spmd
from dlpar.jobs.run import Run
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.figure import Figure, blank, saying
from dlpar.lab.figures.pieces import plain
from dlpar.theory.layers import BOUNDARY, SHARED, boundary_elements, elements_by_layer

if TYPE_CHECKING:
    from dlpar.lab.probes import Sent

KINDS = ("tensor", "spatial", "pipeline", "hybrid")
"""Splits whose ranks send in the forward and the backward pass."""

PASSES = {"forward": ("#3A97CC", ""), "backward": ("#2CA079", "\\")}
"""Colour and pattern, those of a pipeline's passes."""


def layer_bytes(of: Experiment | Run) -> Figure:
    """What the ranks of one replica send for each layer in a step, forward and backward, and the closed form.

    One step is run in the simulated world and every message counted where it is sent.  How
    replicas agree afterwards is not part of it (:func:`dlpar.lab.bytes_per_rank`).

    Parameters
    ----------
    of : Experiment or Run
        Split by tensor, spatial, pipeline or hybrid, with up to 64 workers.

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
    return drawing(experiment, [rank for rank in ranks if rank.replica == 0])


def _count(comm: Any, experiment: Experiment) -> Sent:
    """What a rank answers."""
    from dlpar.lab.probes import sent  # here: imports torch

    return sent(comm, experiment)


def drawing(experiment: Experiment, ranks: list[Sent]) -> Figure:
    """The picture of what the ranks of a replica sent."""
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
    rows = {
        name: (measured[name]["forward"], measured[name]["backward"], formula.get(name)) for name in names
    }
    figure = _bars(rows)
    saying(figure, _sentence(rows, len(ranks)))
    figure.layout.meta = {
        **figure.layout.meta,
        "table": {
            "layer": names,
            **{
                f"{during} (bytes)": [row[column] for row in rows.values()]
                for column, during in enumerate(PASSES)
            },
            "both (bytes)": [row[0] + row[1] for row in rows.values()],
            "closed form (bytes)": [row[2] for row in rows.values()],
        },
    }
    return figure


def _formulas(experiment: Experiment, measured: list[str]) -> dict[str, float]:
    """Bytes by the closed forms: of layers, and of the boundaries that were found."""
    full = {"float32": 4, "float64": 8}[experiment.dtype]
    of_activations = full if experiment.precision == "full" else 2
    found = {
        name: (full if name == SHARED else of_activations) * elements
        for name, elements in elements_by_layer(experiment).items()
    }
    for name in measured:
        if name.startswith(BOUNDARY):
            found[name] = of_activations * boundary_elements(experiment, name.removeprefix(BOUNDARY))
    return found


def _bars(rows: dict[str, tuple[int, int, float | None]]) -> Figure:
    most = max(max(row[0] + row[1], row[2] or 0) for row in rows.values())
    scale, unit = (1e6, "MB") if most >= 1e6 else (1e3, "kB")
    places = list(range(len(rows)))
    ticks = {"tickvals": places, "ticktext": list(rows), "showgrid": False, "automargin": True}
    yaxis = theme.axis("", (len(rows) - 0.5, -0.5), **ticks)
    xaxis = theme.axis(
        f"sent by the ranks of one replica in a step ({unit})", (0, theme.rounded_up(most / scale))
    )
    figure = blank(
        theme.layout(xaxis=xaxis, yaxis=yaxis, barmode="stack", bargap=0.3), max(260, 34 * len(rows) + 140)
    )
    for column, (during, (colour, pattern)) in enumerate(PASSES.items()):
        marker = {"color": colour, "pattern": theme.hatch(pattern)}
        lengths = [row[column] / scale for row in rows.values()]
        figure.add_bar(y=places, x=lengths, orientation="h", name=during, marker=marker)
    mark = {"symbol": "line-ns", "size": 24, "line": {"width": 3, "color": "#7f7f7f"}}
    known = [(place, row[2]) for place, row in zip(places, rows.values()) if row[2] is not None]
    if known:
        figure.add_scatter(
            y=[place for place, _ in known],
            x=[bytes_ / scale for _, bytes_ in known],
            mode="markers",
            marker=mark,
            name="closed form, both passes",
        )
    return figure


def _sentence(rows: dict[str, tuple[int, int, float | None]], ranks: int) -> str:
    totals = {name: row[0] + row[1] for name, row in rows.items()}
    most, everything = max(totals, key=totals.__getitem__), sum(totals.values())
    amount = (
        f"{says.quantity(everything / 1e6)} MB"
        if everything >= 1e6
        else f"{says.quantity(everything / 1e3)} kB"
    )
    text = f"In a step the {ranks} ranks of a replica send each other {amount}"
    text += f", {totals[most] / everything:.0%} of it for {most}" if everything else ""
    off = [name for name, row in rows.items() if row[2] is not None and row[2] != totals[name]]
    known = [name for name, row in rows.items() if row[2] is not None]
    if off:
        text += f"; {says.listed(off)} {'differs' if len(off) == 1 else 'differ'} from the closed form"
    elif known:
        which = "each is" if len(known) == len(rows) else f"{len(known)} of {len(rows)} rows are"
        text += f"; {which} what the closed form says, to the byte"
    return f"{text}."
