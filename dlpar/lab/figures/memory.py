"""Static figure of the memory of ranks: by kind at a step's peak, and over the step's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.jobs.memory_check import bytes_of, model_state
from dlpar.jobs.run import Run
from dlpar.jobs.tail import rank_of
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned, listed
from dlpar.lab.figures.pipeline import Drawn, has_flush, passes, spans, stages_of, typical, window
from dlpar.lab.labels import labels
from dlpar.theory import sizes

KINDS = {
    "weights": theme.Phase("", "#3A97CC", ""),
    "gradients": theme.Phase("", "#2CA079", "/"),
    "optimizer": theme.Phase("", "#A983C9", "x"),
    "activations": theme.Phase("", "#D08A1D", "\\"),
    "gathered": theme.Phase("", "#C96B7B", "."),
}
"""Style of each kind of memory that :mod:`dlpar.memory` counts, in stacking order."""

STATE = ("weights", "gradients", "optimizer")
"""Kinds that have a closed form."""

INSTANTS = 400
"""Parts of a step; the largest and the last value of each part are drawn."""

Points = list[tuple[float, float]]
"""Points ``(ms, micro-batches or bytes)`` of a rank; a value holds until the next point."""


class Bar(NamedTuple):
    """A bar: bytes that a rank held, by kind, and the closed form of weights, gradients and optimizer together."""

    name: str
    held: dict[str, int]
    predicted: float | None


def memory(runs: Run | Sequence[Run], titles: Sequence[str] | None = None) -> Figure:
    """Draw the memory of each rank by kind at a step's peak; for several runs, of the fullest rank.

    The step is the last in which memory was recorded. If the model is split by data alone, a mark
    shows weights, gradients and optimizer state by the closed form (Rajbhandari et al., arXiv
    1910.02054, section 5). For a single run, a second panel shows the memory over the time of that step,
    unless steps overlap. For a pipeline, another panel shows the micro-batches in flight: those
    after their forward and before their backward pass.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs in a world in which ranks compute.
    titles : sequence of str, optional
        Name of each of several runs; default: the settings in which it differs from the others.

    Raises
    ------
    ValueError
        If a run has no record of memory.
    """
    runs = listed(runs)
    held = [_held(run) for run in runs]
    if len(runs) == 1:
        rows = [Bar(f"rank {rank}", own, _state(runs[0].experiment)) for rank, own in held[0].items()]
    else:
        fullest = [max(of_run.values(), key=_total) for of_run in held]
        names = titles or labels([run.experiment for run in runs])
        rows = [Bar(name, own, _state(run.experiment)) for name, own, run in zip(names, fullest, runs)]
    scale, unit = (1e6, "MB") if max(map(_total, (row.held for row in rows))) >= 1e6 else (1e3, "kB")
    courses = _courses(runs[0], scale, unit) if len(runs) == 1 else {}
    figure = _bars(rows, scale, _layout(runs[0].experiment, rows, scale, unit, courses))
    for number, course in enumerate(courses.values()):
        where = {"xaxis": "x2", "yaxis": f"y{number + 2}", "legend": "legend2", "showlegend": number == 0}
        for rank, points in course.items():
            line = {**theme.rank_line(rank), "mode": "lines"}
            line["line"] = {**line["line"], "shape": "hv", "width": 2.5}
            x, y = zip(*points)
            figure.add_scatter(x=x, y=y, name=f"rank {rank}", **where, **line)
    return captioned(figure, _sentence(runs, rows, scale, unit), _table(rows, scale, unit))


def _held(run: Run) -> dict[int, dict[str, int]]:
    """Bytes by kind, by rank, in the last step whose memory was recorded."""
    last: dict[int, dict[str, Any]] = {}
    drawn = theme.workers(run.experiment)
    for source, record in run.records():
        if record["k"] == "step" and "memory" in record and (rank := rank_of(source)) < drawn:
            if rank not in last or record["step"] >= last[rank]["step"]:
                last[rank] = record
    if not last:
        raise ValueError(
            f"run {run.id}: no memory was recorded, allowed is a run whose ranks compute with numbers"
        )
    return {rank: last[rank]["memory"] for rank in sorted(last)}


def _total(held: dict[str, int]) -> int:
    return sum(held.values())


def _state(experiment: Experiment) -> float | None:
    """Bytes of weights, gradients and optimizer state by the closed form; None where there is none."""
    split, sync = experiment.split, experiment.sync
    if split.kind != "data" or sync.scheme != "ring" or experiment.averaging.method != "none":
        return None
    itemsize = {"float32": 4, "float64": 8}.get(experiment.dtype)
    if itemsize is None:
        return None
    each = bytes_of(experiment.optimizer, itemsize)
    return model_state(sizes(experiment).parameters, experiment.workers, split.zero, each).total


def _courses(run: Run, scale: float, unit: str) -> dict[str, dict[int, Points]]:
    """Panels over the time of a step, by their titles: micro-batches in flight, and memory."""
    experiment, held = run.experiment, _over_time(run)
    if experiment.split.kind not in ("pipeline", "hybrid") or not (by_step := spans(run)):
        begin = min((points[0][0] for _, points in held.values()), default=0.0)
        return {f"held ({unit})": _since(begin, held, scale)} if held else {}
    count = 1 if has_flush(experiment) else min(2 * stages_of(experiment), len(by_step))
    first = typical(by_step, count)
    if count == 1 and held:
        first = next(step for step, _ in held.values())
    bars = passes(bar for step in range(first, first + count) for bar in by_step.get(step, ()))
    begin, _ = window(bars)
    ranks = sorted({bar.rank for bar in bars})
    flights = {rank: _in_flight([bar for bar in bars if bar.rank == rank], begin) for rank in ranks}
    if count > 1 or not held:
        return {"in flight": flights}
    course = _since(begin, held, scale)
    for rank in course.keys() & flights.keys():  # up to the end of its last pass
        course[rank].append((max(flights[rank][-1][0], course[rank][-1][0]), course[rank][-1][1]))
    return {"in flight": flights, f"held ({unit})": course}


def _over_time(run: Run) -> dict[int, tuple[int, list[list[float]]]]:
    """A step of each rank, and its points ``(seconds, bytes)``."""
    drawn = theme.workers(run.experiment)
    return {
        rank: (record["step"], record["memory_over_time"])
        for source, record in run.records()
        if record["k"] == "step" and record.get("memory_over_time") and (rank := rank_of(source)) < drawn
    }


def _since(begin: float, held: dict[int, tuple[int, list[list[float]]]], scale: float) -> dict[int, Points]:
    """Points in ms since `begin` and `scale` bytes: the largest and the last of each of `INSTANTS` parts."""
    each = max(points[-1][0] - begin for _, points in held.values()) / INSTANTS or 1.0
    found = {}
    for rank, (_, points) in sorted(held.items()):
        by_part: dict[int, list[tuple[float, float]]] = {}
        for t, nbytes in points:
            by_part.setdefault(int((t - begin) / each), []).append((1e3 * (t - begin), nbytes / scale))
        kept = [(max(part, key=lambda point: point[1]), part[-1]) for part in by_part.values()]
        found[rank] = [point for pair in kept for point in dict.fromkeys(pair)]
    return found


def _in_flight(bars: list[Drawn], begin: float) -> Points:
    """Micro-batches of one rank in flight since `begin`: each from its forward pass to its last pass."""
    last: dict[tuple[int, int], float] = {}
    for bar in bars:
        if bar.name in ("backward", "weight"):
            last[bar.micro, bar.chunk] = max(bar.end, last.get((bar.micro, bar.chunk), bar.end))
    starts = {(bar.micro, bar.chunk): bar.start for bar in bars if bar.name == "forward"}
    changes = [(start, +1) for start in starts.values()] + [(end, -1) for end in last.values()]
    points = [(0.0, held := len(last.keys() - starts.keys()))]  # their forward pass was before
    for at, change in sorted(changes):
        held += change
        if points[-1][0] == (t := 1e3 * (at - begin)):
            points.pop()  # one is freed as the other is made
        points.append((t, held))
    return points


def _bars(rows: list[Bar], scale: float, layout: dict[str, Any]) -> Figure:
    least = 430 if "yaxis3" in layout else 280
    figure, places = blank(layout, max(least, 44 * len(rows) + 190)), list(range(len(rows)))
    for kind, style in KINDS.items():
        values = [row.held.get(kind, 0) / scale for row in rows]
        if any(values):
            marker = {"color": style.colour, "pattern": theme.hatch(style.pattern)}
            figure.add_bar(y=places, x=values, orientation="h", name=kind, marker=marker)
    known = [place for place in places if rows[place].predicted]
    if known:
        mark = theme.predicted_mark("closed form of weights, gradients and optimizer", 26)
        figure.add_scatter(x=[rows[n].predicted / scale for n in known], y=known, **mark)
    return figure


def _layout(
    experiment: Experiment, rows: list[Bar], scale: float, unit: str, courses: dict[str, dict[int, Points]]
) -> dict[str, Any]:
    most = max(max(_total(row.held), row.predicted or 0) for row in rows) / scale
    title = f"memory of a rank at the peak of a step ({unit})"
    left = theme.axis(title, (0, theme.rounded_up(most)), domain=[0, 0.46 if courses else 1])
    names = theme.rows([row.name for row in rows], automargin=True)
    layout = theme.layout(xaxis=left, yaxis=names, barmode="stack", bargap=0.3)
    if not courses:
        return layout
    end = max(t for course in courses.values() for points in course.values() for t, _ in points)
    time = theme.on_clock("time in a step (ms)", experiment.cluster.world)
    below = {"domain": [0.56, 1], "anchor": f"y{1 + len(courses)}"}
    layout["xaxis2"] = theme.axis(time, (0, theme.rounded_up(end)), **below)
    rooms = [[0, 1]] if len(courses) == 1 else [[0.56, 1], [0, 0.48]]
    for number, ((name, course), room) in enumerate(zip(courses.items(), rooms), start=2):
        top = max(n for points in course.values() for _, n in points)
        if name == "in flight":
            more = {"dtick": max(1, top // 4), "range": [0, top + 0.5]}
        else:
            more = {"nticks": 5, "range": [0, theme.rounded_up(top)]}
        layout[f"yaxis{number}"] = theme.axis(name, anchor="x2", domain=room, **more)
    layout["legend2"] = {**layout["legend"], "x": 0.56}
    layout["legend"] = {**layout["legend"], "entrywidth": 0}
    return layout


def _sentence(runs: list[Run], rows: list[Bar], scale: float, unit: str) -> str:
    most = max(rows, key=lambda row: _total(row.held))
    least = min(rows, key=lambda row: _total(row.held))
    kind = max(most.held, key=most.held.__getitem__)
    amounts = [f"{captions.quantity(_total(row.held) / scale)} {unit}" for row in (most, least)]
    share = f"{most.held[kind] / _total(most.held):.0%} of it {kind}"
    text = f"At its peak {most.name} held {amounts[0]}, {share}"
    if amounts[0] != amounts[1]:
        text += f"; {least.name} held the least, {amounts[1]}"
    errors = [
        abs(sum(row.held.get(k, 0) for k in STATE) / row.predicted - 1) for row in rows if row.predicted
    ]
    if errors:
        by = "less than 0.1%" if max(errors) < 1e-3 else f"at most {max(errors):.1%}"
        text += f"; weights, gradients and optimizer state differ from the closed form by {by}"
    flying = [r["in_flight"] for run in runs for _, r in run.records() if "in_flight" in r]
    if flying and len(runs) == 1:
        text += f"; at most {max(flying)} micro-batches were in flight on a rank"
    return captions.shown_workers(runs[0].experiment, f"{text}.") if len(runs) == 1 else f"{text}."


def _table(rows: list[Bar], scale: float, unit: str) -> dict[str, list]:
    columns = {f"{kind} ({unit})": [row.held.get(kind, 0) / scale for row in rows] for kind in KINDS}
    found = {
        "": [row.name for row in rows],
        **columns,
        f"total ({unit})": [_total(row.held) / scale for row in rows],
    }
    if any(row.predicted for row in rows):
        predicted = [row.predicted / scale if row.predicted else None for row in rows]
        found[f"closed form of weights, gradients, optimizer ({unit})"] = predicted
    return found
