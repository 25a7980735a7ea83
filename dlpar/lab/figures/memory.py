"""Static figure of what ranks hold: bytes by kind at the fullest moment of a step, and micro-batches in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dlpar.costmodel.memory import bytes_of, model_state
from dlpar.costmodel.steps.sizes import sizes
from dlpar.experiment import Experiment
from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, saying
from dlpar.lab.figures.passes import Drawn, has_flush, passes, spans, stages_of, typical, window
from dlpar.lab.labels import labels
from dlpar.lab.live import shown
from dlpar.run import Run

KINDS = {
    "weights": theme.Phase("", "#3A97CC", ""),
    "gradients": theme.Phase("", "#2CA079", "/"),
    "optimizer": theme.Phase("", "#A983C9", "x"),
    "activations": theme.Phase("", "#D08A1D", "\\"),
    "gathered": theme.Phase("", "#C96B7B", "."),
}
"""How each kind of what :mod:`dlpar.memory` counts is drawn, in the order in which they are stacked."""

STATE = ("weights", "gradients", "optimizer")
"""Kinds of which there is a closed form."""


class Row(NamedTuple):
    """A bar: what a rank held, in bytes by kind, and by the closed form weights, gradients and optimizer together."""

    name: str
    held: dict[str, int]
    predicted: float | None


def memory(runs: Run | Sequence[Run]) -> Figure:
    """What each rank held at the fullest moment of a step, by kind; of several runs, the rank that held most.

    The step is the last in which memory was watched.  Where the model is split by data alone, a mark
    shows weights, gradients and optimizer state by the closed form (Rajbhandari et al., arXiv
    1910.02054, section 5).  Of a single run split by pipeline, beside it: how many micro-batches of a
    chunk each were in flight at any time of a step, that is, forward and not yet backward.

    Parameters
    ----------
    runs : Run or sequence of Run
        In a world in which ranks compute.

    Raises
    ------
    ValueError
        If a run has no record of memory.
    """
    runs = [runs] if isinstance(runs, Run) else list(runs)
    if not runs:
        raise ValueError("runs: got none, allowed is one run or more")
    held = [_held(run) for run in runs]
    if len(runs) == 1:
        rows = [Row(f"rank {rank}", own, _state(runs[0].experiment)) for rank, own in held[0].items()]
    else:
        fullest = [max(of_run.values(), key=_total) for of_run in held]
        names = labels([run.experiment for run in runs])
        rows = [Row(name, own, _state(run.experiment)) for name, own, run in zip(names, fullest, runs)]
    flights = _flights(runs[0]) if len(runs) == 1 and runs[0].experiment.split.kind in ("pipeline", "hybrid") else {}
    scale, unit = (1e6, "MB") if max(map(_total, (row.held for row in rows))) >= 1e6 else (1e3, "kB")
    figure = _bars(rows, scale, _layout(runs[0].experiment, rows, scale, unit, flights))
    for rank, points in flights.items():
        line = {**theme.rank_line(rank), "mode": "lines"}
        line["line"] = {**line["line"], "shape": "hv", "width": 2.5}
        figure.add_scatter(x=[t for t, _ in points], y=[n for _, n in points], xaxis="x2", yaxis="y2",
                           name=f"rank {rank}", legend="legend2", **line)  # fmt: skip
    saying(figure, _sentence(runs, rows, scale, unit))
    figure.layout.meta = {**figure.layout.meta, "table": _table(rows, scale, unit)}
    return figure


def _held(run: Run) -> dict[int, dict[str, int]]:
    """Bytes by kind, by rank, in the last step that was watched."""
    found: dict[int, tuple[int, dict[str, int]]] = {}
    drawn = shown.workers(run.experiment)
    for source, record in run.records():
        if record["k"] == "step" and "memory" in record and (rank := int(source[5:])) < drawn:
            found[rank] = max(found.get(rank, (-1, {})), (record["step"], record["memory"]), key=lambda each: each[0])
    if not found:
        raise ValueError(f"run {run.id}: no memory was recorded, allowed is a run whose ranks compute with numbers")
    return {rank: found[rank][1] for rank in sorted(found)}


def _total(held: dict[str, int]) -> int:
    return sum(held.values())


def _state(experiment: Experiment) -> float | None:
    """Bytes of weights, gradients and optimizer state by the closed form; None where it is silent."""
    split, sync = experiment.split, experiment.sync
    if split.kind != "data" or sync.scheme != "ring" or experiment.averaging.method != "none":
        return None
    itemsize = {"float32": 4, "float64": 8}.get(experiment.dtype)
    if itemsize is None:
        return None
    each = bytes_of(experiment.optimizer, itemsize)
    return model_state(sizes(experiment).elements, experiment.workers, split.zero, each).total


def _flights(run: Run) -> dict[int, list[tuple[float, int]]]:
    """By rank, when (ms) how many micro-batches of a chunk each were in flight, in a typical step."""
    by_step, experiment = spans(run), run.experiment
    if not by_step:
        return {}
    count = 1 if has_flush(experiment) else min(2 * stages_of(experiment), len(by_step))
    first = typical(by_step, count)
    bars = passes(bar for step in range(first, first + count) for bar in by_step.get(step, ()))
    begin, _ = window(bars)
    ranks = sorted({bar.rank for bar in bars})
    return {rank: _in_flight([bar for bar in bars if bar.rank == rank], begin) for rank in ranks}


def _in_flight(bars: list[Drawn], begin: float) -> list[tuple[float, int]]:
    """How many micro-batches of one rank, from `begin` on: each from its forward pass to its last one."""
    last: dict[tuple[int, int], float] = {}
    for bar in bars:
        if bar.name in ("backward", "weight"):
            last[bar.micro, bar.chunk] = max(bar.end, last.get((bar.micro, bar.chunk), bar.end))
    starts = {(bar.micro, bar.chunk): bar.start for bar in bars if bar.name == "forward"}
    changes = [(start, +1) for start in starts.values()] + [(end, -1) for end in last.values()]
    points = [(0.0, held := len(last.keys() - starts.keys()))]  # those whose forward pass was before
    for at, change in sorted(changes):
        held += change
        points.append((1e3 * (at - begin), held))
    return points


def _bars(rows: list[Row], scale: float, layout: dict[str, Any]) -> Figure:
    figure, places = blank(layout, max(280, 44 * len(rows) + 190)), list(range(len(rows)))
    for kind, style in KINDS.items():
        values = [row.held.get(kind, 0) / scale for row in rows]
        if any(values):
            marker = {"color": style.colour, "pattern": theme.hatch(style.pattern)}
            figure.add_bar(y=places, x=values, orientation="h", name=kind, marker=marker)
    if any(row.predicted for row in rows):
        symbol = {"symbol": "line-ns", "size": 26, "line": {"width": 3, "color": "#7f7f7f"}}
        known = [(row.predicted / scale, place) for place, row in enumerate(rows) if row.predicted]
        figure.add_scatter(x=[x for x, _ in known], y=[y for _, y in known], mode="markers", marker=symbol,
                           name="closed form of weights, gradients and optimizer")  # fmt: skip
    return figure


def _layout(
    experiment: Experiment, rows: list[Row], scale: float, unit: str, flights: dict[int, list[tuple[float, int]]]
) -> dict[str, Any]:
    most = max(max(_total(row.held), row.predicted or 0) for row in rows) / scale
    places = {"tickvals": list(range(len(rows))), "ticktext": [row.name for row in rows]}
    title = f"held by a rank at the fullest moment of a step ({unit})"
    left = theme.axis(title, (0, theme.rounded_up(most)), domain=[0, 0.46 if flights else 1])
    layout = theme.layout(
        xaxis=left, yaxis=theme.axis("", (len(rows) - 0.5, -0.5), showgrid=False, automargin=True, **places),
        barmode="stack", bargap=0.3,
    )  # fmt: skip
    if not flights:
        return layout
    ends = [max(of_rank[column] for points in flights.values() for of_rank in points) for column in (0, 1)]
    time = theme.on_clock("time in a step (ms)", experiment.cluster.world)
    layout["xaxis2"] = theme.axis(time, (0, theme.rounded_up(ends[0])), domain=[0.56, 1], anchor="y2")
    ticks = {"anchor": "x2", "dtick": max(1, ends[1] // 8)}
    layout["yaxis2"] = theme.axis("micro-batches in flight", (0, ends[1] + 0.5), **ticks)
    layout["legend2"] = {**layout["legend"], "x": 0.56}
    layout["legend"] = {**layout["legend"], "entrywidth": 0}
    return layout


def _sentence(runs: list[Run], rows: list[Row], scale: float, unit: str) -> str:
    most = max(rows, key=lambda row: _total(row.held))
    least = min(rows, key=lambda row: _total(row.held))
    kind = max(most.held, key=most.held.__getitem__)
    amounts = [f"{says.quantity(_total(row.held) / scale)} {unit}" for row in (most, least)]
    share = f"{most.held[kind] / _total(most.held):.0%} of it {kind}"
    text = f"At its fullest moment {most.name} held {amounts[0]}, {share}"
    if amounts[0] != amounts[1]:
        text += f"; {least.name} held the least, {amounts[1]}"
    off = [abs(sum(row.held.get(k, 0) for k in STATE) / row.predicted - 1) for row in rows if row.predicted]
    if off:
        by = "less than 0.1%" if max(off) < 1e-3 else f"at most {max(off):.1%}"
        text += f"; weights, gradients and optimizer state are {by} off the closed form"
    flying = [r["in_flight"] for run in runs for _, r in run.records() if "in_flight" in r]
    if flying and len(runs) == 1:
        text += f"; at most {max(flying)} micro-batches were in flight on a rank"
    return shown.note(runs[0].experiment, f"{text}.") if len(runs) == 1 else f"{text}."


def _table(rows: list[Row], scale: float, unit: str) -> dict[str, list]:
    columns = {f"{kind} ({unit})": [row.held.get(kind, 0) / scale for row in rows] for kind in KINDS}
    found = {"": [row.name for row in rows], **columns, f"total ({unit})": [_total(row.held) / scale for row in rows]}
    if any(row.predicted for row in rows):
        predicted = [row.predicted / scale if row.predicted else None for row in rows]
        found[f"closed form of weights, gradients, optimizer ({unit})"] = predicted
    return found
