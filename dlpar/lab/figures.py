"""Static figures of runs, for reports and for comparing: the same looks and words as in the panel.

Solid is measured, dashed is predicted.  Each function gives a plotly figure;
``say(figure)`` is its sentence and ``table(figure)`` its data.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from dlpar.lab import convergence as curves
from dlpar.lab import says, theme
from dlpar.lab import timeline as gantt
from dlpar.lab.board import labels
from dlpar.lab.figure import Figure, say, table
from dlpar.lab.series import Series
from dlpar.lab.throughput import Rate
from dlpar.run import Run

__all__ = ["convergence", "throughput", "timeline", "staleness", "speedup", "say", "table"]

POINTS = 2000
"""Most points drawn of one curve."""


def convergence(runs: Run | Sequence[Run], x: str = "step") -> Figure:
    """Training loss of each global step and held-out accuracy, one curve a run.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of one kind of task.
    x : {"step", "samples", "seconds"}
        What the curves are drawn over.

    Raises
    ------
    ValueError
        If `x` is none of these, or there is no run with a finished step.
    """
    runs = _runs(runs)
    if x not in theme.TITLES:
        raise ValueError(f"x: got {x!r}, allowed is one of {', '.join(theme.TITLES)}")
    first = runs[0].experiment
    figure = _figure(curves.layout(first))
    top = end = 0.0
    for number, (run, label) in enumerate(zip(runs, labels([r.experiment for r in runs]))):
        curve = run.curve
        stride = -(-len(curve) // POINTS)
        kept, colour = curve[:: max(stride, 1)], theme.scheme_colour(run.experiment.sync.scheme)
        style = {**theme.run_line(colour, number), "opacity": 1.0}
        figure.add_scatter(x=kept[x], y=kept["loss"], name=label, legendgroup=run.id, **style)
        tests = run.evals.assign(
            samples=lambda e: e["step"] * run.experiment.global_batch, seconds=lambda e: e["t"]
        )
        tested = "loss" if curves.is_regression(run.experiment) else "accuracy"
        line = curves.test_line(colour, "held-out loss" if tested == "loss" else "accuracy")
        figure.add_scatter(
            x=tests[x],
            y=tests[tested],
            legendgroup=run.id,
            **{**line, "marker": {**line["marker"], **_symbol(style)}},
        )
        finite = curve["loss"][np.isfinite(curve["loss"])]
        top, end = max(top, finite.max()), max(end, curve[x].max())
    figure.layout.yaxis.range = [0, theme.rounded_up(top)]
    figure.update_xaxes(theme.axis(theme.TITLES[x], (0, end)))
    curve, evals = runs[0].curve, runs[0].evals
    accuracy = None if curves.is_regression(first) or evals.empty else evals["accuracy"].iloc[-1]
    text = says.convergence(first, len(curve), curve["loss"].iloc[0], curve["loss"].iloc[-1], accuracy)
    return _saying(figure, text if len(runs) == 1 else _compared(runs))


def throughput(runs: Run | Sequence[Run]) -> Figure:
    """Samples a second over time: of one run all workers and each, of several runs all workers together."""
    runs = _runs(runs)
    figure = _figure(
        theme.layout(xaxis=theme.axis(theme.TITLES["seconds"]), yaxis=theme.axis("throughput (samples/s)"))
    )
    totals: list[float] = []
    for number, (run, label) in enumerate(zip(runs, labels([r.experiment for r in runs]))):
        curve, steps = run.curve, run.steps
        began = float((steps["t"] - steps["compute"] - steps["comm"] - steps["wait"]).min())
        rows = _rate(curve["seconds"], curve["samples"].diff().fillna(curve["samples"]), began)
        style = theme.run_line(theme.scheme_colour(run.experiment.sync.scheme), number)
        name = "all workers" if len(runs) == 1 else label
        figure.add_scatter(x=rows[:, 0], y=rows[:, 1], name=name, **{**style, "opacity": 1.0})
        totals.append(float(curve["samples"].iloc[-1] / (curve["seconds"].iloc[-1] - began)))
    by_rank = {}
    if len(runs) == 1 and runs[0].experiment.workers > 1:
        for rank, own in steps.groupby("rank"):
            rows = _rate(own["t"], own["samples"], began)
            figure.add_scatter(x=rows[:, 0], y=rows[:, 1], name=f"rank {rank}", **theme.rank_line(rank))
            by_rank[rank] = float(own["samples"].sum() / (own["t"].max() - began))
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    if len(runs) == 1:
        return _saying(figure, says.throughput(totals[0], by_rank, runs[0].experiment))
    each = (
        f"{label} {says.quantity(rate)}" for label, rate in zip(labels([r.experiment for r in runs]), totals)
    )
    return _saying(figure, f"Samples a second over the whole run: {says.listed(each)}.")


def timeline(run: Run, steps: range | None = None) -> Figure:
    """What every rank did, as a Gantt chart.

    Parameters
    ----------
    run : Run
        A run with spans.
    steps : range, optional
        Global steps to show; default: the last 8.
    """
    records = [(int(source[5:]), r) for source, r in run.records() if r.get("spans")]
    if not records:
        raise ValueError(f"run {run.id}: no spans were recorded, so there is no timeline")
    last = max(r["step"] for _, r in records)
    steps = steps if steps is not None else range(max(0, last - gantt.STEPS + 1), last + 1)
    spans = [
        (rank, r["step"], *s) for rank, r in records if r["step"] in steps for s in gantt.without_wait(r)
    ]
    if not spans:
        raise ValueError(f"steps: got {steps}, allowed is any part of 0 to {last}")
    rows, width = gantt.bars(spans)
    two_lanes = run.experiment.sync.overlap
    figure = _figure(gantt.layout(run.experiment.workers, theme.rounded_up(width)))
    for name in [n for n in theme.PHASES if n in rows] + [n for n in rows if n not in theme.PHASES]:
        rank, start, duration, step = rows[name].T
        figure.add_bar(y=rank, base=start, x=duration, customdata=step, **gantt.bar(name, two_lanes))
    step_ms, parts = gantt.shares(spans, range(run.experiment.workers))
    return _saying(figure, says.timeline(len({s[1] for s in spans}), step_ms, parts))


def staleness(run: Run) -> Figure:
    """How many updates old the weights were that each gradient was computed on."""
    steps, experiment = run.steps, run.experiment
    largest = int(steps["staleness"].max())
    yaxis = theme.axis("staleness (updates)", (-0.25, theme.doubled(largest, 4)))
    figure = _figure(theme.layout(xaxis=theme.axis(theme.TITLES["step"], (0, experiment.steps)), yaxis=yaxis))
    for rank, own in steps.groupby("rank"):
        kept = own[:: max(1, -(-len(own) // POINTS))]
        figure.add_scatter(x=kept["step"], y=kept["staleness"], name=f"rank {rank}", **theme.rank_line(rank))
    return _saying(figure, says.staleness(largest, float(steps["staleness"].mean()), experiment))


def speedup(runs: Sequence[Run], predicted: Mapping[int, float] | None = None) -> Figure:
    """How many times faster more workers train, on logarithmic axes, against the ideal line.

    Parameters
    ----------
    runs : sequence of Run
        At least two numbers of workers; several runs of one number are averaged.
    predicted : mapping of int to float, optional
        Workers -> speed-up somebody expected; drawn as a dashed line.
    """
    rates = defaultdict(list)
    for run in _runs(runs):
        rates[run.experiment.workers].append(run.summary["samples_per_s"])
    if len(rates) < 2:
        only = says.listed(map(str, rates))
        raise ValueError(f"runs: got runs of {only} workers only, allowed are two or more numbers of workers")
    workers = sorted(rates)
    base = np.mean(rates[workers[0]])
    measured = {n: float(np.mean(rates[n]) / base) for n in workers}
    ideal = [n / workers[0] for n in workers]
    ticks = {"type": "log", "tickvals": workers, "ticktext": [str(n) for n in workers]}
    up = sorted({*ideal, 1, *(t for t in (0.25, 0.5) if min(measured.values()) < 2 * t)})
    up_ticks = {"type": "log", "tickvals": up, "ticktext": [f"{t:g}" for t in up]}
    base_is = f"{workers[0]} worker{'s' * (workers[0] > 1)}"
    figure = _figure(
        theme.layout(
            xaxis=theme.axis("workers", **ticks),
            yaxis=theme.axis(f"speed-up over {base_is} (times)", **up_ticks),
        )
    )
    grey = {"color": "#7f7f7f", "width": 2, **theme.PREDICTED}
    figure.add_scatter(x=workers, y=ideal, name="ideal", mode="lines", line=grey)
    if predicted:
        predicted = {workers[0]: 1.0, **predicted}
        at = sorted(predicted)
        line = {"color": "#BF8300", **theme.PREDICTED}
        marker = {"symbol": "diamond-open", "size": 10}
        figure.add_scatter(
            x=at,
            y=[predicted[n] for n in at],
            name="predicted",
            mode="lines+markers",
            line=line,
            marker=marker,
        )
    colour = theme.scheme_colour(runs[0].experiment.sync.scheme)
    style = {
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2.5},
        "marker": {"color": colour, "size": 9},
    }
    figure.add_scatter(x=workers, y=list(measured.values()), name="measured", **style)
    return _saying(figure, says.speedup(measured))


def _runs(runs: Run | Sequence[Run]) -> list[Run]:
    runs = [runs] if isinstance(runs, Run) else list(runs)
    for run in runs:
        if run.curve.empty:
            raise ValueError(f"run {run.id}: has no finished step, so there is nothing to draw")
    if not runs:
        raise ValueError("runs: got none, allowed is one run or more")
    return runs


def _rate(seconds: Any, samples: Any, began: float) -> np.ndarray:
    rate = Rate(Series(2, 300))
    for t, n in zip(seconds.to_numpy(), samples.to_numpy()):
        rate.add(float(t), float(n), began)
    rate.close(float(seconds.iloc[-1]))
    return rate.series.rows


def _symbol(style: Mapping[str, Any]) -> dict[str, Any]:
    symbol = style.get("marker", {}).get("symbol")
    return {"symbol": f"{symbol}-open"} if symbol else {}


def _compared(runs: list[Run]) -> str:
    said = []
    for run, label in zip(runs, labels([r.experiment for r in runs])):
        accuracy = run.summary["accuracy"]
        tested = "" if accuracy is None else f", accuracy {accuracy:.1%}"
        said.append(f"{label} loss {says.quantity(run.summary['final_loss'])}{tested}")
    return f"At the end: {'; '.join(said)}."


def _figure(layout: dict[str, Any]) -> Figure:
    figure = Figure(layout=go.Layout(**layout))
    figure.layout.update(height=430, template=None)
    return figure


def _saying(figure: Figure, sentence: str) -> Figure:
    figure.layout.meta = {"says": sentence}
    return figure
