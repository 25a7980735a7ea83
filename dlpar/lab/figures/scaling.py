"""Scaling with the number of workers: run experiments, and draw their speed-up and efficiency."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.launch import check_machine
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned
from dlpar.lab.labels import labels, scheme
from dlpar.lab.sweep import Outcome, all_done, check
from dlpar.theory.scaling import crossings, gains, task

TICKS = 8
"""Most numbers on an axis."""


def scaling(
    experiments: Experiment | Sequence[Experiment],
    workers: Sequence[int] = (1, 2, 4, 8),
    simulated: bool = True,
    predicted: bool = True,
    jobs: int = 2,
) -> Figure:
    """Run experiments with several numbers of workers, and draw their speed-up and efficiency.

    Returns when all runs are done. A table of them is under the figure, and in ``figures.table``.

    Parameters
    ----------
    experiments : Experiment or sequence of Experiment
        Run in their own worlds; several differ in how replicas agree.
    workers : sequence of int, default (1, 2, 4, 8)
        Two or more numbers of workers.
    simulated : bool, default True
        Also simulate real and paced runs on the same platform: real ones on this machine as
        ``dlpar doctor --calibrate`` has measured it, if it has.
    predicted : bool, default True
        Also draw the prediction of :func:`dlpar.theory.predict`.
    jobs : int, default 2
        Simulations that run at the same time.

    Raises
    ------
    BadExperiment
        If one of them is impossible; then none is run.
    JobFailed
        If a run fails; the others are run first.
    """
    experiments = [experiments] if isinstance(experiments, Experiment) else list(experiments)
    if not experiments:
        raise ValueError("experiments: got none, allowed is one or more")
    counts = sorted(set(workers))
    if len(counts) < 2:
        raise ValueError(f"workers: got {list(workers)}, allowed are two numbers or more")
    wanted = [experiment.replace(workers=n) for experiment in experiments for n in counts]
    names = curve_names(wanted)
    twins = [(found, name) for e, name in zip(wanted, names) if (found := twin(e))] if simulated else []
    everything = [*wanted, *(experiment for experiment, _ in twins)]
    check(everything)
    outcomes = all_done(everything, jobs, _progress(len(everything)))
    own, beside = outcomes[: len(wanted)], outcomes[len(wanted) :]
    return draw(
        [*curves(own, names, predicted), *curves(beside, [name for _, name in twins], predicted=False)]
    )


def twin(experiment: Experiment) -> Experiment | None:
    """The same experiment simulated on the same platform; None if impossible, or if it is simulated already."""
    cluster = experiment.cluster
    if cluster.world == "simulated":
        return None
    platform = cluster.platform or ("here" if cluster.world == "real" else None)
    changes = {
        "world": "simulated",
        "platform": platform,
        "device": "auto",
        "carrier": "auto",
        "hostfile": None,
    }
    try:
        found = experiment.replace(cluster=changes)
        check_machine(found)
    except BadExperiment:
        return None
    return found


def _progress(total: int) -> Callable[[Outcome], None] | None:
    """Show a bar under a running cell, and return what moves it on; None outside a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import ProgressBar

    bar = ProgressBar(total)
    bar.display()
    return lambda _outcome: next(bar, None)


class Point(NamedTuple):
    """Result for one number of workers."""

    workers: int
    rate: float
    """Samples/s."""
    step_ms: float
    speedup: float
    efficiency: float


class Curve(NamedTuple):
    """Scaling of one scheme, from one source.

    Attributes
    ----------
    name : str
        Name that differs from those of other curves.
    kind : str
        Source, one of `theme.ORDER`.
    scheme : str
        Scheme; gives the colour.
    task : str
        Curves of one task have a common base, so they can cross.
    base : int
        Number of workers whose speed-up is 1.
    points : list of Point
        Points in the order of workers.
    """

    name: str
    kind: str
    scheme: str
    task: str
    base: int
    points: list[Point]

    @property
    def rates(self) -> dict[int, float]:
        """Samples/s by the number of workers."""
        return {point.workers: point.rate for point in self.points}


