"""Static figure of the size of buckets: the time of a step between many short messages and one long one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dlpar.jobs.run import Run
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.figure import Figure, blank, finished, saying
from dlpar.lab.sweep import Outcome
from dlpar.theory import predict

POINTS = 80
"""Sizes at which the prediction is drawn: it jumps where a layer changes its bucket."""


def bucket_sizes(outcomes: Sequence[Outcome]) -> Figure:
    """Time of a step over the size of its buckets, and by the closed form, on a logarithmic axis.

    Dotted: computing alone, and below it no step can be.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Done, two or more, of one experiment by ring all-reduce with buckets of several sizes.

    Raises
    ------
    ValueError
        If they are fewer, or differ in more.
    """
    done = sorted((o for o in outcomes if o.status == "done"), key=lambda o: o.experiment.sync.bucket_mb)
    if len(done) < 2 or len({_but_buckets(o) for o in done}) > 1:
        raise ValueError(
            "outcomes: got other than buckets of several sizes in one experiment, allowed are two or more"
        )
    experiment = done[0].experiment
    sizes, times = [o.experiment.sync.bucket_mb for o in done], [1e3 * o.step_s for o in done]
    computing = 1e3 * done[0].summary["seconds"]["compute"] / done[0].summary["steps"]
    between = np.geomspace(sizes[0], sizes[-1], POINTS).tolist()
    known = [
        (mb, 1e3 * found.seconds)
        for mb in between
        if (found := predict(experiment.replace(sync={"bucket_mb": mb})))
    ]
    how, colour = theme.HOW[experiment.cluster.world], theme.scheme_colour(experiment.sync.scheme)
    figure = blank(_layout(sizes, [computing, *times, *(ms for _, ms in known)], experiment.cluster.world))
    alone = {"mode": "lines", "line": theme.IDEAL, "name": "computing alone"}
    figure.add_scatter(x=[sizes[0], sizes[-1]], y=[computing] * 2, **alone)
    faint = how == "simulated"
    line = {"width": theme.BROAD, "color": theme.faint(colour)} if faint else {"width": 2.5, "color": colour}
    marker = {"symbol": "circle", "size": 9, "color": colour}
    figure.add_scatter(x=sizes, y=times, mode="lines+markers", line=line, marker=marker, name=how)
    if known:
        dashed = {
            "mode": "lines",
            "line": {"color": colour, "width": 1.5, **theme.PREDICTED},
            "name": "predicted",
        }
        figure.add_scatter(x=[mb for mb, _ in known], y=[ms for _, ms in known], **dashed)
    saying(
        figure,
        _sentence(how, sizes, times, computing, [o.prediction and 1e3 * o.prediction.seconds for o in done]),
    )
    table = {
        "bucket (MB)": sizes,
        "step (ms)": times,
        "predicted step (ms)": [o.prediction and 1e3 * o.prediction.seconds for o in done],
    }
    figure.layout.meta = {**figure.layout.meta, "table": table, "open": True}
    return figure


def _but_buckets(outcome: Outcome) -> str:
    sync = outcome.experiment.sync
    if sync.scheme != "ring":
        raise ValueError(f"outcomes: got sync {sync.scheme}, allowed is ring: others send no buckets")
    return outcome.experiment.model_copy(
        update={"sync": sync.model_copy(update={"bucket_mb": 1.0})}
    ).to_json()


def _layout(sizes: Sequence[float], times: Sequence[float], world: str) -> dict:
    decades = range(math.floor(math.log10(sizes[0])), math.ceil(math.log10(sizes[-1])) + 1)
    ticks = [10.0**k for k in decades]
    ends = [math.log10(sizes[0]) - 0.1, math.log10(sizes[-1]) + 0.1]
    across = {"type": "log", "range": ends, "tickvals": ticks, "ticktext": [f"{mb:g}" for mb in ticks]}
    low, high = min(times), max(times)
    up = theme.axis(
        theme.on_clock("time of a step (ms)", world), (low - 0.1 * (high - low), high + 0.1 * (high - low))
    )
    return theme.layout(xaxis=theme.axis("bucket (MB)", **across), yaxis=up)


def _sentence(
    how: str, sizes: list[float], times: list[float], computing: float, predicted: list[float | None]
) -> str:
    best = min(range(len(times)), key=times.__getitem__)
    ends = says.listed(f"{says.quantity(times[n])} ms with {says.quantity(sizes[n])} MB" for n in (0, -1))
    text = (
        f"{how.capitalize()}: the quickest step takes {says.quantity(times[best])} ms, with buckets of "
        f"{says.quantity(sizes[best])} MB; it takes {ends}, and computing alone {says.quantity(computing)} ms."
    )
    off = [abs(p / t - 1) for p, t in zip(predicted, times) if p]
    return f"{text} {says.off('prediction', max(off))}" if off else text


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Of schedules, as they come."""

