"""What all static figures share: an empty one, its sentence, and runs that can be drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from dlpar.experiment import Experiment
from dlpar.lab.figure import Figure
from dlpar.run import Run

POINTS = 2000
"""Most points drawn of one curve."""


def blank(layout: dict[str, Any], height: int = 430) -> Figure:
    """A figure without data; `height` in pixels."""
    figure = Figure(layout=go.Layout(**layout))
    figure.layout.update(height=height, template=None)
    return figure


def saying(figure: Figure, sentence: str) -> Figure:
    """The figure with its sentence."""
    figure.layout.meta = {"says": sentence}
    return figure


def listed(runs: Run | Sequence[Run]) -> list[Run]:
    """One run or several as a list; ValueError if there is none, or something else among them."""
    runs = [runs] if isinstance(runs, Run) or not isinstance(runs, Iterable) else list(runs)
    for run in runs:
        if not isinstance(run, Run):
            raise ValueError(f"runs: got {run!r:.60}, allowed is a run or several")
    if not runs:
        raise ValueError("runs: got none, allowed is one run or more")
    return runs


def finished(runs: Run | Sequence[Run], titles: Sequence[str] | None = None) -> list[Run]:
    """One run or several as a list; ValueError unless each has a finished step, and a title if there are any."""
    runs = listed(runs)
    if titles is not None and len(titles) != len(runs):
        raise ValueError(f"titles: got {len(titles)}, allowed is one for each of {len(runs)} runs")
    for run in runs:
        if run.curve.empty:
            raise ValueError(f"run {run.id}: has no finished step, so there is nothing to draw")
    return runs


def single(run: Run | Sequence[Run]) -> Run:
    """The run of a figure of one run's ranks, bare or alone in a list; ValueError if there are more."""
    runs = listed(run)
    if len(runs) > 1:
        raise ValueError(
            f"run: got {len(runs)} runs, allowed is one: this figure shows the ranks of a single run"
        )
    return runs[0]


def thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """Every n-th row, so that at most `POINTS` are left."""
    return rows[:: max(1, -(-len(rows) // POINTS))]


def over(experiment: Experiment, rows: pd.DataFrame) -> pd.Series:
    """What lines of single workers are drawn over: seconds where these run free of each other, else steps."""
    return rows["t"] if experiment.free_running else rows["step"]
