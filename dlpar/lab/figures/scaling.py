"""Figures of scaling: run experiments with more workers, and draw their speed-up and efficiency."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, cycle
from typing import Any, NamedTuple

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.launch import check_machine
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, Names, blank, captioned, finished, listed, require
from dlpar.lab.labels import labels, scheme
from dlpar.lab.sweep import Outcome, all_done
from dlpar.theory.scaling import crossings, gains, task


def scaling(
    experiments: Experiment | Sequence[Experiment],
    workers: Sequence[int] = (1, 2, 4, 8),
    simulated: bool = True,
    predicted: bool = True,
    jobs: int = 2,
) -> Figure:
    """Run experiments with several numbers of workers, and draw their speed-up and efficiency.

    The function returns when all runs are done. A table of runs is under the figure, and in ``figures.table``.

    Parameters
    ----------
    experiments : Experiment or sequence of Experiment
        Experiments, which run in their own worlds. Several experiments differ in synchronisation.
    workers : sequence of int, default (1, 2, 4, 8)
        Two or more numbers of workers.
    simulated : bool, default True
        Also simulate real and paced runs on the same platform. The platform of real runs is this machine,
        if ``dlpar doctor --calibrate`` has measured it.
    predicted : bool, default True
        Also draw the prediction of :func:`dlpar.theory.predict`.
    jobs : int, default 2
        Number of simultaneous simulations.

    Raises
    ------
    BadExperiment
        If an experiment is impossible. No experiment is run then.
    JobFailed
        If a run fails. The others are run first.
    """
    experiments = listed(experiments, Experiment, "experiments")
    require(len(set(workers)) > 1, f"workers: got {list(workers)}, allowed are two numbers or more")
    wanted = [experiment.replace(workers=n) for experiment in experiments for n in sorted(set(workers))]
    names = curve_names(wanted)
    twins = [(found, name) for e, name in zip(wanted, names) if (found := twin(e))] if simulated else []
    everything = [*wanted, *(experiment for experiment, _ in twins)]
    for experiment in everything:
        check_machine(experiment)
    outcomes = all_done(everything, jobs, _progress(len(everything)))
    drawn = curves(outcomes[: len(wanted)], names, predicted)
    return draw([*drawn, *curves(outcomes[len(wanted) :], [name for _, name in twins], predicted=False)])


def twin(experiment: Experiment) -> Experiment | None:
    """Return the experiment simulated on the same platform.

    Return None if impossible or already simulated.
    """
    world, platform = experiment.cluster.world, experiment.cluster.platform
    if world == "simulated":
        return None
    where = {"world": "simulated", "platform": platform or ("here" if world == "real" else None)}
    try:
        found = experiment.replace(cluster={**where, "device": "auto", "carrier": "auto", "hostfile": None})
        check_machine(found)
    except BadExperiment:
        return None
    return found


def _progress(total: int) -> Callable[[Outcome], None] | None:
    """Show a bar under a running cell, and return a function that advances it.

    Return None outside a notebook.
    """
    from dlpar.lab.page import kernel  # here: it loads widgets, which a command line does not need

    if kernel() is None:
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
    """Scaling of one experiment, measured or predicted by one source.

    Attributes
    ----------
    name : str
        Name, different from other curves' names; empty if there is no other curve.
    kind : str
        Source, one of `theme.ORDER`.
    experiment : Experiment
        One of its experiments.
    base : int
        Number of workers with speed-up 1.
    points : list of Point
        Points in the order of workers.
    """

    name: str
    kind: str
    experiment: Experiment
    base: int
    points: list[Point]

    @property
    def rates(self) -> dict[int, float]:
        """Return samples/s for each number of workers."""
        return {point.workers: point.rate for point in self.points}


def curves(outcomes: Sequence[Outcome], names: Names = None, predicted: bool = True) -> list[Curve]:
    """Return a curve for each name and world. With `predicted`, add a curve of the closed form.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Outcomes. Unfinished ones are left out.
    names : sequence of str, optional
        Name of each outcome's curve; default: the settings in which the experiment differs from the others.
    predicted : bool, default True
        Add curves of the closed form.
    """
    names = names or curve_names([outcome.experiment for outcome in outcomes])
    done = [(outcome, name) for outcome, name in zip(outcomes, names) if outcome.samples_per_s]
    experiments, names = [o.experiment for o, _ in done], [name for _, name in done]
    sources: list[tuple[str | None, list[float | None]]] = [(None, [o.samples_per_s for o, _ in done])]
    if predicted:
        sources.append(("predicted", [o.predicted_samples_per_s for o, _ in done]))
    found: dict[tuple[str, str], Curve] = {}
    for source, rates in sources:
        # The base is the fastest scheme, although it may have no prediction.
        whole = [rate or outcome.samples_per_s for rate, (outcome, _) in zip(rates, done)]
        for e, name, rate, gain in zip(experiments, names, rates, gains(experiments, whole)):
            kind = source or theme.HOW[e.cluster.world]
            if gain is None or rate is None:
                continue
            curve = found.setdefault((name, kind), Curve(name, kind, e, gain.base, []))
            if not source or e.workers not in curve.rates:  # a run and its simulation share a prediction
                step_ms = 1e3 * e.mean_batch / rate
                curve.points.append(Point(e.workers, rate, step_ms, gain.speedup, gain.efficiency))
    return [curve._replace(points=sorted(curve.points)) for curve in found.values()]


def curve_names(experiments: Sequence[Experiment]) -> list[str]:
    """Return each curve's name: the differing settings other than the number of workers and the world."""
    clusters = [e.cluster.model_copy(update={"world": "real", "messages": "values"}) for e in experiments]
    alike = [e.model_copy(update={"workers": 1, "cluster": c}) for e, c in zip(experiments, clusters)]
    kinds = {e.model_dump_json(): e for e in alike}
    names = labels(list(kinds.values())) if len(kinds) > 1 else [scheme(e) for e in kinds.values()]
    by_kind = dict(zip(kinds, names))
    return [by_kind[e.model_dump_json()] for e in alike]