def curves(
    outcomes: Sequence[Outcome], names: Sequence[str] | None = None, predicted: bool = True
) -> list[Curve]:
    """A curve for each name and world and, with `predicted`, one beside it from the closed form.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Outcomes; those that are not done are left out.
    names : sequence of str, optional
        Name of the curve of each outcome; default: the settings in which it differs from the others.
    predicted : bool, default True
        Add curves of the closed form.
    """
    names = names or curve_names([outcome.experiment for outcome in outcomes])
    done = [(outcome, name) for outcome, name in zip(outcomes, names) if outcome.samples_per_s]
    experiments, names = [o.experiment for o, _ in done], [name for _, name in done]
    found = _curves(experiments, names, [o.samples_per_s for o, _ in done], None)
    rates = [outcome.predicted_samples_per_s for outcome, _ in done] if predicted else []
    return found + (_curves(experiments, names, rates, "predicted") if predicted else [])


def curve_names(experiments: Sequence[Experiment]) -> list[str]:
    """Name of each experiment's curve: settings that differ, apart from the number of workers and the world."""
    clusters = [e.cluster.model_copy(update={"world": "real", "messages": "values"}) for e in experiments]
    alike = [e.model_copy(update={"workers": 1, "cluster": c}) for e, c in zip(experiments, clusters)]
    kinds = {e.model_dump_json(): e for e in alike}
    names = labels(list(kinds.values())) if len(kinds) > 1 else [scheme(e) for e in kinds.values()]
    by_kind = dict(zip(kinds, names))
    return [by_kind[e.model_dump_json()] for e in alike]


def _curves(
    experiments: Sequence[Experiment], names: Sequence[str], rates: Sequence[float | None], kind: str | None
) -> list[Curve]:
    found: dict[tuple[str, str], Curve] = {}
    for e, name, rate, gain in zip(experiments, names, rates, gains(experiments, rates)):
        if gain is None:
            continue
        of = kind or theme.HOW[e.cluster.world]
        curve = found.setdefault((name, of), Curve(name, of, e.sync.scheme, task(e), gain.base, []))
        if kind and e.workers in curve.rates:
            continue  # a run and its simulation have the same prediction
        step_ms = 1e3 * e.global_batch / rate
        curve.points.append(Point(e.workers, rate, step_ms, gain.speedup, gain.efficiency))
    return [curve._replace(points=sorted(curve.points)) for curve in found.values()]


def draw(drawn: Sequence[Curve]) -> Figure:
    """Draw speed-up and efficiency over workers, and mark where two schemes are equally fast.

    Solid lines are measured (or paced), broad and faint ones simulated, dashed ones predicted, dotted ones ideal.

    Parameters
    ----------
    drawn : sequence of Curve
        Result of :func:`curves`.

    Raises
    ------
    ValueError
        If no curve has two numbers of workers.
    """
    drawn = [curve for curve in drawn if len(curve.points) > 1]
    if not drawn:
        raise ValueError("outcomes: got no two numbers of workers of one kind, allowed are two or more")
    workers = sorted({point.workers for curve in drawn for point in curve.points})
    figure, right = blank(_layout(drawn, workers), 470), {"xaxis": "x2", "yaxis": "y2", "showlegend": False}
    base = min(curve.base for curve in drawn)
    ideal = {"mode": "lines", "line": theme.IDEAL, "name": "ideal"}
    figure.add_scatter(x=workers, y=[n / base for n in workers], **ideal, legendrank=1003)
    figure.add_scatter(x=workers, y=[1.0] * len(workers), **ideal, **right)
    numbers = {name: n for n, name in enumerate(dict.fromkeys(curve.name for curve in drawn))}
    alone = len(numbers) == 1
    for curve in sorted(drawn, key=lambda c: ("simulated", "paced", "measured", "predicted").index(c.kind)):
        style = _style(curve, numbers[curve.name])
        across = [point.workers for point in curve.points]
        figure.add_scatter(x=across, y=[p.speedup for p in curve.points], **style, showlegend=alone)
        figure.add_scatter(x=across, y=[p.efficiency for p in curve.points], **style, **right)
    if not alone:
        _add_legend(figure, drawn, numbers)
    kind = min((curve.kind for curve in drawn), key=theme.ORDER.index)
    own = [curve for curve in drawn if curve.kind == kind]
    last = {curve.name: (curve.points[-1].workers, *curve.points[-1][3:]) for curve in own}
    gained = captions.scaling(kind, last, min(curve.base for curve in own))
    rates = {
        k: {(c.name, n): r for c in drawn if c.kind == k for n, r in c.rates.items()} for k in theme.ORDER
    }
    sentences = [gained, *_mark_crossings(figure, drawn), *captions.errors(rates)]
    return captioned(figure, " ".join(sentences), _table(drawn), open=True)


