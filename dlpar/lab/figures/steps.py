"""Static figures of what ranks did: Gantt chart, reads and pushes, time and bytes of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np

from dlpar.jobs.run import Run
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.figure import Figure, blank, finished, over, saying, single, thinned
from dlpar.lab.labels import labels
from dlpar.lab.live import lanes as arrows_of
from dlpar.lab.live import lead as leads
from dlpar.lab.live import rank_lines as shown
from dlpar.lab.live import staleness as ages
from dlpar.lab.live import timeline as gantt
from dlpar.lab.live import waiting as bars_of


def timeline(run: Run, steps: range | None = None) -> Figure:
    """What every rank did, as a Gantt chart.

    Parameters
    ----------
    run : Run
        A run with spans.
    steps : range, optional
        Global steps to show; default: the last 8.
    """
    run = single(run)
    drawn = shown.workers(run.experiment)
    records = [
        (rank, r) for source, r in run.records() if r.get("spans") and (rank := int(source[5:])) < drawn
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
    two_lanes = getattr(run.experiment.sync, "overlap", False)
    figure = blank(gantt.layout(run.experiment, theme.rounded_up(width)))
    for name in [n for n in theme.PHASES if n in rows] + [n for n in rows if n not in theme.PHASES]:
        rank, start, duration, step = rows[name].T
        figure.add_bar(y=rank, base=start, x=duration, customdata=step, **gantt.bar(name, two_lanes))
    step_ms, parts = gantt.shares(spans, range(drawn))
    return saying(
        figure, shown.note(run.experiment, says.timeline(len({s[1] for s in spans}), step_ms, parts))
    )


def lanes(run: Run, last: int | None = None) -> Figure:
    """A lane a worker, an arrow from each read of the weights to the push it led to, and its staleness.

    Parameters
    ----------
    run : Run
        A run of a parameter server or of Hogwild, with spans.
    last : int, optional
        Pushes shown, counted from the end; default: five a worker.
    """
    run = single(run)
    experiment = run.experiment
    if last is not None and (not isinstance(last, Integral) or last < 1):
        raise ValueError(f"last: got {last!r}, allowed is a whole number from 1")
    if not arrows_of.Lanes.fits(experiment):
        n = experiment.workers
        raise ValueError(
            f"run {run.id}: got sync {experiment.sync} with {n} worker{'s' * (n != 1)}, "
            f"allowed is ps or hogwild with two workers or more"
        )
    find = arrows_of.Arrows(experiment.sync.scheme == "hogwild")
    workers = shown.workers(experiment)
    steps = ((int(source[5:]), r) for source, r in run.records() if r["k"] == "step")
    found = [arrow for rank, record in steps if rank < workers and (arrow := find.find(rank, record))]
    if not found:
        raise ValueError(f"run {run.id}: no spans were recorded, so there are no arrows")
    found = sorted(found, key=lambda a: a.push)[-last:] if last else arrows_of.window(found, workers)
    drawn = arrows_of.picture(found)
    figure = blank(arrows_of.layout(experiment, theme.rounded_up(drawn.width)), max(400, 60 * workers + 150))
    for key, style in arrows_of.styles(workers, experiment.sync.scheme == "hogwild").items():
        kind, _, rank = key.partition(" ")
        rows = drawn.lanes.get(int(rank), np.empty((0, 2))) if rank else getattr(drawn, kind)
        text = {"text": rows[:, 2]} if key == "labels" else {}
        figure.add_scatter(x=rows[:, 0], y=rows[:, 1], **text, **style)
    return saying(figure, shown.note(experiment, says.lanes([a.updates for a in found])))


def waiting(runs: Run | Sequence[Run]) -> Figure:
    """Seconds each rank computed, communicated and waited; of several runs, means over their workers."""
    runs = finished(runs)
    if len(runs) == 1:
        experiment = runs[0].experiment
        sums = per_rank(runs[0])
        names = [bars_of.name_of(experiment, rank) for rank in range(shown.workers(experiment))]
    else:
        names = labels([run.experiment for run in runs])
        sums = np.array([per_rank(run)[: run.experiment.workers].mean(0) for run in runs])
    rows = sums[: len(names)]
    ticks = list(range(len(names)))
    yaxis = theme.axis(
        "", (len(names) - 0.5, -0.5), tickvals=ticks, ticktext=names, showgrid=False, automargin=True
    )
    xaxis = theme.axis(
        _clocked("time of a worker (s)", runs), (0, theme.rounded_up(rows[:, :3].sum(1).max()))
    )
    figure = blank(
        theme.layout(xaxis=xaxis, yaxis=yaxis, barmode="stack", bargap=0.3), max(260, 40 * len(names) + 140)
    )
    for column, (_, style) in enumerate(list(bars_of.styles().items())[:3]):
        figure.add_bar(y=ticks, x=rows[:, column], **style)
    if len(runs) == 1:
        workers = sums[: experiment.workers, :3]
        return saying(figure, shown.note(experiment, says.waiting(workers, sums[:, 3])))
    shares = rows[:, 2] / rows[:, :3].sum(1)
    each = (f"{name} {share:.0%}" for name, share in zip(names, shares))
    return saying(figure, f"Of its time a worker waited: {says.listed(each)}.")


def bytes_per_rank(run: Run) -> Figure:
    """Megabytes each rank sent, servers too."""
    (run,) = finished(single(run))
    experiment, sent = run.experiment, per_rank(run)[:, 3]
    if np.isnan(sent).any():
        raise ValueError(f"run {run.id}: the library moved the data and does not say how much")
    ranks = shown.ranks(experiment)
    rows, names = list(range(len(ranks))), [bars_of.name_of(experiment, rank) for rank in ranks]
    yaxis = theme.axis("", (len(names) - 0.5, -0.5), tickvals=rows, ticktext=names, showgrid=False)
    xaxis = theme.axis("sent by a rank (MB)", (0, theme.rounded_up(sent[ranks].max())))
    figure = blank(theme.layout(xaxis=xaxis, yaxis=yaxis, bargap=0.3), max(260, 40 * len(names) + 140))
    marker = {"color": theme.scheme_colour(experiment.sync.scheme)}
    figure.add_bar(y=rows, x=sent[ranks], orientation="h", name="sent", marker=marker)
    most = int(np.argmax(sent))
    mean = f"{says.quantity(float(sent.mean()))} MB on average"
    name = bars_of.name_of(experiment, most)
    sentence = f"A rank sent {mean}; the most, {says.quantity(float(sent[most]))} MB, {name}."
    return saying(figure, shown.note(experiment, sentence))


def _clocked(title: str, runs: Sequence[Run]) -> str:
    """The title, with the clock that all of `runs` have; of several clocks, none is named."""
    worlds = {run.world for run in runs}
    return theme.on_clock(title, worlds.pop()) if len(worlds) == 1 else title


def per_rank(run: Run) -> np.ndarray:
    """Seconds computing, communicating and waiting, and MB sent, of every rank: shape (ranks, 4)."""
    sums = np.zeros((run.experiment.ranks, 4))
    for source, record in run.records():
        if record["k"] == "step":
            sent = record["bytes"] if record["bytes"] is not None else np.nan
            sums[int(source[5:])] += (record["compute"], record["comm"], record["wait"], sent / 1e6)
        elif record["k"] == "event" and record["name"] == "served":
            sums[int(source[5:]), 3] += record.get("bytes", 0) / 1e6
    return sums


def staleness(run: Run) -> Figure:
    """How many updates old the weights were that each gradient was computed on, over time and as histograms."""
    (run,) = finished(single(run))
    steps, experiment = run.steps, run.experiment
    largest, predicted = int(steps["staleness"].max()), ages.predicted_mean(experiment)
    figure = blank(ages.layout(experiment), 520 if experiment.free_running else 430)
    top = theme.doubled(largest, max(4.0, 2.0 * (predicted or 0)))
    figure.layout.yaxis.range = [-0.25, top]
    end = theme.rounded_up(steps["t"].max()) if experiment.free_running else experiment.steps
    figure.layout.xaxis.range = [0, end]
    most, by_rank = 1, dict(list(steps.groupby("rank")))
    for rank in range(shown.workers(experiment)):
        kept = thinned(by_rank[rank])
        line = theme.rank_line(rank, shown.crowded(experiment))
        figure.add_scatter(x=over(experiment, kept), y=kept["staleness"], name=f"rank {rank}", **line)
    for number, name in enumerate(ages.histograms(experiment)):
        own = steps if name == ages.ALL else by_rank[number]
        counts = own["staleness"].value_counts().sort_index()
        looks = {key: value for key, value in ages.histogram(number, name).items() if key != "type"}
        figure.add_bar(x=counts.index, y=counts, **looks)
        axis = figure.layout[ages.axis_of(number)]
        axis.title.text = f"{name}<br>mean {says.quantity(own['staleness'].mean())}"
        axis.range = [-0.6, ages.widest(largest, predicted, ended=True) + 0.6]
        most = max(most, int(counts.max()))
    if experiment.free_running:
        figure.layout.yaxis2.range = [0, theme.rounded_up(1.15 * most)]
    if predicted is not None:
        figure.add_scatter(x=[0, end], y=[predicted, predicted], **ages.predicted_line(predicted))
    sentence = says.staleness(largest, float(steps["staleness"].mean()), experiment, predicted)
    return saying(figure, shown.note(experiment, sentence))


def lead(run: Run) -> Figure:
    """How many clocks each worker was ahead of the slowest whenever it started one, and the bound on it."""
    (run,) = finished(single(run))
    steps, experiment = run.steps, run.experiment
    bound = leads.bound_of(experiment)
    most = steps.groupby("rank")["lead"].max()
    figure = blank(leads.layout(experiment))
    figure.layout.yaxis.range = [-0.25, theme.doubled(int(most.max()), leads.least(bound))]
    figure.layout.xaxis.range = [
        0,
        theme.rounded_up(steps["t"].max()) if experiment.free_running else experiment.steps,
    ]
    for rank in range(shown.workers(experiment)):
        kept = thinned(steps[steps["rank"] == rank])
        line = theme.rank_line(rank, shown.crowded(experiment))
        figure.add_scatter(x=over(experiment, kept), y=kept["lead"], name=f"rank {rank}", **line)
    return saying(figure, shown.note(experiment, says.lead([int(n) for n in most], bound)))
