"""What all static figures share: an empty one, its sentence, and runs that can be drawn."""

from __future__ import annotations

from typing import Any, Sequence

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


def finished(runs: Run | Sequence[Run]) -> list[Run]:
    """One run or several as a list; ValueError unless each has a finished step."""
    runs = [runs] if isinstance(runs, Run) else list(runs)
    for run in runs:
        if run.curve.empty:
            raise ValueError(f"run {run.id}: has no finished step, so there is nothing to draw")
    if not runs:
        raise ValueError("runs: got none, allowed is one run or more")
    return runs


def thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """Every n-th row, so that at most `POINTS` are left."""
    return rows[:: max(1, -(-len(rows) // POINTS))]


def over(experiment: Experiment, rows: pd.DataFrame) -> pd.Series:
    """What lines of single workers are drawn over: seconds where these run free of each other, else steps."""
    return rows["t"] if experiment.free_running else rows["step"]
