"""Static figures of overlap: the communication that computing hides, and the size of buckets it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, Names, blank, captioned, gantt, require, stacked
from dlpar.lab.labels import labels
from dlpar.lab.sweep import Outcome
from dlpar.theory import collective_seconds, predict
from dlpar.theory.overlap import buckets
from dlpar.worlds.platforms import platform_of, workload

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


def exposed(outcomes: Sequence[Outcome], titles: Names = None) -> Figure:
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
    require(len(outcomes) > 0, "outcomes: got none, allowed is one or more")
    for bad in outcomes:
        got = f"got one that is {bad.status} ({bad.reason})"
        require(bad.status == "done", f"outcomes: {got}, allowed are those that are done")
    names = list(titles or labels([outcome.experiment for outcome in outcomes]))
    rows = []
    for name, o in zip(names, outcomes):
        share = o.step_s / o.compute_s - 1
        rows.append((name, 1e3 * o.compute_s, 1e3 * o.step_s, _ms(o.predicted_step_s), share))
    _, computing, _, forms, beyond = zip(*rows)
    predicted = [form and form / own for form, own in zip(forms, computing)]
    how = {theme.HOW[o.experiment.cluster.world] for o in outcomes}
    suffix = f", {how.pop()}" if len(how) == 1 else ""
    parts = {
        f"computing{suffix}": (theme.phase_bar("forward"), [1.0] * len(names)),
        f"exposed communication{suffix}": (theme.phase_bar("communicate"), beyond),
    }
    figure = stacked("time of a step (times its computing)", names, parts, ("predicted", predicted))
    heads = ("", "computing (ms)", "step (ms)", "predicted step (ms)", "exposed (share of computing)")
    each = captions.listed(f"{name} {share:.1%}" for name, share in zip(names, beyond))
    sentence = f"Exposed communication of a step, as a share of its computing time: {each}."
    sentence = _with_error(sentence, predicted, [1 + share for share in beyond])
    return captioned(figure, sentence, (heads, rows), open=True)


def _ms(seconds: float | None) -> float | None:
    return seconds and 1e3 * seconds


def _with_error(sentence: str, predicted: Sequence[float | None], found: Sequence[float]) -> str:
    """The sentence, and the largest error of the predictions."""
    known = {n: value for n, value in enumerate(predicted) if value}
    return " ".join([sentence, *captions.errors({"measured": dict(enumerate(found)), "predicted": known})])


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
    wanted = "an overlapped ring that stands in for a workload"
    fine = sync.scheme == "ring" and sync.allreduce == "ring" and sync.overlap and name is not None
    require(fine, f"experiment: got other than {wanted}, allowed is that")
    charged, platform = workload(name), platform_of(experiment)
    computing = 1e3 * platform.seconds(experiment.local_batch(0) * charged.flops, charged)
    link = platform.link(same_node=experiment.workers <= platform.devices)
    nbytes = [charged.itemsize * layer.parameters for layer in charged.layers]
    done = [flops / charged.flops for flops in accumulate(layer.flops for layer in charged.layers)]
    sent, free = [], 0.0
    for members in buckets(nbytes, sync.bucket_mb * 1e6):
        whole, largest = sum(nbytes[i] for i in members), max(members, key=nbytes.__getitem__)
        ready = computing * (1 / 3 + 2 / 3 * done[members[-1]])
        begins = max(ready, free)
        free = begins + 1e3 * collective_seconds("ring", experiment.workers, whole, link)
        sent.append((charged.layers[largest].name, whole / 1e6, ready, begins, free))
    layers, megabytes, ready, begins, ends = zip(*sent)
    lengths = [end - begin for begin, end in zip(begins, ends)]
    most = max(range(len(sent)), key=megabytes.__getitem__)
    ms, after = [captions.quantity(length) for length in lengths], max(0.0, free - computing)
    sentence = (
        f"Predicted for {name}: {len(sent)} buckets keep the link busy for {captions.quantity(sum(lengths))} ms; "
        f"the largest, {layers[most]} with {captions.quantity(megabytes[most])} MB, for {ms[most]} ms. "
        f"{captions.quantity(after)} ms of communication come after the backward pass."
    )
    title, end = "time since the step began, predicted (ms)", theme.rounded_up(max(computing, free))
    rows = theme.rows(["computing", "sending"], range=[1.6, -0.6])
    figure = blank(300, xaxis=theme.axis(title, (0, end)), yaxis=rows, barmode="overlay", bargap=0.25)
    third = computing / 3
    gantt(figure, [(0, 0.0, third, "")], **theme.phase_bar("forward"))
    gantt(figure, [(0, third, 2 * third, "")], **theme.phase_bar("backward"))
    texts = [f"{layer}: {mb:.3g} MB" for layer, mb in zip(layers, megabytes)]
    own = {"name": "a bucket", "textposition": "none", "hoverinfo": "text"}
    bar = theme.phase_bar("communicate")
    bar["marker"]["line"] = {"width": 2, "color": "#ffffff"}
    gantt(figure, zip([1] * len(sent), begins, lengths, texts), **bar | own)
    figure.add_scatter(x=ready, y=[0.52] * len(sent), **theme.LOOKS["ready"])
    heads = ("largest layer", "MB", "ready (ms)", "begins (ms)", "ends (ms)")
    return captioned(figure, sentence, (heads, sent))


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
    wanted = "buckets of several sizes in one experiment"
    fine = len(done) > 1 and len(set(map(_but_buckets, done))) == 1
    require(fine, f"outcomes: got other than {wanted}, allowed are two or more")
    experiment, computing = done[0].experiment, 1e3 * done[0].compute_s
    how, colour = theme.HOW[experiment.cluster.world], theme.RUNS[0]
    sizes, times = [o.experiment.sync.bucket_mb for o in done], [1e3 * o.step_s for o in done]
    predicted = [_ms(o.predicted_step_s) for o in done]
    sizes_drawn = np.geomspace(sizes[0], sizes[-1], POINTS).tolist()
    forms = {mb: predict(experiment.replace(sync={"bucket_mb": mb})) for mb in sizes_drawn}
    curve = [(mb, 1e3 * form.seconds) for mb, form in forms.items() if form]
    everything = [computing, *times, *(ms for _, ms in curve)]
    margin = 0.1 * (max(everything) - min(everything))
    limits, ends = (min(everything) - margin, max(everything) + margin), (sizes[0], sizes[-1])
    xaxis = theme.log_axis("bucket (MB)", theme.round_numbers(*ends, (1,)), ends=ends)
    yaxis = theme.axis(theme.on_clock("time of a step (ms)", experiment.cluster.world), limits)
    figure, alone = blank(xaxis=xaxis, yaxis=yaxis), {"mode": "lines", "line": theme.IDEAL}
    figure.add_scatter(x=ends, y=[computing] * 2, name="computing alone", **alone)
    figure.add_scatter(x=sizes, y=times, **theme.result(how, colour, how))
    if curve:
        x, y = zip(*curve)
        figure.add_scatter(x=x, y=y, **theme.predicted_line("predicted", colour, 1.5))
    best = min(range(len(times)), key=times.__getitem__)
    ms = [captions.quantity(value) for value in times]
    both = captions.listed(f"{ms[n]} ms with {captions.quantity(sizes[n])} MB" for n in (0, -1))
    sentence = (
        f"{how.capitalize()}: the fastest step takes {ms[best]} ms, with buckets of "
        f"{captions.quantity(sizes[best])} MB; a step takes {both}, "
        f"and computing alone {captions.quantity(computing)} ms."
    )
    table = ("bucket (MB)", "step (ms)", "predicted step (ms)"), list(zip(sizes, times, predicted))
    return captioned(figure, _with_error(sentence, predicted, times), table, open=True)


def _but_buckets(outcome: Outcome) -> str:
    """An experiment apart from the size of its buckets."""
    experiment, sync = outcome.experiment, outcome.experiment.sync
    fine = sync.scheme == "ring"
    require(fine, f"outcomes: got sync {sync.scheme}, allowed is ring: others send no buckets")
    return experiment.model_copy(update={"sync": sync.model_copy(update={"bucket_mb": 1.0})}).to_json()
