"""Static figure of the size of buckets: the time of a step between many short messages and one long one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dlpar.costmodel import predict
from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, saying
from dlpar.sweep import Outcome

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
