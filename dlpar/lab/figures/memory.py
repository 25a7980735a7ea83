"""Static figure of the memory of ranks: by kind at a step's peak, and over the step's time."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dlpar.config.experiment import Experiment
from dlpar.jobs.memory_check import bytes_of, model_state
from dlpar.jobs.run import Run
from dlpar.jobs.tail import rank_of
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, Names, Runs, captioned, listed, require, stacked
from dlpar.lab.figures.pipeline import has_flush, passes, spans, typical, window
from dlpar.lab.labels import labels
from dlpar.theory import sizes
from dlpar.theory.pipeline import Bar

STATE = ("weights", "gradients", "optimizer")
"""Kinds that have a closed form."""

INSTANTS = 400
"""Parts of a step; the largest and the last value of each part are drawn."""

Points = list[tuple[float, float]]
"""Points ``(ms, micro-batches or bytes)`` of a rank; a value holds until the next point."""


def memory(runs: Runs, titles: Names = None) -> Figure:
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
    held = [{rank: record["memory"] for rank, record in _last(run, "memory").items()} for run in runs]
    for run, of_run in zip(runs, held):
        allowed = "allowed is a run whose ranks compute with numbers"
        require(len(of_run) > 0, f"run {run.id}: no memory was recorded, {allowed}")
    one, states = len(runs) == 1, [_state(run.experiment) for run in runs]
    if one:
        names, rows = [f"rank {rank}" for rank in held[0]], list(held[0].values())
        states *= len(rows)
    else:
        names = list(titles or labels([run.experiment for run in runs]))
        rows = [max(of_run.values(), key=lambda row: sum(row.values())) for of_run in held]
    peaks = pd.DataFrame(rows, columns=list(theme.MEMORY)).fillna(0)
    total = peaks.sum(axis=1)
    scale, unit = theme.unit_of(total.max())
    parts = {kind: ({"marker_color": theme.MEMORY[kind]}, peaks[kind] / scale) for kind in peaks}
    forms = [state and state / scale for state in states]
    title = f"memory of a rank at the peak of a step ({unit})"
    figure = stacked(title, names, parts, ("closed form of the first three", forms))
    figure.update_layout(margin_t=92, legend_maxheight=91, legend_entrywidth=0)
    courses = _courses(runs[0], scale, unit) if one else {}
    if courses:
        _add_courses(figure, courses, runs[0].experiment)
    columns = {"": names, **{f"{kind} ({unit})": peaks[kind] / scale for kind in peaks}}
    columns[f"total ({unit})"] = total / scale
    if any(forms):
        columns[f"closed form of weights, gradients, optimizer ({unit})"] = forms
    amounts = [f"{captions.quantity(each)} {unit}" for each in total / scale]
    text = _sentence(names, peaks, amounts, states)
    flights = [r["in_flight"] for _, r in runs[0].records() if "in_flight" in r] if one else []
    if flights:
        text += f"; at most {max(flights)} micro-batches were in flight on a rank"
    text = captions.shown_workers(runs[0].experiment, f"{text}.") if one else f"{text}."
    return captioned(figure, text, (list(columns), list(zip(*columns.values()))))


def _last(run: Run, what: str) -> dict[int, dict[str, Any]]:
    """The last step's record with `what` of each drawn rank."""
    last: dict[int, dict[str, Any]] = {}
    for source, record in run.records():
        if record["k"] == "step" and record.get(what):
            rank = rank_of(source)
            if rank not in last or record["step"] >= last[rank]["step"]:
                last[rank] = record
    return {rank: last[rank] for rank in sorted(last) if rank < theme.workers(run.experiment)}


def _state(experiment: Experiment) -> float | None:
    """Bytes of weights, gradients and optimizer state by the closed form; None where there is none."""
    split, sync = experiment.split, experiment.sync
    if split.kind != "data" or sync.scheme != "ring" or experiment.averaging.method != "none":
        return None
    each = bytes_of(experiment.optimizer, {"float32": 4, "float64": 8}[experiment.dtype])
    return model_state(sizes(experiment).parameters, experiment.workers, split.zero, each).total