Seconds = Mapping[int, float]
"""Of a step, by the number of micro-batches."""


def micro_batches(runs: Sequence[Run], predicted: Mapping[str, Seconds] = {}) -> Figure:
    """Duration of a step over the number of micro-batches, a curve for each schedule; the lowest point is marked.

    Parameters
    ----------
    runs : sequence of Run
        Split by pipeline, of one world, with two steps or more; of their steps the median counts.
    predicted : mapping of str to mapping of int to float
        Seconds of a step by the number of micro-batches, by schedule; drawn dashed.

    Raises
    ------
    ValueError
        If a run has too few steps, is split in another way, or lives in another world than the first.
    """
    found: dict[str, dict[int, float]] = {}
    runs = finished(runs)
    world = runs[0].experiment.cluster.world
    for run in runs:
        cut = run.experiment.split
        if (
            cut.kind not in ("pipeline", "hybrid")
            or run.experiment.cluster.world != world
            or len(run.curve) < 2
        ):
            raise ValueError(f"run {run.id}: allowed is a pipeline of two steps or more in the {world} world")
        found.setdefault(cut.schedule, {})[cut.microbatches] = float(run.curve["seconds"].diff().median())
    figure = _picture(found, predicted, world)
    best = {name: min(points, key=points.__getitem__) for name, points in found.items()}
    told = [
        f"{name} is quickest with {best[name]} micro-batch{'es' * (best[name] > 1)}, "
        f"{says.quantity(1e3 * points[best[name]])} ms a step"
        + f", and takes {points[max(points)] / points[best[name]]:.1f} times as long with {max(points)}"
        * (max(points) > best[name])
        for name, points in found.items()
    ]
    saying(figure, "; ".join(told) + ".")
    rows = [
        (theme.HOW[world], name, m, s) for name, points in found.items() for m, s in sorted(points.items())
    ]
    rows += [
        ("predicted", name, m, s) for name, points in predicted.items() for m, s in sorted(points.items())
    ]
    columns = zip(("how", "schedule", "micro-batches", "step (s)"), zip(*rows))
    figure.layout.meta = {**figure.layout.meta, "table": {name: list(values) for name, values in columns}}
    return figure


def _picture(found: dict[str, dict[int, float]], predicted: Mapping[str, Seconds], world: str) -> Figure:
    each = [s for points in (*found.values(), *predicted.values()) for s in points.values()]
    counts = sorted({m for points in found.values() for m in points})
    ticks = {"type": "log", "tickvals": counts, "ticktext": list(map(str, counts))}
    across = theme.axis("micro-batches a step is cut into", **ticks)
    up = theme.axis(theme.on_clock("time of a step (ms)", world), (0, theme.rounded_up(1e3 * max(each))))
    figure = blank(theme.layout(xaxis=across, yaxis=up), 400)
    for colour, marker, (name, points) in zip(COLOURS, theme.MARKERS, found.items()):
        x, y = zip(*sorted(points.items()))
        line = {"mode": "lines+markers", "line": {"color": colour, "width": 2.5},
                "marker": {"symbol": marker, "size": 8}}  # fmt: skip
        figure.add_scatter(
            x=x, y=[1e3 * s for s in y], name=f"{name}, {theme.HOW[world]}", **theme.of_world(line, world)
        )
        if name in predicted:
            x, y = zip(*sorted(predicted[name].items()))
            figure.add_scatter(
                x=x,
                y=[1e3 * s for s in y],
                name=f"{name}, predicted",
                mode="lines",
                line={"color": colour, "width": 2, **theme.PREDICTED},
            )
        least = min(points, key=points.__getitem__)
        ring = {"symbol": "circle-open", "size": 17, "color": colour, "line": {"width": 2.5}}
        figure.add_scatter(
            x=[least],
            y=[1e3 * points[least]],
            mode="markers",
            marker=ring,
            showlegend=False,
            name=f"{name}, quickest",
        )
    return figure