def _style(curve: Curve, number: int) -> dict[str, Any]:
    colour, name = theme.scheme_colour(curve.scheme), f"{curve.name}, {curve.kind}"
    line, marker = theme.line_by_source(colour, curve.kind), theme.mark(colour, number)
    if curve.kind == "predicted":  # a large open marker around the predicted point
        line["width"], marker = 1.5, {"color": colour, "symbol": f"{marker['symbol']}-open", "size": 17}
    return {"name": name, "legendgroup": name, "mode": "lines+markers", "line": line, "marker": marker}


def _add_legend(figure: Figure, drawn: Sequence[Curve], numbers: dict[str, int]) -> None:
    """Add a short legend: one entry for each scheme, one for each source."""
    nowhere = {"x": [None], "y": [None]}
    for name, number in numbers.items():
        kind = next(curve.scheme for curve in drawn if curve.name == name)
        marker = theme.mark(theme.scheme_colour(kind), number)
        figure.add_scatter(**nowhere, name=name, mode="markers", marker=marker, legendrank=1000)
    for kind in theme.ORDER:
        if any(curve.kind == kind for curve in drawn):
            line = _style(Curve("", kind, "", "", 1, []), 0)["line"]
            figure.add_scatter(**nowhere, name=kind, mode="lines", line=line, legendrank=1001)


def _layout(drawn: Sequence[Curve], workers: Sequence[int]) -> dict[str, Any]:
    ends = [math.log10(workers[0]) - 0.06, math.log10(workers[-1]) + 0.06]
    across = {"type": "log", "range": ends, **_ticks(workers)}
    base = min(curve.base for curve in drawn)
    ups = [point.speedup for curve in drawn for point in curve.points] + [n / base for n in workers]
    powers = range(math.floor(math.log2(min(ups)) + 1e-9), math.ceil(math.log2(max(ups)) - 1e-9) + 1)
    up = {"type": "log", "range": [0.301 * powers[0] - 0.04, 0.301 * powers[-1] + 0.06]}
    most = max(point.efficiency for curve in drawn for point in curve.points)
    over = "1 worker" if base == 1 else f"{base} workers"
    share = {"anchor": "x2", "tickformat": ".0%"}
    return theme.layout(
        xaxis=theme.axis("workers", domain=[0, 0.44], **across),
        yaxis=theme.axis(f"speed-up over {over} (times)", **up, **_ticks([2.0**p for p in powers])),
        xaxis2=theme.axis("workers", domain=[0.57, 1], anchor="y2", **across),
        yaxis2=theme.axis("efficiency (share of ideal)", (0, 1.05 * max(1.0, most)), **share),
    )


