"""Figures of finished training: speed-up, time to an accuracy, distance from the least loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned, finished, thinned
from dlpar.lab.figures.convergence import is_regression, loss_title, trained
from dlpar.lab.labels import labels, scheme, with_world
from dlpar.lab.plot import shown

if TYPE_CHECKING:
    pass


def check_goal(goal: float) -> None:
    """Raise ValueError unless `goal` is an accuracy that a run can reach."""
    if not 0 < goal <= 1:
        raise ValueError(f"goal: got {goal:g}, allowed is a share above 0 and at most 1")


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
    colour = theme.RUNS[0]
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
    runs = trained(finished(runs, titles))
    for run in runs:
        if is_regression(run.experiment):
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
    for row, colour in enumerate(theme.run_colours(experiments)):
        style = {
            "orientation": "h",
            "marker": {"color": colour},
            "textposition": "outside",
            "cliponaxis": False,
        }
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
    title = f"{loss_title(experiments[0])} above the least"
    xaxis = theme.axis("global step", (0, max(experiment.steps for experiment in experiments)))
    yaxis = theme.axis(title, type="log", exponentformat="power", dtick=1)
    figure, parts = blank(theme.layout(xaxis=xaxis, yaxis=yaxis)), []
    looks = shown(experiments, [run.id for run in runs], titles)
    for run, look in zip(runs, looks):
        rows = thinned(run.curve)
        above = (rows["loss"] - least).clip(lower=FLOOR)
        figure.add_scatter(x=rows["step"], y=above, **look.line)
        parts.append(f"{look.name} {captions.quantity(float(run.curve['loss'].iloc[-1] - least))}")
    return captioned(figure, f"At the end the loss is above the least by: {'; '.join(parts)}.")
