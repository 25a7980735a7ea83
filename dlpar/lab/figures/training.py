"""Static figures of training: loss and accuracy, rates, speed-up, time to an accuracy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlpar.jobs.run import Run
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.figure import Figure, blank, finished, saying, thinned
from dlpar.lab.labels import labels, scheme, with_world
from dlpar.lab.live import convergence as curves
from dlpar.lab.live import rank_lines as shown
from dlpar.lab.live.convergence import loss_title
from dlpar.lab.live.throughput import WINDOW, Rate
from dlpar.lab.live_plot import Series

if TYPE_CHECKING:
    import pandas as pd

    from dlpar.config.experiment import Experiment


X_AXES = {"step": "step", "samples": "samples", "seconds": "seconds", "bytes": "MB sent"}
"""What curves can be drawn over, and the axis each has."""


def convergence(runs: Run | Sequence[Run], x: str = "step", titles: Sequence[str] | None = None) -> Figure:
    """Training loss of each global step and held-out accuracy, one curve a run.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of one kind of task.
    x : {"step", "samples", "seconds", "bytes"}
        What the curves are drawn over; "steps" is "step", too.
    titles : sequence of str, optional
        What each run is called; default: what tells them apart.

    Raises
    ------
    ValueError
        If `x` is none of these, a run has no finished step or does not say what it sent where that is asked
        for, tasks are not of one kind, or titles do not fit to the runs.
    """
    runs, x = _trained(finished(runs, titles)), "step" if x == "steps" else x
    if x not in X_AXES:
        raise ValueError(f"x: got {x!r}, allowed is one of {', '.join(X_AXES)}")
    of_one_kind([run.experiment for run in runs], "runs")
    first, names = runs[0].experiment, titles or labels([run.experiment for run in runs])
    figure = blank(curves.layout(first))
    top = end = 0.0
    for number, (run, label) in enumerate(zip(runs, names)):
        curve = run.curve
        if x == "bytes" and curve["bytes"].isna().all():
            raise ValueError(
                f"run {run.id}: the library moved the data and does not say how much, so x bytes has no "
                f"place for it; allowed is step, samples or seconds"
            )
        curve["bytes"] /= 1e6
        kept, colour = thinned(curve), theme.scheme_colour(run.experiment.sync.scheme)
        style = theme.beside(colour, number, run.world)
        label = with_world(label, run.experiment)
        figure.add_scatter(x=kept[x], y=kept["loss"], name=label, legendgroup=run.id, **style)
        tests = _placed(run.evals, curve)
        tested = "loss" if curves.is_regression(run.experiment) else "accuracy"
        line = curves.test_line(style, "held-out loss" if tested == "loss" else "accuracy")
        figure.add_scatter(x=tests[x], y=tests[tested], legendgroup=run.id, **line)
        finite = curve["loss"][np.isfinite(curve["loss"])]
        top, end = max(top, finite.max()), max(end, np.nan_to_num(curve[x].max()))
    figure.layout.yaxis.range = [0, theme.rounded_up(top)]
    figure.update_xaxes(theme.axis(theme.titles({run.world for run in runs})[X_AXES[x]], (0, end or 1)))
    curve, evals = runs[0].curve, runs[0].evals
    accuracy = None if curves.is_regression(first) or evals.empty else evals["accuracy"].iloc[-1]
    loss, samples = curve["loss"], curve["samples"].iloc[-1]
    text = says.convergence(first, len(curve), samples, loss.iloc[0], loss.iloc[-1], accuracy)
    return saying(figure, text if len(runs) == 1 else _compared(runs, names))


overlay = convergence
"""Several runs in one figure: another word for :func:`convergence`, as labs say it."""


def of_one_kind(experiments: Sequence[Experiment], name: str) -> None:
    """ValueError, naming the argument, unless all have the same loss and all or none an accuracy."""
    if len({curves.loss_title(experiment) for experiment in experiments}) > 1:
        raise ValueError(f"{name}: got classification and regression, allowed is one kind of task")


def _trained(runs: list[Run]) -> list[Run]:
    """The runs; ValueError if one has passed sizes only, so that it has no loss."""
    for run in runs:
        if run.experiment.cluster.messages == "sizes":
            raise ValueError(
                f"run {run.id}: its messages carried sizes only, so nothing was trained: there is no loss"
            )
    return runs


def _placed(evals: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """Tests with what had been done before each: samples and bytes (MB) of all workers."""
    done = np.minimum(evals["step"], len(curve)).to_numpy(dtype=int) - 1
    before = curve.iloc[np.maximum(done, 0)]
    return evals.assign(
        samples=before["samples"].to_numpy(), bytes=before["bytes"].to_numpy(), seconds=evals["t"]
    )


def throughput(runs: Run | Sequence[Run]) -> Figure:
    """Samples a second over time: of one run all workers and each, of several runs all workers together."""
    runs = finished(runs)
    figure = blank(
        theme.layout(
            xaxis=theme.axis(theme.titles({run.world for run in runs})["seconds"]),
            yaxis=theme.axis("throughput (samples/s)"),
        )
    )
    totals: list[float] = []
    for number, (run, label) in enumerate(zip(runs, labels([r.experiment for r in runs]))):
        curve, steps = run.curve, run.steps
        began = float((steps["t"] - steps["compute"] - steps["comm"] - steps["wait"]).min())
        rows = _rate(curve["seconds"], curve["samples"].diff().fillna(curve["samples"]), began, run.world)
        style = {**theme.run_line(theme.scheme_colour(run.experiment.sync.scheme), number), "opacity": 1.0}
        name = with_world("all workers" if len(runs) == 1 else label, run.experiment)
        figure.add_scatter(x=rows[:, 0], y=rows[:, 1], name=name, **theme.of_world(style, run.world))
        totals.append(float(curve["samples"].iloc[-1] / (curve["seconds"].iloc[-1] - began)))
    by_rank = {}
    if len(runs) == 1 and runs[0].experiment.workers > 1:
        for rank in range(shown.workers(runs[0].experiment)):
            own = steps[steps["rank"] == rank]
            rows = _rate(own["t"], own["samples"], began, runs[0].world)
            line = theme.rank_line(rank, shown.crowded(runs[0].experiment))
            figure.add_scatter(x=rows[:, 0], y=rows[:, 1], name=f"rank {rank}", **line)
            by_rank[rank] = float(own["samples"].sum() / (own["t"].max() - began))
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    if len(runs) == 1:
        experiment = runs[0].experiment
        return saying(figure, shown.note(experiment, says.throughput(totals[0], by_rank, experiment)))
    each = (
        f"{label} {says.quantity(rate)}" for label, rate in zip(labels([r.experiment for r in runs]), totals)
    )
    return saying(figure, f"Samples a second over the whole run: {says.listed(each)}.")


def speedup(runs: Sequence[Run], predicted: Mapping[int, float] | None = None) -> Figure:
    """How many times faster more workers train, on logarithmic axes, against the ideal line.

    Parameters
    ----------
    runs : sequence of Run
        At least two numbers of workers; several runs of one number are averaged.
    predicted : mapping of int to float, optional
        Workers -> speed-up somebody expected; drawn as a dashed line.
    """
    rates = defaultdict(list)
    for run in finished(runs):
        rates[run.experiment.workers].append(run.summary["samples_per_s"])
    if len(rates) < 2:
        only = says.listed(map(str, rates))
        raise ValueError(f"runs: got runs of {only} workers only, allowed are two or more numbers of workers")
    workers = sorted(rates)
    base = np.mean(rates[workers[0]])
    measured = {n: float(np.mean(rates[n]) / base) for n in workers}
    ideal = [n / workers[0] for n in workers]
    ticks = {"type": "log", "tickvals": workers, "ticktext": [str(n) for n in workers]}
    up = sorted({*ideal, 1, *(t for t in (0.25, 0.5) if min(measured.values()) < 2 * t)})
    up_ticks = {"type": "log", "tickvals": up, "ticktext": [f"{t:g}" for t in up]}
    base_is = f"{workers[0]} worker{'s' * (workers[0] > 1)}"
    figure = blank(
        theme.layout(
            xaxis=theme.axis("workers", **ticks),
            yaxis=theme.axis(f"speed-up over {base_is} (times)", **up_ticks),
        )
    )
    figure.add_scatter(x=workers, y=ideal, name="ideal", mode="lines", line=theme.IDEAL)
    if predicted:
        predicted = {workers[0]: 1.0, **predicted}
        at = sorted(predicted)
        line = {"color": "#BF8300", **theme.PREDICTED}
        marker = {"symbol": "diamond-open", "size": 10}
        figure.add_scatter(
            x=at,
            y=[predicted[n] for n in at],
            name="predicted",
            mode="lines+markers",
            line=line,
            marker=marker,
        )
    colour = theme.scheme_colour(runs[0].experiment.sync.scheme)
    style = {
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2.5},
        "marker": {"color": colour, "size": 9},
    }
    figure.add_scatter(x=workers, y=list(measured.values()), name="measured", **style)
    return saying(figure, says.speedup(measured))


def time_to_accuracy(
    runs: Run | Sequence[Run], goal: float = 0.95, titles: Sequence[str] | None = None
) -> Figure:
    """Seconds to a held-out accuracy, and the two factors of it: steps to get there, and time of a step.

    Steps to the goal are the statistical efficiency of a scheme, the time of a
    step its hardware efficiency; seconds to the goal are their product
    (Zhang and Re, "DimmWitted", VLDB 2014).

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of a task with an accuracy.
    goal : float
        Held-out accuracy, above 0 and at most 1; its first crossing in a test counts.
    titles : sequence of str, optional
        What each run is called; default: what tells them apart.

    Notes
    -----
    Seconds of different clocks, as of a real and a simulated run, do not compare: who was first is said of
    each clock alone.
    """
    runs = _trained(finished(runs, titles))
    for run in runs:
        if curves.is_regression(run.experiment):
            raise ValueError(
                f"run {run.id}: got data {run.experiment.data.name}, a regression, allowed is a task "
                f"with classes: others have no accuracy"
            )
    if not 0 < goal <= 1:
        raise ValueError(f"goal: got {goal:g}, allowed is a share above 0 and at most 1")
    names = titles or (
        labels([run.experiment for run in runs]) if len(runs) > 1 else [scheme(runs[0].experiment)]
    )
    reached, clocks = [first_at(run, goal) for run in runs], [theme.CLOCKS[run.world] for run in runs]
    several = len(set(clocks)) > 1
    if several:
        names = [with_world(name, run.experiment) for name, run in zip(names, runs)]
    clock = f"{clocks[0]} " if not several and clocks[0] != "wall" else ""
    own = "<br>each on its own clock" * several
    heads = (f"{clock}seconds to {goal:.0%}{own}", f"steps to {goal:.0%}", f"time of a step (ms){own}")
    rows = theme.axis(
        "", (len(runs) - 0.5, -0.5), tickvals=list(range(len(runs))), ticktext=names, showgrid=False
    )
    columns = np.array([[t, step, 1e3 * t / step] if step else [0.0, 0.0, 0.0] for step, t in reached])
    domains, ends = ([0.0, 0.3], [0.36, 0.66], [0.72, 1.0]), 1.25 * columns.max(0)
    xaxes = {
        f"xaxis{n + 1 if n else ''}": theme.axis(
            title, (0, ends[n] or 1), domain=domains[n], anchor="y", nticks=5
        )
        for n, title in enumerate(heads)
    }
    figure = blank(
        theme.layout(
            yaxis={**rows, "automargin": True},
            bargap=0.35,
            showlegend=False,
            **xaxes,
            margin={"l": 92, "r": 16, "t": 16, "b": 54 + 20 * several},
        ),
        height=max(240, 46 * len(runs) + 120) + 20 * several,
    )
    seen: Counter[str] = Counter()
    for row, run in enumerate(runs):
        kind = run.experiment.sync.scheme
        pattern = theme.hatch(theme.PATTERNS[seen[kind] % len(theme.PATTERNS)])
        style = {"color": theme.scheme_colour(kind), "pattern": pattern}
        seen[kind] += 1
        for n, (title, value) in enumerate(zip(heads, columns[row])):
            said = says.quantity(value) if reached[row][0] else "not reached"
            figure.add_bar(
                y=[row],
                x=[value],
                orientation="h",
                name=names[row],
                marker=style,
                text=[said],
                textposition="outside",
                cliponaxis=False,
                xaxis=f"x{n + 1 if n else ''}",
            )
    return saying(
        figure, says.time_to_accuracy(goal, [(*each, *at) for *each, at in zip(names, clocks, reached)])
    )


def first_at(run: Run, goal: float) -> tuple[int | None, float]:
    """Step and seconds of the first test that was at least as good as `goal`; the step is None if none was."""
    evals = run.evals
    good = evals[evals["accuracy"].astype(float) >= goal]
    return (int(good["step"].iloc[0]), float(good["t"].iloc[0])) if len(good) else (None, float("nan"))


def _rate(seconds: Any, samples: Any, began: float, world: str) -> np.ndarray:
    rate = Rate(Series(2, 300), WINDOW if world == "real" else 0.0)
    for t, n in zip(seconds.to_numpy(), samples.to_numpy()):
        rate.add(float(t), float(n), began)
    rate.close(float(seconds.iloc[-1]))
    return rate.series.rows


def _compared(runs: list[Run], names: Sequence[str]) -> str:
    said = []
    for run, label in zip(runs, names):
        accuracy, loss = (
            run.summary["accuracy"],
            run.summary["final_loss"],
        )  # None: it diverged, or drew no sample
        tested = "" if accuracy is None else f", accuracy {accuracy:.1%}"
        loss = f"loss {says.quantity(run.curve['loss'].iloc[-1] if loss is None else loss)}"
        said.append(f"{label} {loss if run.curve['samples'].iloc[-1] else 'no sample, so no loss'}{tested}")
    return f"At the end: {'; '.join(said)}."


FLOOR = 1e-12
"""Least distance drawn: below it is rounding."""


def excess(runs: Run | Sequence[Run], least: float, titles: Sequence[str] | None = None) -> Figure:
    """Training loss minus `least`, over steps, on a logarithmic axis.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of one kind of task.
    least : float
        The least loss any weights have.
    titles : sequence of str, optional
        What each run is called; default: what tells them apart.
    """
    runs = finished(runs, titles)
    names = titles or labels([run.experiment for run in runs])
    figure, said = (
        blank(
            theme.layout(
                xaxis=theme.axis("global step", (0, max(run.experiment.steps for run in runs))),
                yaxis=theme.axis(
                    f"{loss_title(runs[0].experiment)} above the least",
                    type="log",
                    exponentformat="power",
                    dtick=1,
                ),
            )
        ),
        [],
    )
    for number, (run, name) in enumerate(zip(runs, names)):
        rows = thinned(run.curve)
        above = (rows["loss"] - least).clip(lower=FLOOR)
        style = theme.beside(theme.scheme_colour(run.experiment.sync.scheme), number, run.world)
        figure.add_scatter(x=rows["step"], y=above, name=name, **style)
        said.append(f"{name} {says.quantity(float(run.curve['loss'].iloc[-1] - least))}")
    return saying(figure, f"At the end the loss is above the least by: {'; '.join(said)}.")
