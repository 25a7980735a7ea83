"""A static figure of how far a loss is from the least there is."""

from __future__ import annotations

from collections.abc import Sequence

from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, finished, saying, thinned
from dlpar.lab.labels import labels
from dlpar.lab.live.run_curve import loss_title
from dlpar.run import Run

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
