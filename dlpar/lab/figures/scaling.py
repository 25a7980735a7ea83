"""Static figure of scaling: speed-up and efficiency over workers, measured, simulated and predicted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.figure import Figure, blank, saying
from dlpar.lab.labels import labels, scheme
from dlpar.lab.sweep import Outcome
from dlpar.theory.scaling import crossings, gains, task

TICKS = 8
"""Most numbers on an axis."""


class Point(NamedTuple):
    """One number of workers."""

    workers: int
    rate: float
    """Samples/s."""
    step_ms: float
    speedup: float
    efficiency: float


class Curve(NamedTuple):
    """How one scheme scales, found in one way.

    Attributes
    ----------
    name : str
        What tells it from the others.
    kind : str
        One of `theme.ORDER`.
    scheme : str
        Gives the colour.
    task : str
        Curves of one task have a common base, so they can cross.
    base : int
        Workers whose speed-up is 1.
    points : list of Point
        By workers.
    """

    name: str
    kind: str
    scheme: str
    task: str
    base: int
    points: list[Point]

    @property
    def rates(self) -> dict[int, float]:
        """Workers -> samples/s."""
        return {point.workers: point.rate for point in self.points}


def curves(
    outcomes: Sequence[Outcome], names: Sequence[str] | None = None, predicted: bool = True
) -> list[Curve]:
    """A curve for each name and world, and with `predicted` one beside it from the closed form.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Those that are not done are left out.
    names : sequence of str, optional
        What the curve of each outcome is called; default: what tells it from the others.
    predicted : bool
    """
    names = names or curve_names([outcome.experiment for outcome in outcomes])
    done = [(outcome, name) for outcome, name in zip(outcomes, names) if outcome.samples_per_s]
    experiments, names = [o.experiment for o, _ in done], [name for _, name in done]
    found = _curves(experiments, names, [o.samples_per_s for o, _ in done], None)
    rates = [outcome.predicted_samples_per_s for outcome, _ in done] if predicted else []
    return found + (_curves(experiments, names, rates, "predicted") if predicted else [])


def curve_names(experiments: Sequence[Experiment]) -> list[str]:
    """What tells the curve of each experiment from others: neither its workers nor its world do."""
    clusters = [e.cluster.model_copy(update=_NO_WORLD) for e in experiments]
    alike = [
        e.model_copy(update={"workers": 1, "cluster": cluster}) for e, cluster in zip(experiments, clusters)
    ]
    kinds = {e.model_dump_json(): e for e in alike}
    told = labels(list(kinds.values())) if len(kinds) > 1 else [scheme(e) for e in kinds.values()]
    by_kind = dict(zip(kinds, told))
    return [by_kind[e.model_dump_json()] for e in alike]


_NO_WORLD = {"world": "real", "messages": "values"}


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
            continue  # of a run and its simulation the prediction is the same
        curve.points.append(
            Point(e.workers, rate, 1e3 * e.global_batch / rate, gain.speedup, gain.efficiency)
        )
    return [curve._replace(points=sorted(curve.points)) for curve in found.values()]


def scaling(drawn: Sequence[Curve]) -> Figure:
    """Speed-up and efficiency over workers; where two schemes are equally fast is marked.

    Solid is measured (or paced), broad and faint simulated, dashed predicted, dotted ideal.

    Parameters
    ----------
    drawn : sequence of Curve
        From :func:`curves`.

    Raises
    ------
    ValueError
        If no curve has two numbers of workers.
    """
    drawn = [curve for curve in drawn if len(curve.points) > 1]
    if not drawn:
        raise ValueError("outcomes: got no two numbers of workers of one kind, allowed are two or more")
    workers = sorted({point.workers for curve in drawn for point in curve.points})
    figure = blank(_layout(drawn, workers), 470)
    base = min(curve.base for curve in drawn)
    ideal = {"mode": "lines", "line": theme.IDEAL, "name": "ideal"}
    figure.add_scatter(x=workers, y=[n / base for n in workers], **ideal, legendrank=1003)
    figure.add_scatter(x=workers, y=[1.0] * len(workers), xaxis="x2", yaxis="y2", showlegend=False, **ideal)
    numbers = {name: n for n, name in enumerate(dict.fromkeys(curve.name for curve in drawn))}
    alone = len(numbers) == 1
    for curve in sorted(drawn, key=lambda c: ("simulated", "paced", "measured", "predicted").index(c.kind)):
        style = _style(curve, numbers[curve.name])
        across = [point.workers for point in curve.points]
        figure.add_scatter(x=across, y=[p.speedup for p in curve.points], **style, showlegend=alone)
        figure.add_scatter(
            x=across,
            y=[p.efficiency for p in curve.points],
            xaxis="x2",
            yaxis="y2",
            showlegend=False,
            **style,
        )
    if not alone:
        _name(figure, drawn, numbers)
    said = _mark_crossings(figure, drawn)
    saying(figure, " ".join([*_gained(drawn), *said, *_off(drawn)]))
    figure.layout.meta = {**figure.layout.meta, "table": _table(drawn), "open": True}
    return figure


def _style(curve: Curve, number: int) -> dict[str, Any]:
    colour, name = theme.scheme_colour(curve.scheme), f"{curve.name}, {curve.kind}"
    line, marker = {"width": 2.5, "color": colour}, theme.mark(colour, number)
    if curve.kind == "predicted":
        line = {**line, "width": 1.5, **theme.PREDICTED}
        marker = {
            "color": colour,
            "symbol": f"{marker['symbol']}-open",
            "size": 17,
        }  # around what it foretells
    if curve.kind == "simulated":  # the points stand out: only the line between them is faint
        line = {"width": theme.BROAD, "color": theme.faint(colour)}
    return {"name": name, "legendgroup": name, "mode": "lines+markers", "line": line, "marker": marker}


def _name(figure: Figure, drawn: Sequence[Curve], numbers: dict[str, int]) -> None:
    """Entries of a legend that stays short: one for each scheme, one for each way in which its curves were found."""
    for name, number in numbers.items():
        scheme_of = next(curve.scheme for curve in drawn if curve.name == name)
        marker = theme.mark(theme.scheme_colour(scheme_of), number)
        figure.add_scatter(x=[None], y=[None], name=name, mode="markers", marker=marker, legendrank=1000)
    for kind in theme.ORDER:
        if any(curve.kind == kind for curve in drawn):
            style = _style(Curve("", kind, "", "", 1, []), 0)
            figure.add_scatter(
                x=[None], y=[None], name=kind, mode="lines", line=style["line"], legendrank=1001
            )


def _layout(drawn: Sequence[Curve], workers: Sequence[int]) -> dict[str, Any]:
    ends = [math.log10(workers[0]) - 0.06, math.log10(workers[-1]) + 0.06]
    across = {"type": "log", "range": ends, **_ticks(workers)}
    base = min(curve.base for curve in drawn)
    ups = [point.speedup for curve in drawn for point in curve.points] + [n / base for n in workers]
    powers = range(math.floor(math.log2(min(ups)) + 1e-9), math.ceil(math.log2(max(ups)) - 1e-9) + 1)
    ends = [0.301 * powers[0] - 0.04, 0.301 * powers[-1] + 0.06]
    most = max(point.efficiency for curve in drawn for point in curve.points)
    over = "1 worker" if base == 1 else f"{base} workers"
    return theme.layout(
        xaxis=theme.axis("workers", domain=[0, 0.44], **across),
        yaxis=theme.axis(
            f"speed-up over {over} (times)", type="log", range=ends, **_ticks([2.0**p for p in powers])
        ),
        xaxis2=theme.axis("workers", domain=[0.57, 1], anchor="y2", **across),
        yaxis2=theme.axis(
            "efficiency (share of ideal)", (0, 1.05 * max(1.0, most)), anchor="x2", tickformat=".0%"
        ),
    )


def _ticks(values: Sequence[float]) -> dict[str, Any]:
    """Few enough of `values` to be read, as plotly's ticks."""
    shown = values[:: -(-len(values) // TICKS)]
    return {
        "tickvals": list(shown),
        "ticktext": [f"{n:,.0f}" if n >= 1 else f"1/{1 / n:,.0f}" for n in shown],
    }


def _mark_crossings(figure: Figure, drawn: Sequence[Curve]) -> list[str]:
    """A mark where two curves of the weightiest kind cross; sentences about the pairs."""
    said, throughout = [], defaultdict(list)
    for first, second in _pairs(drawn):
        at, common = crossings(first.rates, second.rates), sorted(first.rates.keys() & second.rates.keys())
        faster, slower = sorted((first, second), key=lambda curve: -curve.rates[common[-1]])
        if not at:
            throughout[faster.name].append(slower.name)
        else:
            said.append(says.crossing(first.name, second.name, at, common, faster.name))
            marker = {"symbol": "x-thin", "size": 14, "line": {"width": 3, "color": "#7f7f7f"}}
            figure.add_scatter(
                x=at,
                y=[_between(first, n) for n in at],
                mode="markers",
                marker=marker,
                name=f"{first.name} = {second.name}",
                showlegend=False,
            )
    return said + [says.faster_throughout(name, slower) for name, slower in throughout.items()]


def _pairs(drawn: Sequence[Curve]) -> list[tuple[Curve, Curve]]:
    """Curves of one task and different schemes, of the weightiest kind that has any."""
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
    """Speed-up of a curve at a number of workers that it may not have, on the line drawn."""
    for left, right in zip(curve.points, curve.points[1:]):
        if left.workers <= workers <= right.workers:
            share = math.log(workers / left.workers) / math.log(right.workers / left.workers)
            return left.speedup ** (1 - share) * right.speedup**share
    return curve.points[-1].speedup


def _gained(drawn: Sequence[Curve]) -> list[str]:
    kind = min((curve.kind for curve in drawn), key=theme.ORDER.index)
    own = [curve for curve in drawn if curve.kind == kind]
    last = {curve.name: (curve.points[-1].workers, *curve.points[-1][3:]) for curve in own}
    return [says.scaling(kind, last, min(curve.base for curve in own))]


def _off(drawn: Sequence[Curve]) -> list[str]:
    """How far the lesser kinds are from the weightiest, in samples/s."""
    weight = min((curve.kind for curve in drawn), key=theme.ORDER.index)
    rates = {
        k: {(c.name, n): r for c in drawn if c.kind == k for n, r in c.rates.items()} for k in theme.ORDER
    }
    said = []
    for kind, noun in (("simulated", "simulation"), ("predicted", "prediction")):
        known = rates[weight].keys() & rates[kind].keys() if kind != weight else ()
        apart = [abs(rates[kind][key] / rates[weight][key] - 1) for key in known]
        said += [says.off(noun, max(apart))] if apart else []
    return said


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
    """The figure that fits what varies.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Done, one or more.
    """
    drawn = curves(outcomes)
    return scaling(drawn) if any(len(curve.points) > 1 for curve in drawn) else rates(outcomes)


def rates(outcomes: Sequence[Outcome]) -> Figure:
    """Samples a second of each experiment as a bar, faint where simulated; a diamond where the closed form puts it."""
    experiments = [outcome.experiment for outcome in outcomes]
    names = labels(experiments) if len(outcomes) > 1 else [scheme(experiments[0])]
    places = list(range(len(outcomes)))
    most = max(max(o.samples_per_s, o.predicted_samples_per_s or 0.0) for o in outcomes)
    rows = theme.axis(
        "", (len(outcomes) - 0.5, -0.5), tickvals=places, ticktext=names, showgrid=False, automargin=True
    )
    xaxis = theme.axis("throughput (samples/s)", (0, theme.rounded_up(most)))
    figure = blank(theme.layout(xaxis=xaxis, yaxis=rows, bargap=0.35), max(260, 34 * len(outcomes) + 140))
    for kind in dict.fromkeys(theme.HOW[e.cluster.world] for e in experiments):
        own = [n for n in places if theme.HOW[experiments[n].cluster.world] == kind]
        colours = [theme.scheme_colour(experiments[n].sync.scheme) for n in own]
        figure.add_bar(
            y=own,
            x=[outcomes[n].samples_per_s for n in own],
            orientation="h",
            name=kind,
            marker={"color": colours},
            opacity=theme.FAINT if kind == "simulated" else 1.0,
        )
    known = [n for n in places if outcomes[n].predicted_samples_per_s]
    if known:
        marker = {"symbol": "diamond-open", "size": 11, "color": "#7f7f7f", "line": {"width": 2}}
        figure.add_scatter(
            y=known,
            x=[outcomes[n].predicted_samples_per_s for n in known],
            mode="markers",
            name="predicted",
            marker=marker,
        )
    fastest, slowest = (f(places, key=lambda n: outcomes[n].samples_per_s) for f in (max, min))
    ratio = outcomes[fastest].samples_per_s / outcomes[slowest].samples_per_s
    said = f"{names[fastest]} is the fastest with {says.quantity(outcomes[fastest].samples_per_s)} samples/s"
    said += f", {ratio:.2f} times as fast as {names[slowest]}" if len(outcomes) > 1 else ""
    saying(figure, f"{said}.")
    table = {
        "experiment": names,
        "how": [theme.HOW[e.cluster.world] for e in experiments],
        "samples/s": [o.samples_per_s for o in outcomes],
        "predicted samples/s": [o.predicted_samples_per_s for o in outcomes],
    }
    figure.layout.meta = {**figure.layout.meta, "table": table, "open": True}
    return figure
