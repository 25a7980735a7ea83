"""Static figures of overlap: the communication that computing hides, and the size of buckets it depends on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned
from dlpar.lab.labels import labels
from dlpar.lab.sweep import Outcome
from dlpar.theory import collective_seconds, predict
from dlpar.theory.overlap import buckets
from dlpar.worlds.platforms import platform_of, workload

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


def exposed(outcomes: Sequence[Outcome], titles: Sequence[str] | None = None) -> Figure:
    """Draw a bar for each experiment: computing, whose length is 1, and exposed communication.

    A mark shows the whole step by the closed form, where there is one.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Outcomes of finished runs, one or more; see :func:`dlpar.lab.sweep.run_all`.
    titles : sequence of str, optional
        Name of each experiment; default: the settings in which it differs from the others.

    Raises
    ------
    ValueError
        If there is no outcome, or a run is not done.
    """
    if not outcomes:
        raise ValueError("outcomes: got none, allowed is one or more")
    bad = next((outcome for outcome in outcomes if outcome.status != "done"), None)
    if bad:
        raise ValueError(
            f"outcomes: got one that is {bad.status} ({bad.reason}), allowed are those that are done"
        )
    names = list(titles or labels([outcome.experiment for outcome in outcomes]))
    computing = [o.compute_s for o in outcomes]
    steps = [o.step_s / own for o, own in zip(outcomes, computing)]
    predicted = [o.predicted_step_s and o.predicted_step_s / own for o, own in zip(outcomes, computing)]
    figure = _exposed(names, steps, predicted, {theme.HOW[o.experiment.cluster.world] for o in outcomes})
    table = {
        "": names,
        "computing (ms)": [1e3 * own for own in computing],
        "step (ms)": [1e3 * o.step_s for o in outcomes],
        "predicted step (ms)": [o.predicted_step_s and 1e3 * o.predicted_step_s for o in outcomes],
        "exposed (share of computing)": [step - 1 for step in steps],
    }
    each = captions.listed(f"{name} {step - 1:.1%}" for name, step in zip(names, steps))
    sentence = f"Exposed communication of a step, as a share of its computing time: {each}."
    return captioned(figure, _with_error(sentence, predicted, steps), table, open=True)


def _with_error(sentence: str, predicted: Sequence[float | None], found: Sequence[float]) -> str:
    """The sentence, and the largest error of the predictions."""
    errors = [abs(p / f - 1) for p, f in zip(predicted, found) if p]
    return f"{sentence} {captions.error('prediction', max(errors))}" if errors else sentence


def _exposed(names: list[str], steps: list[float], predicted: list[float | None], how: set[str]) -> Figure:
    places = list(range(len(names)))
    most = max([*steps, *(p for p in predicted if p)])
    xaxis = theme.axis("time of a step (times its computing)", (0, theme.rounded_up(most)))
    layout = theme.layout(xaxis=xaxis, yaxis=theme.rows(names, automargin=True), barmode="stack", bargap=0.3)
    figure = blank(layout, max(280, 36 * len(names) + 150))
    suffix = f", {how.pop()}" if len(how) == 1 else ""
    for phase, name, lengths in (
        ("forward", "computing", [1.0] * len(names)),
        ("communicate", "exposed communication", [step - 1 for step in steps]),
    ):
        figure.add_bar(y=places, x=lengths, **{**theme.phase_bar(phase), "name": name + suffix})
    known = [place for place in places if predicted[place]]
    if known:
        mark = theme.predicted_mark("predicted", 24)
        figure.add_scatter(y=known, x=[predicted[n] for n in known], **mark)
    return figure


class BucketTimes(NamedTuple):
    """A bucket: its largest layer, its MB, and when it is ready, begins to be sent and is summed (ms)."""

    name: str
    megabytes: float
    ready: float
    begins: float
    ends: float


def sending(experiment: Experiment) -> Figure:
    """Draw the predicted computing and sending of a step, from its beginning to its last bucket.

    A bucket is sent when its gradients are ready and the bucket before it has left; it takes
    2 (N-1) (a + b/N) (Li et al., "PyTorch Distributed", VLDB 2020, figure 4; Shi, Chu and Li,
    arXiv 1811.11141, section III).

    Parameters
    ----------
    experiment : Experiment
        An overlapped ring of ranks that stand in for a workload.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    sync, name = experiment.sync, experiment.cluster.stand_in_for
    if sync.scheme != "ring" or sync.allreduce != "ring" or not sync.overlap or name is None:
        raise ValueError(
            "experiment: got other than an overlapped ring that stands in for a workload, allowed is that"
        )
    charged = workload(name)
    computing = 1e3 * platform_of(experiment).seconds(experiment.local_batch(0) * charged.flops, charged)
    sent = schedule(experiment, computing)
    largest = max(sent, key=lambda bucket: bucket.megabytes)
    after, busy = max(0.0, sent[-1].ends - computing), sum(bucket.ends - bucket.begins for bucket in sent)
    sentence = (
        f"Predicted for {name}: {len(sent)} buckets keep the link busy for {captions.quantity(busy)} ms; "
        f"the largest, {largest.name} with {captions.quantity(largest.megabytes)} MB, "
        f"for {captions.quantity(largest.ends - largest.begins)} ms. "
        f"{captions.quantity(after)} ms of communication come after the backward pass."
    )
    titles = ("largest layer", "MB", "ready (ms)", "begins (ms)", "ends (ms)")
    table = {title: list(column) for title, column in zip(titles, zip(*sent))}
    return captioned(_drawn(computing, sent), sentence, table)


