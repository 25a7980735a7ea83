"""Cost of failures: goodput against the interval between snapshots, and the kinds of lost time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned, require, stacked
from dlpar.theory.surviving import goodput as exact
from dlpar.theory.surviving import young_interval
from dlpar.worlds.simulated.failures import NEVER, USEFUL, FailingJob

POINTS = 14
"""Number of intervals that are simulated for each job."""


def goodput(
    jobs: Mapping[str, FailingJob], asked: float | None = None, failures: int = 500, seed: int = 0
) -> Figure:
    """Simulate jobs with snapshots at many intervals. Draw the share of time spent on useful steps.

    Broad lines are simulated.  If a death ends a job, dashed lines show the exact form.  Thin lines then show Young's
    first order, 1 - δ/τ - τ/2M - R/M, with a stroke at his interval √(2δM).

    Parameters
    ----------
    jobs : mapping of str to FailingJob
        Jobs by name. `every` is varied.
    asked : float, optional
        A student's interval in seconds, drawn as a line.
    failures : int, default 500
        Number of failures that are simulated at each interval.
    seed : int, default 0
        Seed of the times of failures.

    Raises
    ------
    ValueError
        If there is no job, or one never fails.
    """
    fails = len(jobs) > 0 and all(job.mtbf < NEVER for job in jobs.values())
    require(fails, "jobs: got none, or one that never fails, allowed are one or more with an mtbf")
    ends = min(job.step for job in jobs.values()), 2 * min(job.mtbf for job in jobs.values())
    across = theme.log_axis("training between two snapshots (s)", theme.round_numbers(*ends, (1,)), ends=ends)
    figure = blank(450, xaxis=across, yaxis=theme.axis("time spent on steps that count (%)", (0, 100)))
    rows, best = [], []
    for (name, job), colour, symbol in zip(jobs.items(), theme.RUNS, theme.MARKERS):
        every = sorted({max(1, round(seconds / job.step)) for seconds in np.geomspace(*ends, POINTS)})
        x = [n * job.step for n in every]
        y = [100 * replace(job, every=n).run(most=failures, seed=seed).goodput for n in every]
        rows += [(name, *point) for point in zip(x, y)]
        best.append(f"{name}: {max(y):.1f} % at {captions.duration(x[y.index(max(y))])}")
        figure.add_scatter(x=x, y=y, **theme.result(name, colour, "simulated", symbol))
        if job.on_death == "end":
            _formulas(figure, job, np.geomspace(*ends, 200), colour)
    for look in (theme.predicted_line("exact form"), _thin("Young's formula", theme.GREY)):
        figure.add_scatter(x=[None], y=[None], **look)  # one entry in the legend for all jobs
    if asked:
        figure.add_scatter(x=[asked] * 2, y=[0, 100], **theme.predicted_line("you said", theme.ASKED))
    heads = ("job", "between snapshots (s)", "goodput (%)")
    return captioned(figure, f"Simulated, the best of these intervals: {'; '.join(best)}.", (heads, rows))


def _formulas(figure: Figure, job: FailingJob, across: np.ndarray, colour: str) -> None:
    """Draw the exact form, and a faint line for Young's first-order form. A stroke marks the maximum."""
    recovery, at = job.detecting + job.restarting, young_interval(job.snapshot, job.mtbf)
    shares = [100 * exact(interval, job.snapshot, job.mtbf, recovery) for interval in across]
    figure.add_scatter(x=across, y=shares, **theme.predicted_line("exact form", colour), showlegend=False)
    across = np.sort([*across, at])
    first = 100 * (1 - job.snapshot / across - across / 2 / job.mtbf - recovery / job.mtbf)
    look = _thin("Young's formula", colour, 16 * (across == at))
    figure.add_scatter(x=across, y=np.where(first > 0, first, np.nan), **look, showlegend=False)


def _thin(name: str, colour: str, sizes: Any = 0) -> theme.Look:
    """Return the style of a thin line with strokes of these sizes across it."""
    marker = {"symbol": "line-ns", "size": sizes, "line": {"width": 2, "color": colour}}
    look = {"mode": "lines+markers", "opacity": theme.FAINT, "marker": marker}
    return {"name": name, "line": theme.line_by_source(colour, "measured", 1), **look}


def time_spent(seconds: Mapping[str, Mapping[str, float]], how: str) -> Figure:
    """Draw the time that jobs spent on each kind of work. Times are shares of the wall time.

    Parameters
    ----------
    seconds : mapping of str to mapping of str to float
        Seconds by kind, for each job by name. All kinds of a job add up to its wall time.
    how : str
        The origin of these times, for the caption: ``measured`` or ``simulated``.
    """
    shares = pd.DataFrame(seconds, list(theme.SPENT)).fillna(0.0)
    shares *= 100 / shares.sum()
    looks = {kind: {"marker": dict(color=c, pattern=theme.hatch(p))} for kind, (c, p) in theme.SPENT.items()}
    parts = {kind: (look, shares.loc[kind].tolist()) for kind, look in looks.items()}
    said = "; ".join(f"{name}: {share:.1f} %" for name, share in shares.loc[list(USEFUL)].sum().items())
    figure = stacked("share of the time (%)", list(seconds), parts, ("", []))
    return captioned(figure, f"Spent on steps that count ({how}): {said}.")