def speedup(runs: Sequence[Run], predicted: Mapping[int, float] | None = None) -> Figure:
    """Draw the speed-up and efficiency of more workers. Runs may differ in steps or batch.

    Parameters
    ----------
    runs : sequence of Run
        Runs with at least two numbers of workers, in one world. Runs with equal numbers are averaged.
    predicted : mapping of int to float, optional
        Predicted speed-up by the number of workers, drawn as a dashed line.
    """
    rates, batches = defaultdict[int, list[float]](list), dict[int, float]()
    require(len({run.world for run in listed(runs)}) == 1, "runs: got several worlds, allowed is one")
    for run in finished(runs):
        rates[run.experiment.workers].append(run.summary["samples_per_s"])
        batches[run.experiment.workers] = run.experiment.mean_batch
    got = f"got runs of {captions.listed(map(str, rates))} workers only"
    require(len(rates) > 1, f"runs: {got}, allowed are two or more numbers of workers")
    experiment, base = runs[0].experiment, min(rates)
    alone = float(np.mean(rates[base]))

    def curve(kind: str, gained: Mapping[int, float]) -> Curve:
        batch = {n: experiment.replace(workers=n).mean_batch for n in gained} | batches
        rows = [(n, gain, gain * alone) for n, gain in sorted(gained.items())]
        points = [Point(n, rate, 1e3 * batch[n] / rate, gain, gain * base / n) for n, gain, rate in rows]
        return Curve("", kind, experiment, base, points)

    found = {n: float(np.mean(own)) / alone for n, own in rates.items()}
    both = [curve(theme.HOW[experiment.cluster.world], found)]
    return draw([*both, curve("predicted", {base: 1.0, **predicted})] if predicted else both)


