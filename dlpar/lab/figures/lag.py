"""Static figures of workers that run free of each other: staleness in updates, lead in clocks."""

from __future__ import annotations

from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, finished, over, saying, single, thinned
from dlpar.lab.live import lead as leads
from dlpar.lab.live import shown
from dlpar.lab.live import staleness as ages
from dlpar.run import Run


def staleness(run: Run) -> Figure:
    """How many updates old the weights were that each gradient was computed on, over time and as histograms."""
    (run,) = finished(single(run))
    steps, experiment = run.steps, run.experiment
    largest, predicted = int(steps["staleness"].max()), ages.predicted_mean(experiment)
    figure = blank(ages.layout(experiment), 520 if experiment.free_running else 430)
    top = theme.doubled(largest, max(4.0, 2.0 * (predicted or 0)))
    figure.layout.yaxis.range = [-0.25, top]
    end = theme.rounded_up(steps["t"].max()) if experiment.free_running else experiment.steps
    figure.layout.xaxis.range = [0, end]
    most, by_rank = 1, dict(list(steps.groupby("rank")))
    for rank in range(shown.workers(experiment)):
        kept = thinned(by_rank[rank])
        line = theme.rank_line(rank, shown.crowded(experiment))
        figure.add_scatter(x=over(experiment, kept), y=kept["staleness"], name=f"rank {rank}", **line)
    for number, name in enumerate(ages.histograms(experiment)):
        own = steps if name == ages.ALL else by_rank[number]
        counts = own["staleness"].value_counts().sort_index()
        looks = {key: value for key, value in ages.histogram(number, name).items() if key != "type"}
        figure.add_bar(x=counts.index, y=counts, **looks)
        axis = figure.layout[ages.axis_of(number)]
        axis.title.text = f"{name}<br>mean {says.quantity(own['staleness'].mean())}"
        axis.range = [-0.6, ages.widest(largest, predicted, ended=True) + 0.6]
        most = max(most, int(counts.max()))
    if experiment.free_running:
        figure.layout.yaxis2.range = [0, theme.rounded_up(1.15 * most)]
    if predicted is not None:
        figure.add_scatter(x=[0, end], y=[predicted, predicted], **ages.predicted_line(predicted))
    sentence = says.staleness(largest, float(steps["staleness"].mean()), experiment, predicted)
    return saying(figure, shown.note(experiment, sentence))


def lead(run: Run) -> Figure:
    """How many clocks each worker was ahead of the slowest whenever it started one, and the bound on it."""
    (run,) = finished(single(run))
    steps, experiment = run.steps, run.experiment
    bound = leads.bound_of(experiment)
    most = steps.groupby("rank")["lead"].max()
    figure = blank(leads.layout(experiment))
    figure.layout.yaxis.range = [-0.25, theme.doubled(int(most.max()), leads.least(bound))]
    figure.layout.xaxis.range = [
        0,
        theme.rounded_up(steps["t"].max()) if experiment.free_running else experiment.steps,
    ]
    for rank in range(shown.workers(experiment)):
        kept = thinned(steps[steps["rank"] == rank])
        line = theme.rank_line(rank, shown.crowded(experiment))
        figure.add_scatter(x=over(experiment, kept), y=kept["lead"], name=f"rank {rank}", **line)
    return saying(figure, shown.note(experiment, says.lead([int(n) for n in most], bound)))