def _courses(run: Run, scale: float, unit: str) -> dict[str, dict[int, Points]]:
    """Panels over the time of a step, by their titles: micro-batches in flight, and memory."""
    experiment, held = run.experiment, _last(run, "memory_over_time")
    by_step = spans(run) if experiment.split.kind in ("pipeline", "hybrid") else {}
    if not by_step:
        begin = min((record["memory_over_time"][0][0] for record in held.values()), default=0.0)
        return {f"held ({unit})": _since(begin, held, scale)} if held else {}
    steps = typical(experiment, by_step)
    if held and has_flush(experiment):
        step = next(iter(held.values()))["step"]
        steps = range(step, step + 1)
    bars = passes(bar for step in steps for bar in by_step.get(step, ()))
    begin, _ = window(bars)
    ranks = sorted({bar.stage for bar in bars})
    flights = {rank: _in_flight([bar for bar in bars if bar.stage == rank], begin) for rank in ranks}
    if not held or not has_flush(experiment):
        return {"in flight": flights}
    course = _since(begin, held, scale)
    for rank in course.keys() & flights.keys():  # up to the end of its last pass
        course[rank].append((max(flights[rank][-1][0], course[rank][-1][0]), course[rank][-1][1]))
    return {"in flight": flights, f"held ({unit})": course}


def _since(begin: float, held: dict[int, dict[str, Any]], scale: float) -> dict[int, Points]:
    """Points in ms since `begin` and `scale` bytes: the largest and the last of each of `INSTANTS` parts."""
    of_ranks = {rank: record["memory_over_time"] for rank, record in held.items()}
    each = max(points[-1][0] - begin for points in of_ranks.values()) / INSTANTS or 1.0
    found = {}
    for rank, points in of_ranks.items():
        course = pd.DataFrame(points, columns=["t", "held"])
        course["ms"] = 1e3 * (course["t"] - begin)
        parts = course["held"].groupby((course["ms"] / (1e3 * each)).astype(int))
        kept = course.loc[sorted({*parts.idxmax(), *parts.tail(1).index})]
        found[rank] = list(zip(kept["ms"], kept["held"] / scale))
    return found


def _in_flight(bars: list[Bar], begin: float) -> Points:
    """Micro-batches of one rank in flight since `begin`: each from its forward pass to its last pass."""
    of_micro = pd.DataFrame(bars).set_index(["micro", "chunk"])
    starts = of_micro["start"][of_micro["kind"] == "forward"]
    ends = of_micro["end"][of_micro["kind"].isin(("backward", "weight"))].groupby(level=[0, 1]).max()
    before = ends.index.difference(starts.index)  # their forward pass was before
    changes = [pd.Series([len(before)], [begin]), pd.Series(1, starts), pd.Series(-1, ends)]
    held = pd.concat(changes).groupby(level=0).sum().cumsum()  # one is freed as the other is made
    return list(zip(1e3 * (held.index - begin), held))


def _add_courses(figure: Figure, courses: dict[str, dict[int, Points]], experiment: Experiment) -> None:
    """Add a panel for each course to the right of the bars, one below the other."""
    layout, several = figure.layout, len(courses) > 1
    end = max(t for course in courses.values() for points in course.values() for t, _ in points)
    time = theme.on_clock("time in a step (ms)", experiment.cluster.world)
    below = {"domain": [0.56, 1], "anchor": "y3" if several else "y2"}
    layout.xaxis.domain, layout.xaxis2 = [0, 0.46], theme.axis(time, (0, theme.rounded_up(end)), **below)
    layout.height = max(layout.height, 430 if several else 320)
    rooms = ([0.56, 1], [0, 0.48]) if several else ([0, 1],)
    for number, ((name, course), room) in enumerate(zip(courses.items(), rooms), start=2):
        top = max(n for points in course.values() for _, n in points)
        limit, ticks = theme.rounded_up(top), {"nticks": 5}
        if name == "in flight":
            limit, ticks = top + 0.5, {"dtick": max(1, top // 4)}
        layout[f"yaxis{number}"] = theme.axis(name, (0, limit), anchor="x2", domain=room, **ticks)
        where = {"xaxis": "x2", "yaxis": f"y{number}", "showlegend": number == 2}
        for rank, points in course.items():
            line = {**theme.rank_line(rank)["line"], "shape": "hv", "width": 2.5}
            x, y = zip(*points)
            figure.add_scatter(x=x, y=y, name=f"rank {rank}", mode="lines", line=line, **where)


def _sentence(names: list[str], peaks: pd.DataFrame, amounts: list[str], states: list[float | None]) -> str:
    total, sums = peaks.sum(axis=1), peaks[list(STATE)].sum(axis=1)
    most, least = total.idxmax(), total.idxmin()
    kind, share = peaks.loc[most].idxmax(), peaks.loc[most].max() / total[most]
    text = f"At its peak {names[most]} held {amounts[most]}, {share:.0%} of it {kind}"
    if amounts[most] != amounts[least]:
        text += f"; {names[least]} held the least, {amounts[least]}"
    errors = [abs(own / state - 1) for own, state in zip(sums, states) if state]
    if errors:
        by = "less than 0.1%" if max(errors) < 1e-3 else f"at most {max(errors):.1%}"
        text += f"; weights, gradients and optimizer state differ from the closed form by {by}"
    return text