def schedule(experiment: Experiment, computing: float) -> list[BucketTimes]:
    """The buckets of a step whose computing takes `computing` ms, in order."""
    platform, charged = platform_of(experiment), workload(experiment.cluster.stand_in_for)
    link = platform.link(same_node=experiment.workers <= platform.devices)
    nbytes = [charged.itemsize * layer.parameters for layer in charged.layers]
    done = [flops / charged.flops for flops in accumulate(layer.flops for layer in charged.layers)]
    found, free = [], 0.0
    for members in buckets(nbytes, experiment.sync.bucket_mb * 1e6):
        whole = sum(nbytes[i] for i in members)
        ready = computing * (1 / 3 + 2 / 3 * done[members[-1]])
        begins = max(ready, free)
        free = begins + 1e3 * collective_seconds("ring", experiment.workers, whole, link)
        largest = charged.layers[max(members, key=nbytes.__getitem__)]
        found.append(BucketTimes(largest.name, whole / 1e6, ready, begins, free))
    return found


def _drawn(computing: float, sent: list[BucketTimes]) -> Figure:
    rows = theme.rows(["computing", "sending"], range=[1.6, -0.6])
    end = theme.rounded_up(max(computing, sent[-1].ends))
    xaxis = theme.axis("time since the step began, predicted (ms)", (0, end))
    figure = blank(theme.layout(xaxis=xaxis, yaxis=rows, barmode="overlay", bargap=0.25), 300)
    for phase, start, end in (("forward", 0.0, computing / 3), ("backward", computing / 3, computing)):
        figure.add_bar(y=[0], base=[start], x=[end - start], **theme.phase_bar(phase))
    bar = theme.phase_bar("communicate")
    bar |= {"name": "a bucket", "marker": {**bar["marker"], "line": {"width": 2, "color": "#ffffff"}}}
    figure.add_bar(
        y=[1] * len(sent),
        base=[bucket.begins for bucket in sent],
        x=[bucket.ends - bucket.begins for bucket in sent],
        **bar,
        hovertext=[f"{bucket.name}: {bucket.megabytes:.3g} MB" for bucket in sent],
        hoverinfo="text",
    )
    ready = {"mode": "markers", "marker": {"symbol": "triangle-down", "size": 9, "color": theme.GREY}}
    x, y = [bucket.ready for bucket in sent], [0.52] * len(sent)
    figure.add_scatter(x=x, y=y, name="a bucket is ready", **ready)
    return figure