def draw(drawn: Sequence[Curve]) -> Figure:
    """Draw speed-up and efficiency against the number of workers. Mark points at which two schemes are equally fast.

    Solid lines are measured (or paced), broad and faint lines are simulated, dashed lines are predicted, and
    dotted lines are ideal.

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
    require(len(drawn) > 0, "outcomes: got no two numbers of workers of one kind, allowed are two or more")
    workers, base = sorted({p.workers for c in drawn for p in c.points}), min(c.base for c in drawn)
    figure = blank(470, **_layout(drawn, workers, base))
    right = {"xaxis": "x2", "yaxis": "y2", "showlegend": False}
    ideal = {"mode": "lines", "line": theme.IDEAL, "name": "ideal"}
    figure.add_scatter(x=workers, y=[n / base for n in workers], **ideal, legendrank=1003)
    figure.add_scatter(x=workers, y=[1.0] * len(workers), **ideal, **right)
    own = {curve.name: curve.experiment for curve in drawn}
    looks = dict(zip(own, zip(theme.run_colours(list(own.values())), cycle(theme.MARKERS))))
    alone = len(own) == 1
    for curve in sorted(drawn, key=lambda c: theme.DRAWN.index(c.kind)):
        colour, symbol = looks[curve.name]
        name = curve.kind if alone else f"{curve.name}, {curve.kind}"
        look = theme.result(name, colour, curve.kind, symbol, legendgroup=name)
        across, _, _, ups, shares = zip(*curve.points)
        figure.add_scatter(x=across, y=ups, **look, showlegend=alone)
        figure.add_scatter(x=across, y=shares, **look, **right)
    if not alone:  # a short legend: one entry for each curve, one for each source
        entries = [(theme.result(name, c, "measured", s), "markers") for name, (c, s) in looks.items()]
        kinds = [kind for kind in theme.ORDER if any(curve.kind == kind for curve in drawn)]
        entries += [(theme.result(kind, theme.GREY, kind), "lines") for kind in kinds]
        for look, mode in entries:
            figure.add_scatter(x=[None], y=[None], **{**look, "mode": mode})
    kind = min((curve.kind for curve in drawn), key=theme.ORDER.index)
    last = {c.name: (c.points[-1].workers, *c.points[-1][3:]) for c in drawn if c.kind == kind}
    rates: dict[str, dict[tuple, float]] = {kind: {} for kind in theme.ORDER}
    for curve in drawn:
        rates[curve.kind] |= {(curve.name, n): rate for n, rate in curve.rates.items()}
    sentences = [captions.scaling(kind, last, base), *_mark_crossings(figure, drawn), *captions.errors(rates)]
    heads = ("scheme", "how", "workers", "samples/s", "step (ms)", "speed-up", "efficiency")
    rows = [(curve.name, curve.kind, *point) for curve in drawn for point in curve.points]
    return captioned(figure, " ".join(sentences), (heads, rows), open=True)


def _layout(drawn: Sequence[Curve], workers: Sequence[int], base: int) -> dict[str, Any]:
    ups = [point.speedup for curve in drawn for point in curve.points] + [n / base for n in workers]
    powers = range(math.floor(math.log2(min(ups)) + 1e-9), math.ceil(math.log2(max(ups)) - 1e-9) + 1)
    top = 1.05 * max(1.0, *(point.efficiency for curve in drawn for point in curve.points))
    title = f"speed-up over {base} worker{'s' * (base > 1)} (times)"
    times = lambda n: f"{n:,.0f}" if n >= 1 else f"1/{1 / n:,.0f}"
    up = theme.log_axis(title, [2.0**power for power in powers], times)
    share = theme.axis("efficiency (share of ideal)", (0, top), anchor="x2", tickformat=".0%")
    across, right = (theme.log_axis("workers", workers, domain=domain) for domain in ([0, 0.44], [0.57, 1]))
    return {"xaxis": across, "yaxis": up, "xaxis2": right | {"anchor": "y2"}, "yaxis2": share}


def _mark_crossings(figure: Figure, drawn: Sequence[Curve]) -> list[str]:
    """Mark the crossings of two curves from the most trusted source. Return sentences about the pairs."""
    sentences, throughout = [], defaultdict(list)
    for first, second in _pairs(drawn):
        at, common = crossings(first.rates, second.rates), sorted(first.rates.keys() & second.rates.keys())
        faster, slower = sorted((first, second), key=lambda curve: -curve.rates[common[-1]])
        if not at:
            throughout[faster.name].append(slower.name)
            continue
        sentences.append(captions.crossing(first.name, second.name, at, common, faster.name))
        workers, _, _, ups, _ = zip(*first.points)
        heights = np.exp(np.interp(np.log(at), np.log(workers), np.log(ups)))  # along the drawn line
        look = {"hovertext": f"{first.name} = {second.name}", **theme.LOOKS["crossing"]}
        figure.add_scatter(x=at, y=heights.tolist(), **look, showlegend=len(sentences) == 1)
    return sentences + [captions.faster_throughout(name, slower) for name, slower in throughout.items()]


def _pairs(drawn: Sequence[Curve]) -> list[tuple[Curve, Curve]]:
    """Return pairs of curves of one task and different schemes.

    The curves come from the most trusted source.
    """
    for kind in theme.ORDER:
        pairs = combinations([curve for curve in drawn if curve.kind == kind], 2)
        found = [(a, b) for a, b in pairs if len(a.rates.keys() & b.rates.keys()) > 1 and _compete(a, b)]
        if found:
            return found
    return []


def _compete(a: Curve, b: Curve) -> bool:
    """Return whether two curves belong to different schemes with a common base."""
    return a.experiment.sync.scheme != b.experiment.sync.scheme and task(a.experiment) == task(b.experiment)
