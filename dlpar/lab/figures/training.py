"""Figures of finished training: time to an accuracy, and distance from the least loss."""

from __future__ import annotations

from collections.abc import Sequence

from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned, finished
from dlpar.lab.figures.convergence import is_regression, loss_title, trained
from dlpar.lab.labels import labels, scheme, with_world
from dlpar.lab.plot import shown


def check_goal(goal: float) -> None:
    """Raise ValueError unless `goal` is an accuracy that a run can reach."""
    if not 0 < goal <= 1:
        raise ValueError(f"goal: got {goal:g}, allowed is a share above 0 and at most 1")


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
            allowed = "allowed is a task with classes: others have no accuracy"
            raise ValueError(f"run {run.id}: got data {run.experiment.data.name}, a regression, {allowed}")
    check_goal(goal)
    experiments = [run.experiment for run in runs]
    names = titles or (labels(experiments) if len(runs) > 1 else [scheme(experiments[0])])
    reached, clocks = [first_at(run, goal) for run in runs], [theme.CLOCKS[run.world] for run in runs]
    several = len(set(clocks)) > 1
    if several:
        names = [with_world(name, experiment) for name, experiment in zip(names, experiments)]
    own_clocks = "<br>each on its own clock" if several else ""
    clock = f"{clocks[0]} " if not several and clocks[0] != "wall" else ""
    panels = {
        f"{clock}seconds to {goal:.0%}{own_clocks}": [t for _, t in reached],
        f"steps to {goal:.0%}": [step for step, _ in reached],
        f"time of a step (ms){own_clocks}": [step and 1e3 * t / step for step, t in reached],
    }
    height, margin = max(240, 46 * len(names) + 120), {"l": 92, "r": 16, "t": 16, "b": 74}
    layout = {"yaxis": theme.rows(names, automargin=True), "bargap": 0.35, "showlegend": False}
    figure = blank(theme.layout(**layout, margin=margin), height + 20)
    domains = ([0.0, 0.28], [0.36, 0.64], [0.72, 1.0])
    for number, ((title, values), domain) in enumerate(zip(panels.items(), domains), start=1):
        lengths = [value if step else 0 for value, (step, _) in zip(values, reached)]
        texts = [captions.quantity(value) if value else "not reached" for value in lengths]
        end = 1.25 * max(lengths) or 1
        figure.layout[f"xaxis{number}"] = theme.axis(title, (0, end), domain=domain, anchor="y", nticks=5)
        bar = {"orientation": "h", "textposition": "outside", "cliponaxis": False, "xaxis": f"x{number}"}
        look = {"name": title.partition("<br>")[0], "marker_color": theme.run_colours(experiments)}
        figure.add_bar(y=list(range(len(names))), x=lengths, text=texts, **bar, **look)
    found = [(*each, *at) for *each, at in zip(names, clocks, reached)]
    return captioned(figure, captions.time_to_accuracy(goal, found))


def first_at(run: Run, goal: float) -> tuple[int | None, float]:
    """Step and seconds of the first test with at least the accuracy `goal`; the step is None without one."""
    evals = run.evals
    good = evals[evals["accuracy"].astype(float) >= goal]
    return (int(good["step"].iloc[0]), float(good["t"].iloc[0])) if len(good) else (None, float("nan"))


POINTS = 1000
"""Points of a curve that are drawn: at least these, at most twice as many."""

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
        rows = run.curve[:: max(1, len(run.curve) // POINTS)]
        above = (rows["loss"] - least).clip(lower=FLOOR)
        figure.add_scatter(x=rows["step"], y=above, **look.line)
        parts.append(f"{look.name} {captions.quantity(float(run.curve['loss'].iloc[-1] - least))}")
    return captioned(figure, f"At the end the loss is above the least by: {'; '.join(parts)}.")
