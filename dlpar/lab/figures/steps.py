"""Static figures of what ranks did: Gantt chart, reads and pushes, staleness, lead, time and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np
import pandas as pd

from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.jobs.tail import rank_of
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned, finished, horizontal, single, thinned
from dlpar.lab.labels import WITH_PUSHES, labels, rank_name
from dlpar.lab.live import lanes as arrows_of
from dlpar.lab.live import staleness as ages
from dlpar.lab.live import timeline as gantt
from dlpar.lab.live import waiting as bars_of


def timeline(run: Run, steps: range | None = None) -> Figure:
    """Draw the phases of every rank as a Gantt chart.

    Parameters
    ----------
    run : Run
        A run with spans.
    steps : range, optional
        Global steps to draw; default: the last 8.
    """
    run = single(run)
    drawn = theme.workers(run.experiment)
    records = [
        (rank, r) for source, r in run.records() if r.get("spans") and (rank := rank_of(source)) < drawn
    ]
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
    figure = blank(gantt.layout(run.experiment, theme.rounded_up(width)))
    for name in gantt.ordered(rows):
        rank, start, duration, step = rows[name].T
        bar = gantt.bar(name, gantt.two_lanes(run.experiment))
        figure.add_bar(y=rank, base=start, x=duration, customdata=step, **bar)
    step_ms, parts = gantt.shares(spans, range(drawn))
    sentence = captions.timeline(len({s[1] for s in spans}), step_ms, parts)
    return captioned(figure, captions.shown_workers(run.experiment, sentence))


def lanes(run: Run, last: int | None = None) -> Figure:
    """Draw one lane per worker, with an arrow and its staleness from each read of the weights to the push.

    Parameters
    ----------
    run : Run
        A run of a parameter server or of workers that share memory, with spans.
    last : int, optional
        Number of the last pushes to draw; default: five a worker.
    """
    run = single(run)
    experiment = run.experiment
    if last is not None and (not isinstance(last, Integral) or last < 1):
        raise ValueError(f"last: got {last!r}, allowed is a whole number from 1")
    if not arrows_of.Lanes.fits(experiment):
        n = experiment.workers
        raise ValueError(
            f"run {run.id}: got sync {experiment.sync} with {n} worker{'s' * (n != 1)}, "
            f"allowed is {WITH_PUSHES} with two workers or more"
        )
    find = arrows_of.Arrows(experiment.sync.shares_memory)
    workers = theme.workers(experiment)
    steps = ((rank_of(source), r) for source, r in run.records() if r["k"] == "step")
    found = [arrow for rank, record in steps if rank < workers and (arrow := find.find(rank, record))]
    if not found:
        raise ValueError(f"run {run.id}: no spans were recorded, so there are no arrows")
    found = sorted(found, key=lambda a: a.push)[-last:] if last else arrows_of.window(found, workers)
    drawn = arrows_of.picture(found)
    figure = blank(arrows_of.layout(experiment, theme.rounded_up(drawn.width)), arrows_of.height(workers))
    for key, style in arrows_of.styles(workers, experiment.sync.shares_memory).items():
        rows = drawn.of(key)
        text = {"text": rows[:, 2]} if key == "labels" else {}
        figure.add_scatter(x=rows[:, 0], y=rows[:, 1], **text, **style)
    return captioned(figure, captions.shown_workers(experiment, captions.lanes([a.updates for a in found])))


def waiting(runs: Run | Sequence[Run]) -> Figure:
    """Draw the seconds each rank computed, communicated and waited; of several runs, means over their workers."""
    runs = finished(runs)
    if len(runs) == 1:
        experiment = runs[0].experiment
        sums = per_rank(runs[0])
        names = [rank_name(experiment, rank) for rank in range(theme.workers(experiment))]
    else:
        names = labels([run.experiment for run in runs])
        sums = np.array([per_rank(run)[: run.experiment.workers].mean(0) for run in runs])
    rows, worlds = sums[: len(names)], {run.world for run in runs}
    title = "time of a worker (s)"
    title = theme.on_clock(title, worlds.pop()) if len(worlds) == 1 else title
    xaxis = theme.axis(title, (0, theme.rounded_up(rows[:, :3].sum(1).max())))
    layout = theme.layout(xaxis=xaxis, yaxis=theme.rows(names, automargin=True), barmode="stack", bargap=0.3)
    figure = blank(layout, max(260, 40 * len(names) + 140))
    for column, (_, style) in enumerate(list(bars_of.styles().items())[:3]):
        figure.add_bar(y=list(range(len(names))), x=rows[:, column], **style)
    if len(runs) == 1:
        sentence = captions.waiting(sums[: experiment.workers, :3], sums[:, 3])
        return captioned(figure, captions.shown_workers(experiment, sentence))
    shares = rows[:, 2] / rows[:, :3].sum(1)
    each = captions.listed(f"{name} {share:.0%}" for name, share in zip(names, shares))
    return captioned(figure, f"Share of its time that a worker waited: {each}.")


def bytes_per_rank(run: Run) -> Figure:
    """Draw the megabytes each rank sent, servers too."""
    (run,) = finished(single(run))
    experiment, sent = run.experiment, per_rank(run)[:, 3]
    if np.isnan(sent).any():
        raise ValueError(f"run {run.id}: the library moved the data and does not report how much")
    ranks = theme.ranks(experiment)
    names = [rank_name(experiment, rank) for rank in ranks]
    xaxis = theme.axis("sent by a rank (MB)", (0, theme.rounded_up(sent[ranks].max())))
    figure = blank(
        theme.layout(xaxis=xaxis, yaxis=theme.rows(names), bargap=0.3), max(260, 40 * len(names) + 140)
    )
    marker = {"color": theme.scheme_colour(experiment.sync.scheme)}
    rows = list(range(len(ranks)))
    figure.add_bar(y=rows, x=sent[ranks], orientation="h", name="sent", marker=marker)
    most = int(np.argmax(sent))
    sentence = (
        f"A rank sent {captions.quantity(float(sent.mean()))} MB on average; {rank_name(experiment, most)} "
        f"sent the most, {captions.quantity(float(sent[most]))} MB."
    )
    return captioned(figure, captions.shown_workers(experiment, sentence))


def per_rank(run: Run) -> np.ndarray:
    """Seconds computing, communicating and waiting, and MB sent, of every rank: shape (ranks, 4)."""
    sums = np.zeros((run.experiment.ranks, 4))
    for source, record in run.records():
        if record["k"] == "step":
            sent = record["bytes"] if record["bytes"] is not None else np.nan
            sums[rank_of(source)] += (record["compute"], record["comm"], record["wait"], sent / 1e6)
        elif record["k"] == "event" and record["name"] == "served":
            sums[rank_of(source), 3] += record.get("bytes", 0) / 1e6
    return sums


def staleness(run: Run) -> Figure:
    """Draw the staleness (updates) of the weights behind each gradient, over time and as histograms."""
    (run,) = finished(single(run))
    steps, experiment = run.steps, run.experiment
    largest, predicted = int(steps["staleness"].max()), ages.predicted_mean(experiment)
    figure = blank(ages.staleness_layout(experiment), 520 if experiment.free_running else 430)
    top = theme.doubled(largest, max(4.0, 2.0 * (predicted or 0)))
    end = _add_rank_lines(figure, experiment, steps, "staleness", top)
    most, by_rank = 1, dict(list(steps.groupby("rank")))
    for number, name in enumerate(ages.histograms(experiment)):
        own = steps if name == ages.ALL else by_rank[number]
        counts = own["staleness"].value_counts().sort_index()
        looks = {key: value for key, value in ages.histogram(number, name).items() if key != "type"}
        figure.add_bar(x=counts.index, y=counts, **looks)
        axis = figure.layout[ages.axis_of(number)]
        axis.title.text = f"{name}<br>mean {captions.quantity(own['staleness'].mean())}"
        axis.range = [-0.6, ages.widest(largest, predicted, ended=True) + 0.6]
        most = max(most, int(counts.max()))
    if experiment.free_running:
        figure.layout.yaxis2.range = [0, theme.rounded_up(1.15 * most)]
    if predicted is not None:
        figure.add_scatter(x=[0, end], y=[predicted, predicted], **ages.mean_line(predicted))
    sentence = captions.staleness(largest, float(steps["staleness"].mean()), experiment, predicted)
    return captioned(figure, captions.shown_workers(experiment, sentence))


def lead(run: Run) -> Figure:
    """Draw the lead of each worker (clocks ahead of the slowest) whenever it started a clock, and its bound."""
    (run,) = finished(single(run))
    steps, experiment = run.steps, run.experiment
    bound, most = experiment.sync.lead_bound, steps.groupby("rank")["lead"].max()
    figure = blank(ages.lead_layout(experiment))
    top = theme.doubled(int(most.max()), ages.lead_axis_end(bound))
    _add_rank_lines(figure, experiment, steps, "lead", top)
    sentence = captions.lead([int(n) for n in most], bound)
    return captioned(figure, captions.shown_workers(experiment, sentence))


def _add_rank_lines(
    figure: Figure, experiment: Experiment, steps: pd.DataFrame, column: str, top: float
) -> float:
    """Draw a column of each worker's steps, up to `top`; returns the end of the horizontal axis."""
    figure.layout.yaxis.range = [-0.25, top]
    end = theme.rounded_up(steps["t"].max()) if experiment.free_running else experiment.steps
    figure.layout.xaxis.range = [0, end]
    for rank in range(theme.workers(experiment)):
        kept = thinned(steps[steps["rank"] == rank])
        line = theme.rank_line(rank, theme.crowded(experiment))
        figure.add_scatter(x=horizontal(experiment, kept), y=kept[column], name=f"rank {rank}", **line)
    return end