POINTS = 80
"""Sizes at which the prediction is drawn: it jumps where a layer changes its bucket."""


def bucket_sizes(outcomes: Sequence[Outcome]) -> Figure:
    """Draw the time of a step over the size of its buckets, and the closed form, on a logarithmic axis.

    The dotted line is computing alone; no step can be faster.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Outcomes of two or more finished runs of one experiment by ring all-reduce with buckets of several sizes.

    Raises
    ------
    ValueError
        If there are fewer, or their experiments differ in more.
    """
    done = sorted((o for o in outcomes if o.status == "done"), key=lambda o: o.experiment.sync.bucket_mb)
    if len(done) < 2 or len({_but_buckets(o) for o in done}) > 1:
        raise ValueError(
            "outcomes: got other than buckets of several sizes in one experiment, allowed are two or more"
        )
    experiment = done[0].experiment
    sizes, times = [o.experiment.sync.bucket_mb for o in done], [1e3 * o.step_s for o in done]
    computing, predicted = (
        1e3 * done[0].compute_s,
        [o.predicted_step_s and 1e3 * o.predicted_step_s for o in done],
    )
    curve = [
        (mb, 1e3 * found.seconds)
        for mb in np.geomspace(sizes[0], sizes[-1], POINTS).tolist()
        if (found := predict(experiment.replace(sync={"bucket_mb": mb})))
    ]
    how, colour = theme.HOW[experiment.cluster.world], theme.scheme_colour(experiment.sync.scheme)
    figure = blank(_layout(sizes, [computing, *times, *(ms for _, ms in curve)], experiment.cluster.world))
    alone = {"mode": "lines", "line": theme.IDEAL, "name": "computing alone"}
    figure.add_scatter(x=[sizes[0], sizes[-1]], y=[computing] * 2, **alone)
    style = {
        "line": theme.line_by_source(colour, how),
        "marker": {"symbol": "circle", "size": 9, "color": colour},
    }
    figure.add_scatter(x=sizes, y=times, mode="lines+markers", name=how, **style)
    if curve:
        x, y = zip(*curve)
        figure.add_scatter(x=x, y=y, **theme.predicted_line("predicted", colour, 1.5))
    best = min(range(len(times)), key=times.__getitem__)
    ms = [captions.quantity(value) for value in times]
    ends = captions.listed(f"{ms[n]} ms with {captions.quantity(sizes[n])} MB" for n in (0, -1))
    sentence = (
        f"{how.capitalize()}: the fastest step takes {ms[best]} ms, with buckets of "
        f"{captions.quantity(sizes[best])} MB; a step takes {ends}, "
        f"and computing alone {captions.quantity(computing)} ms."
    )
    table = {"bucket (MB)": sizes, "step (ms)": times, "predicted step (ms)": predicted}
    return captioned(figure, _with_error(sentence, predicted, times), table, open=True)


def _but_buckets(outcome: Outcome) -> str:
    """An experiment apart from the size of its buckets."""
    experiment, sync = outcome.experiment, outcome.experiment.sync
    if sync.scheme != "ring":
        raise ValueError(f"outcomes: got sync {sync.scheme}, allowed is ring: others send no buckets")
    return experiment.model_copy(update={"sync": sync.model_copy(update={"bucket_mb": 1.0})}).to_json()


def _layout(sizes: Sequence[float], times: Sequence[float], world: str) -> dict[str, Any]:
    decades = range(math.floor(math.log10(sizes[0])), math.ceil(math.log10(sizes[-1])) + 1)
    ticks = {"tickvals": [10.0**k for k in decades], "ticktext": [f"{10.0**k:g}" for k in decades]}
    ends = [math.log10(sizes[0]) - 0.1, math.log10(sizes[-1]) + 0.1]
    low, high = min(times), max(times)
    margin = 0.1 * (high - low)
    yaxis = theme.axis(theme.on_clock("time of a step (ms)", world), (low - margin, high + margin))
    return theme.layout(xaxis=theme.axis("bucket (MB)", type="log", range=ends, **ticks), yaxis=yaxis)
