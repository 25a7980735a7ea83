"""Static figure of what overlap hides: a step, in times of its computing, and what of its messages stands out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.figure import Figure, blank, saying
from dlpar.lab.labels import labels
from dlpar.lab.sweep import Outcome
from dlpar.theory import collective_seconds
from dlpar.theory.overlap import buckets
from dlpar.worlds.platforms import platform_of, workload

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


def exposed(outcomes: Sequence[Outcome], titles: Sequence[str] | None = None) -> Figure:
    """A bar for each experiment: computing, which is 1, and the communication nobody computes beside.

    A mark shows the whole step by the closed form, where there is one.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Done, one or more; see :func:`dlpar.lab.sweep.run_all`.
    titles : sequence of str, optional
        What each is called; default: what tells them apart.

    Raises
    ------
    ValueError
        If there is none, or one is not done.
    """
    if not outcomes:
        raise ValueError("outcomes: got none, allowed is one or more")
    bad = next((outcome for outcome in outcomes if outcome.status != "done"), None)
    if bad:
        raise ValueError(
            f"outcomes: got one that is {bad.status} ({bad.reason}), allowed are those that are done"
        )
    names = list(titles or labels([outcome.experiment for outcome in outcomes]))
    computing = [o.summary["seconds"]["compute"] / o.summary["steps"] for o in outcomes]
    steps = [o.step_s / own for o, own in zip(outcomes, computing)]
    predicted = [o.prediction and o.prediction.seconds / own for o, own in zip(outcomes, computing)]
    figure = _exposed(names, steps, predicted, {theme.HOW[o.experiment.cluster.world] for o in outcomes})
    saying(figure, _sentence(names, steps, predicted))
    figure.layout.meta = {
        **figure.layout.meta,
        "open": True,
        "table": {
            "": names,
            "computing (ms)": [1e3 * own for own in computing],
            "step (ms)": [1e3 * o.step_s for o in outcomes],
            "predicted step (ms)": [o.prediction and 1e3 * o.prediction.seconds for o in outcomes],
            "exposed (share of computing)": [step - 1 for step in steps],
        },
    }
    return figure


def _exposed(names: list[str], steps: list[float], predicted: list[float | None], how: set[str]) -> Figure:
    places = list(range(len(names)))
    rows = theme.axis(
        "", (len(names) - 0.5, -0.5), tickvals=places, ticktext=names, showgrid=False, automargin=True
    )
    most = max([*steps, *(p for p in predicted if p)])
    across = theme.axis("time of a step (times its computing)", (0, theme.rounded_up(most)))
    layout = theme.layout(xaxis=across, yaxis=rows, barmode="stack", bargap=0.3)
    figure = blank(layout, max(280, 36 * len(names) + 150))
    suffix = f", {how.pop()}" if len(how) == 1 else ""
    for phase, name, lengths in (
        ("forward", "computing", [1.0] * len(names)),
        ("communicate", "exposed communication", [s - 1 for s in steps]),
    ):
        figure.add_bar(y=places, x=lengths, **{**theme.phase_bar(phase), "name": name + suffix})
    known = [place for place in places if predicted[place]]
    if known:
        symbol = {"symbol": "line-ns", "size": 24, "line": {"width": 3, "color": "#7f7f7f"}}
        figure.add_scatter(
            y=known, x=[predicted[n] for n in known], mode="markers", marker=symbol, name="predicted"
        )
    return figure


def _sentence(names: list[str], steps: list[float], predicted: list[float | None]) -> str:
    each = says.listed(f"{name} {step - 1:.1%}" for name, step in zip(names, steps))
    text = f"Beside its computing a step spends on communication that nothing hides: {each} of it."
    off = [abs(p / step - 1) for p, step in zip(predicted, steps) if p]
    return f"{text} {says.off('prediction', max(off))}" if off else text


class Sent(NamedTuple):
    """A bucket: the name of its largest layer, its MB, and when it is ready, begins and has been summed, in ms."""

    name: str
    megabytes: float
    ready: float
    begins: float
    ends: float


def sending(experiment: Experiment) -> Figure:
    """Computing above, sending below, from the beginning of a step to the last bucket; all of it predicted.

    A bucket is sent when its gradients are there and the one before it has left, and takes 2 (N-1) (a + b/N)
    (Li et al., "PyTorch Distributed", VLDB 2020, figure 4; Shi, Chu and Li, arXiv 1811.11141, section III).

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
    figure = _drawn(computing, sent)
    largest = max(sent, key=lambda bucket: bucket.megabytes)
    after, busy = max(0.0, sent[-1].ends - computing), sum(bucket.ends - bucket.begins for bucket in sent)
    saying(
        figure,
        (
            f"Predicted for {name}: {len(sent)} buckets keep the link busy for {says.quantity(busy)} ms; the largest, "
            f"{largest.name} with {says.quantity(largest.megabytes)} MB, "
            f"for {says.quantity(largest.ends - largest.begins)} ms. "
            f"{says.quantity(after)} ms of it come after the backward pass."
        ),
    )
    columns = zip(*sent)
    titles = ("largest layer", "MB", "ready (ms)", "begins (ms)", "ends (ms)")
    figure.layout.meta = {
        **figure.layout.meta,
        "table": {title: list(c) for title, c in zip(titles, columns)},
    }
    return figure


def schedule(experiment: Experiment, computing: float) -> list[Sent]:
    """The buckets of a step in which computing takes so many ms, in their order."""
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
        found.append(Sent(largest.name, whole / 1e6, ready, begins, free))
    return found


def _drawn(computing: float, sent: list[Sent]) -> Figure:
    rows = theme.axis("", (1.6, -0.6), tickvals=[0, 1], ticktext=["computing", "sending"], showgrid=False)
    end = theme.rounded_up(max(computing, sent[-1].ends))
    across = theme.axis("time since the step began, predicted (ms)", (0, end))
    figure = blank(theme.layout(xaxis=across, yaxis=rows, barmode="overlay", bargap=0.25), 300)
    for phase, start, end in (("forward", 0.0, computing / 3), ("backward", computing / 3, computing)):
        figure.add_bar(y=[0], base=[start], x=[end - start], **theme.phase_bar(phase))
    edge = {**theme.phase_bar("communicate")["marker"], "line": {"width": 2, "color": "#ffffff"}}
    told = [f"{bucket.name}: {bucket.megabytes:.3g} MB" for bucket in sent]
    figure.add_bar(
        y=[1] * len(sent),
        base=[bucket.begins for bucket in sent],
        x=[bucket.ends - bucket.begins for bucket in sent],
        **{**theme.phase_bar("communicate"), "name": "a bucket", "marker": edge},
        hovertext=told,
        hoverinfo="text",
    )
    ready = {"mode": "markers", "marker": {"symbol": "triangle-down", "size": 9, "color": "#7f7f7f"}}
    figure.add_scatter(
        x=[bucket.ready for bucket in sent], y=[0.52] * len(sent), name="a bucket is ready", **ready
    )
    return figure