def _ticks(values: Sequence[float]) -> dict[str, Any]:
    """plotly's ticks at some of `values`, few enough to be read."""
    shown = values[:: -(-len(values) // TICKS)]
    texts = [f"{n:,.0f}" if n >= 1 else f"1/{1 / n:,.0f}" for n in shown]
    return {"tickvals": list(shown), "ticktext": texts}


def _mark_crossings(figure: Figure, drawn: Sequence[Curve]) -> list[str]:
    """Mark the crossings of two curves from the source that counts most; returns sentences about the pairs."""
    sentences, throughout = [], defaultdict(list)
    for first, second in _pairs(drawn):
        at, common = crossings(first.rates, second.rates), sorted(first.rates.keys() & second.rates.keys())
        faster, slower = sorted((first, second), key=lambda curve: -curve.rates[common[-1]])
        if not at:
            throughout[faster.name].append(slower.name)
            continue
        sentences.append(captions.crossing(first.name, second.name, at, common, faster.name))
        marker = {"symbol": "x-thin", "size": 14, "line": {"width": 3, "color": theme.GREY}}
        cross = {"mode": "markers", "marker": marker, "showlegend": False}
        heights = [_between(first, n) for n in at]
        figure.add_scatter(x=at, y=heights, name=f"{first.name} = {second.name}", **cross)
    return sentences + [captions.faster_throughout(name, slower) for name, slower in throughout.items()]


def _pairs(drawn: Sequence[Curve]) -> list[tuple[Curve, Curve]]:
    """Pairs of curves of one task and different schemes, from the source that counts most."""
    for kind in theme.ORDER:
        own = [curve for curve in drawn if curve.kind == kind]
        found = [
            (a, b)
            for a, b in combinations(own, 2)
            if a.task == b.task and a.scheme != b.scheme and len(a.rates.keys() & b.rates.keys()) > 1
        ]
        if found:
            return found
    return []


def _between(curve: Curve, workers: float) -> float:
    """Speed-up of a curve at any number of workers, interpolated along the line that is drawn."""
    for left, right in zip(curve.points, curve.points[1:]):
        if left.workers <= workers <= right.workers:
            share = math.log(workers / left.workers) / math.log(right.workers / left.workers)
            return left.speedup ** (1 - share) * right.speedup**share
    return curve.points[-1].speedup


def _table(drawn: Sequence[Curve]) -> dict[str, list]:
    rows = [(curve, point) for curve in drawn for point in curve.points]
    return {
        "scheme": [curve.name for curve, _ in rows],
        "how": [curve.kind for curve, _ in rows],
        "workers": [point.workers for _, point in rows],
        "samples/s": [point.rate for _, point in rows],
        "step (ms)": [point.step_ms for _, point in rows],
        "speed-up": [point.speedup for _, point in rows],
        "efficiency": [point.efficiency for _, point in rows],
    }


def sweep(outcomes: Sequence[Outcome]) -> Figure:
    """Draw the scaling of outcomes or, if the number of workers does not vary, their throughput.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Outcomes of finished runs, one or more.
    """
    drawn = curves(outcomes)
    return draw(drawn) if any(len(curve.points) > 1 for curve in drawn) else throughputs(outcomes)


def throughputs(outcomes: Sequence[Outcome]) -> Figure:
    """Draw the throughput of each experiment as a bar, faint if simulated; a diamond is the closed form."""
    experiments = [outcome.experiment for outcome in outcomes]
    names = labels(experiments) if len(outcomes) > 1 else [scheme(experiments[0])]
    rates, places = [outcome.samples_per_s for outcome in outcomes], list(range(len(outcomes)))
    predicted, how = (
        [o.predicted_samples_per_s for o in outcomes],
        [theme.HOW[e.cluster.world] for e in experiments],
    )
    xaxis = theme.axis(
        "throughput (samples/s)", (0, theme.rounded_up(max(*rates, *filter(None, predicted), 0.0)))
    )
    layout = theme.layout(xaxis=xaxis, yaxis=theme.rows(names, automargin=True), bargap=0.35)
    figure = blank(layout, max(260, 34 * len(outcomes) + 140))
    for kind in dict.fromkeys(how):
        own = [n for n in places if how[n] == kind]
        colours = [theme.scheme_colour(experiments[n].sync.scheme) for n in own]
        opacity = theme.FAINT if kind == "simulated" else 1.0
        looks = {"orientation": "h", "name": kind, "marker": {"color": colours}, "opacity": opacity}
        figure.add_bar(y=own, x=[rates[n] for n in own], **looks)
    known = [n for n in places if predicted[n]]
    if known:
        marker = {"symbol": "diamond-open", "size": 11, "color": theme.GREY, "line": {"width": 2}}
        looks = {"mode": "markers", "name": "predicted", "marker": marker}
        figure.add_scatter(y=known, x=[predicted[n] for n in known], **looks)
    fastest, slowest = (f(places, key=rates.__getitem__) for f in (max, min))
    sentence = f"{names[fastest]} is the fastest with {captions.quantity(rates[fastest])} samples/s"
    ratio = rates[fastest] / rates[slowest]
    sentence += f", {ratio:.2f} times as fast as {names[slowest]}" if len(outcomes) > 1 else ""
    table = {"experiment": names, "how": how, "samples/s": rates, "predicted samples/s": predicted}
    return captioned(figure, f"{sentence}.", table, open=True)
