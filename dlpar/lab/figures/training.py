"""Static figures of training: loss and accuracy, throughput, speed-up, time to an accuracy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned, finished, thinned
from dlpar.lab.labels import labels, scheme, with_world
from dlpar.lab.live import convergence as curves
from dlpar.lab.live.throughput import WINDOW, Rate
from dlpar.lab.live_plot import Series

if TYPE_CHECKING:
    import pandas as pd

    from dlpar.config.experiment import Experiment


X_AXES = {"step": "step", "samples": "samples", "seconds": "seconds", "bytes": "MB sent"}
"""Horizontal axes to choose from, and the column of each."""


def convergence(runs: Run | Sequence[Run], x: str = "step", titles: Sequence[str] | None = None) -> Figure:
    """Draw the training loss of each global step and the held-out accuracy, one curve a run.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of one kind of task.
    x : {"step", "samples", "seconds", "bytes"}, default "step"
        Horizontal axis; "steps" means "step".
    titles : sequence of str, optional
        Name of each run; default: the settings in which it differs from the others.

    Raises
    ------
    ValueError
        If `x` is none of these, a run has no finished step or, for "bytes", no record of the bytes it sent,
        tasks are not of one kind, or titles do not fit to the runs.
    """
    runs, x = _trained(finished(runs, titles)), "step" if x == "steps" else x
    if x not in X_AXES:
        raise ValueError(f"x: got {x!r}, allowed is one of {', '.join(X_AXES)}")
    of_one_kind([run.experiment for run in runs], "runs")
    first, names = runs[0].experiment, titles or labels([run.experiment for run in runs])
    regression = curves.is_regression(first)
    figure = blank(curves.layout(first))
    top = end = 0.0
    for number, (run, label) in enumerate(zip(runs, names)):
        curve = run.curve
        if x == "bytes" and curve["bytes"].isna().all():
            raise ValueError(
                f"run {run.id}: the library moved the data and does not report how much, so x bytes has no "
                f"place for it; allowed is step, samples or seconds"
            )
        curve["bytes"] /= 1e6
        kept, colour = thinned(curve), theme.scheme_colour(run.experiment.sync.scheme)
        style = theme.beside(colour, number, run.world)
        label = with_world(label, run.experiment)
        figure.add_scatter(x=kept[x], y=kept["loss"], name=label, legendgroup=run.id, **style)
        tests, tested = _placed(run.evals, curve), "loss" if regression else "accuracy"
        line = curves.test_line(style, "held-out loss" if regression else "accuracy")
        figure.add_scatter(x=tests[x], y=tests[tested], legendgroup=run.id, **line)
        finite = curve["loss"][np.isfinite(curve["loss"])]
        top, end = max(top, finite.max()), max(end, np.nan_to_num(curve[x].max()))
    figure.layout.yaxis.range = [0, theme.rounded_up(top)]
    figure.update_xaxes(theme.axis(theme.titles({run.world for run in runs})[X_AXES[x]], (0, end or 1)))
    if len(runs) > 1:
        return captioned(figure, _compared(runs, names))
    curve, evals = runs[0].curve, runs[0].evals
    accuracy = None if regression or evals.empty else evals["accuracy"].iloc[-1]
    loss, samples = curve["loss"], curve["samples"].iloc[-1]
    sentence = captions.convergence(first, len(curve), samples, loss.iloc[0], loss.iloc[-1], accuracy)
    return captioned(figure, sentence)


overlay = convergence
"""Several runs in one figure: the name of :func:`convergence` in the labs."""


def of_one_kind(experiments: Sequence[Experiment], name: str) -> None:
    """Raise ValueError, with the argument's name, unless all tasks have the same loss and all or none an accuracy."""
    if len({curves.loss_title(experiment) for experiment in experiments}) > 1:
        raise ValueError(f"{name}: got classification and regression, allowed is one kind of task")


def check_goal(goal: float) -> None:
    """Raise ValueError unless `goal` is an accuracy that a run can reach."""
    if not 0 < goal <= 1:
        raise ValueError(f"goal: got {goal:g}, allowed is a share above 0 and at most 1")


def _trained(runs: list[Run]) -> list[Run]:
    """The runs; raises ValueError if one passed sizes only and so has no loss."""
    for run in runs:
        if run.experiment.cluster.messages == "sizes":
            raise ValueError(
                f"run {run.id}: its messages carried sizes only, so nothing was trained: there is no loss"
            )
    return runs


def _placed(evals: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """Tests, each with the samples and bytes (MB) of all workers before it."""
    done = np.minimum(evals["step"], len(curve)).to_numpy(dtype=int) - 1
    before = curve.iloc[np.maximum(done, 0)]
    return evals.assign(
        samples=before["samples"].to_numpy(), bytes=before["bytes"].to_numpy(), seconds=evals["t"]
    )


def throughput(runs: Run | Sequence[Run]) -> Figure:
    """Draw samples a second over time: of one run all workers and each, of several runs all workers together."""
    runs = finished(runs)
    xaxis = theme.axis(theme.titles({run.world for run in runs})["seconds"])
    figure = blank(theme.layout(xaxis=xaxis, yaxis=theme.axis("throughput (samples/s)")))
    names, totals = labels([run.experiment for run in runs]), []
    for number, (run, label) in enumerate(zip(runs, names)):
        curve, steps = run.curve, run.steps
        began = float((steps["t"] - steps["compute"] - steps["comm"] - steps["wait"]).min())
        rows = _rate(curve["seconds"], curve["samples"].diff().fillna(curve["samples"]), began, run.world)
        style = {**theme.run_line(theme.scheme_colour(run.experiment.sync.scheme), number), "opacity": 1.0}
        name = with_world("all workers" if len(runs) == 1 else label, run.experiment)
        figure.add_scatter(x=rows[:, 0], y=rows[:, 1], name=name, **theme.of_world(style, run.world))
        totals.append(float(curve["samples"].iloc[-1] / (curve["seconds"].iloc[-1] - began)))
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    if len(runs) > 1:
        each = (f"{label} {captions.quantity(rate)}" for label, rate in zip(names, totals))
        return captioned(figure, f"Samples a second over the whole run: {captions.listed(each)}.")
    experiment, by_rank = runs[0].experiment, {}
    for rank in range(theme.workers(experiment) if experiment.workers > 1 else 0):
        own = steps[steps["rank"] == rank]
        rows = _rate(own["t"], own["samples"], began, runs[0].world)
        line = theme.rank_line(rank, theme.crowded(experiment))
        figure.add_scatter(x=rows[:, 0], y=rows[:, 1], name=f"rank {rank}", **line)
        by_rank[rank] = float(own["samples"].sum() / (own["t"].max() - began))
    sentence = captions.throughput(totals[0], by_rank, experiment)
    return captioned(figure, captions.shown_workers(experiment, sentence))


def _rate(seconds: Any, samples: Any, began: float, world: str) -> np.ndarray:
    rate = Rate(Series(2, 300), WINDOW if world == "real" else 0.0)
    for t, n in zip(seconds.to_numpy(), samples.to_numpy()):
        rate.add(float(t), float(n), began)
    rate.close(float(seconds.iloc[-1]))
    return rate.series.rows


def speedup(runs: Sequence[Run], predicted: Mapping[int, float] | None = None) -> Figure:
    """Draw the speed-up of more workers, on logarithmic axes, beside the ideal line.

    Parameters
    ----------
    runs : sequence of Run
        At least two numbers of workers; several runs of one number are averaged.
    predicted : mapping of int to float, optional
        Predicted speed-up by the number of workers; drawn as a dashed line.
    """
    rates = defaultdict(list)
    for run in finished(runs):
        rates[run.experiment.workers].append(run.summary["samples_per_s"])
    if len(rates) < 2:
        only = captions.listed(map(str, rates))
        raise ValueError(f"runs: got runs of {only} workers only, allowed are two or more numbers of workers")
    workers = sorted(rates)
    base = np.mean(rates[workers[0]])
    measured = {n: float(np.mean(rates[n]) / base) for n in workers}
    ideal = [n / workers[0] for n in workers]
    ticks = {"type": "log", "tickvals": workers, "ticktext": [str(n) for n in workers]}
    up = sorted({*ideal, 1, *(t for t in (0.25, 0.5) if min(measured.values()) < 2 * t)})
    up_ticks = {"type": "log", "tickvals": up, "ticktext": [f"{t:g}" for t in up]}
    title = f"speed-up over {workers[0]} worker{'s' * (workers[0] > 1)} (times)"
    figure = blank(theme.layout(xaxis=theme.axis("workers", **ticks), yaxis=theme.axis(title, **up_ticks)))
    figure.add_scatter(x=workers, y=ideal, name="ideal", mode="lines", line=theme.IDEAL)
    both = {"mode": "lines+markers"}
    if predicted:
        at, predicted = sorted({workers[0], *predicted}), {workers[0]: 1.0, **predicted}
        style = {**theme.predicted_line("predicted", "#BF8300"), **both}
        style["marker"] = {"symbol": "diamond-open", "size": 10}
        figure.add_scatter(x=at, y=[predicted[n] for n in at], **style)
    colour = theme.scheme_colour(runs[0].experiment.sync.scheme)
    style = {**both, "line": theme.line_by_source(colour, "measured"), "marker": {"color": colour, "size": 9}}
    figure.add_scatter(x=workers, y=list(measured.values()), name="measured", **style)
    return captioned(figure, captions.speedup(measured))


def time_to_accuracy(
    runs: Run | Sequence[Run], goal: float = 0.95, titles: Sequence[str] | None = None
) -> Figure:
    """Draw the seconds to a held-out accuracy and their factors: number of steps and time of a step.

    The number of steps to the goal is the statistical efficiency of a scheme, the time of a
    step its hardware efficiency. Seconds to the goal are their product
    (Zhang and Re, "DimmWitted", VLDB 2014).

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of a task with an accuracy.
    goal : float, default 0.95
        Held-out accuracy, above 0 and at most 1; the first test that reaches it counts.
    titles : sequence of str, optional
        Name of each run; default: the settings in which it differs from the others.

    Notes
    -----
    Seconds of different clocks, as of a real and a simulated run, do not compare. The caption
    names the first run of each clock.
    """
    runs = _trained(finished(runs, titles))
    for run in runs:
        if curves.is_regression(run.experiment):
            raise ValueError(
                f"run {run.id}: got data {run.experiment.data.name}, a regression, allowed is a task "
                f"with classes: others have no accuracy"
            )
    check_goal(goal)
    experiments = [run.experiment for run in runs]
    names = titles or (labels(experiments) if len(runs) > 1 else [scheme(experiments[0])])
    reached, clocks = [first_at(run, goal) for run in runs], [theme.CLOCKS[run.world] for run in runs]
    several = len(set(clocks)) > 1
    if several:
        names = [with_world(name, experiment) for name, experiment in zip(names, experiments)]
    columns = np.array([[t, step, 1e3 * t / step] if step else [0.0, 0.0, 0.0] for step, t in reached])
    clock = f"{clocks[0]} " if not several and clocks[0] != "wall" else ""
    figure = _factors(names, columns, f"{clock}seconds to {goal:.0%}", f"steps to {goal:.0%}", several)
    seen: Counter[str] = Counter()
    for row, experiment in enumerate(experiments):
        kind = experiment.sync.scheme
        pattern = theme.hatch(theme.PATTERNS[seen[kind] % len(theme.PATTERNS)])
        seen[kind] += 1
        style = {"orientation": "h", "marker": {"color": theme.scheme_colour(kind), "pattern": pattern},
                 "textposition": "outside", "cliponaxis": False}  # fmt: skip
        for n, value in enumerate(columns[row]):
            text = captions.quantity(value) if reached[row][0] else "not reached"
            axis = f"x{n + 1 if n else ''}"
            figure.add_bar(y=[row], x=[value], name=names[row], text=[text], xaxis=axis, **style)
    found = [(*each, *at) for *each, at in zip(names, clocks, reached)]
    return captioned(figure, captions.time_to_accuracy(goal, found))


def _factors(names: Sequence[str], columns: np.ndarray, seconds: str, steps: str, own_clocks: bool) -> Figure:
    """An empty figure with a row for each run and three panels: seconds, steps, and time of a step."""
    own, layout = "<br>each on its own clock" * own_clocks, {}
    panels = zip((seconds + own, steps, f"time of a step (ms){own}"), 1.25 * columns.max(0))
    for n, ((title, end), domain) in enumerate(zip(panels, ([0.0, 0.3], [0.36, 0.66], [0.72, 1.0]))):
        axis = theme.axis(title, (0, end or 1), domain=domain, anchor="y", nticks=5)
        layout[f"xaxis{n + 1 if n else ''}"] = axis
    margin = {"l": 92, "r": 16, "t": 16, "b": 54 + 20 * own_clocks}
    layout |= {"yaxis": theme.rows(names, automargin=True), "bargap": 0.35, "showlegend": False}
    return blank(theme.layout(**layout, margin=margin), max(240, 46 * len(names) + 120) + 20 * own_clocks)


def first_at(run: Run, goal: float) -> tuple[int | None, float]:
    """Step and seconds of the first test with at least the accuracy `goal`; the step is None without one."""
    evals = run.evals
    good = evals[evals["accuracy"].astype(float) >= goal]
    return (int(good["step"].iloc[0]), float(good["t"].iloc[0])) if len(good) else (None, float("nan"))


def _compared(runs: list[Run], names: Sequence[str]) -> str:
    parts = []
    for run, label in zip(runs, names):
        accuracy, loss = run.summary["accuracy"], run.summary["final_loss"]
        tested = "" if accuracy is None else f", accuracy {accuracy:.1%}"
        last = run.curve.iloc[-1]
        loss = f"loss {captions.quantity(last['loss'] if loss is None else loss)}"  # None if the run diverged
        parts.append(f"{label} {loss if last['samples'] else 'no sample, so no loss'}{tested}")
    return f"At the end: {'; '.join(parts)}."


FLOOR = 1e-12
"""Least distance that is drawn; smaller ones are rounding."""


def suboptimality(runs: Run | Sequence[Run], least: float, titles: Sequence[str] | None = None) -> Figure:
    """Draw the suboptimality, training loss minus the least loss, over steps on a logarithmic axis.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of one kind of task.
    least : float
        The least loss that any weights have.
    titles : sequence of str, optional
        Name of each run; default: the settings in which it differs from the others.
    """
    runs = finished(runs, titles)
    experiments = [run.experiment for run in runs]
    title = f"{curves.loss_title(experiments[0])} above the least"
    xaxis = theme.axis("global step", (0, max(experiment.steps for experiment in experiments)))
    yaxis = theme.axis(title, type="log", exponentformat="power", dtick=1)
    figure, parts = blank(theme.layout(xaxis=xaxis, yaxis=yaxis)), []
    for number, (run, name) in enumerate(zip(runs, titles or labels(experiments))):
        rows = thinned(run.curve)
        above = (rows["loss"] - least).clip(lower=FLOOR)
        style = theme.beside(theme.scheme_colour(run.experiment.sync.scheme), number, run.world)
        figure.add_scatter(x=rows["step"], y=above, name=name, **style)
        parts.append(f"{name} {captions.quantity(float(run.curve['loss'].iloc[-1] - least))}")
    return captioned(figure, f"At the end the loss is above the least by: {'; '.join(parts)}.")
