"""Static figures with captions and data, in the live figures' style."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.lab import theme

ROWS = 100
"""Rows of each series in the table under a figure. :func:`table` returns all rows."""


class Figure(go.Figure):
    """Plotly figure. A notebook shows its caption and a data table below.

    The notebook saves everything, so the figure is also visible without a kernel.
    """

    def _ipython_display_(self) -> None:
        from IPython.display import display

        plotted = json.loads(self.to_json())
        plotted["layout"].pop("template", None)  # 7 kB of defaults that no figure uses
        display({"application/vnd.plotly.v1+json": plotted, "text/plain": caption(self)}, raw=True)
        display({"text/html": _below(self), "text/plain": caption(self)}, raw=True)


def caption(figure: go.Figure) -> str:
    """Return the caption of a figure, or an empty string if there is none."""
    return (figure.layout.meta or {}).get("caption", "")


def table(figure: go.Figure) -> pd.DataFrame:
    """Return all points of a figure: a column with the series' name, then columns named after the axes."""
    return pd.concat(_tables(figure), ignore_index=True) if figure.data else pd.DataFrame(columns=["series"])


def _tables(figure: go.Figure) -> list[pd.DataFrame]:
    """Return one table per trace, or the figure's table if it has one."""
    if "table" in (figure.layout.meta or {}):
        return [pd.DataFrame(figure.layout.meta["table"])]
    found = []
    for trace in figure.data:
        across = figure.layout[(trace.xaxis or "x").replace("x", "xaxis")]
        up = figure.layout[(trace.yaxis or "y").replace("y", "yaxis")]
        names = {} if up.type == "log" else dict(zip(up.tickvals or (), up.ticktext or ()))
        y = [names.get(place, place) for place in trace.y] if names else trace.y
        columns: dict[str, Any] = {across.title.text or "x": trace.x, up.title.text or "row": y}
        if trace.type == "bar" and trace.base is not None:
            columns = {"rank": trace.y, "step": trace.customdata}
            columns |= {"start (ms)": trace.base, "duration (ms)": trace.x}
        found.append(pd.DataFrame({"series": trace.name, **columns}))
    return found


def _below(figure: go.Figure) -> str:
    """Return caption and table as HTML in the page's theme. The table is open if the figure has ``open``."""
    groups: dict[tuple, list] = {}
    for frame in _tables(figure):
        groups.setdefault(tuple(frame.columns), []).append(frame.tail(ROWS))
    form = {"index": False, "border": 0, "na_rep": "", "float_format": "{:.5g}".format}
    tables = "".join(pd.concat(frames).to_html(**form) for frames in groups.values())
    shown = " open" if (figure.layout.meta or {}).get("open") else ""
    css = Path(__file__).with_name("page").joinpath("lab.css").read_text()
    return (
        f'<style>{css}</style><div class="dlpar-live"><p class="dlpar-caption">{html.escape(caption(figure))}</p>'
        f'<details class="dlpar-data"{shown}><summary>Data as table</summary>'
        f'<div tabindex="0" role="region" aria-label="Data of the figure">{tables}</div></details></div>'
    )


def blank(height: int = 430, **layout: Any) -> Figure:
    """Return a figure without data. `height` is in pixels."""
    return Figure(layout=go.Layout(**theme.layout(**layout), height=height, template=None))


Runs = Run | Sequence[Run]
"""One run or several runs."""

Names = Sequence[str] | None
"""Name of each run; None: the settings in which the run differs from the others."""

Table = tuple[Sequence[str], Sequence[Sequence]]
"""Heads and rows of a table."""


def captioned(figure: Figure, sentence: str, table: Table | None = None, **facts: Any) -> Figure:
    """Attach a caption to a figure.

    An optional table replaces the traces' points.

    Parameters
    ----------
    figure : Figure
    sentence : str
        The caption.
    table : Table, optional
        Default: the points of all traces.
    **facts
        Further facts, such as the bubble of a schedule. ``open=True`` opens the table at first.
    """
    heads, rows = table or ((), ())
    columns = {head: [row[n] for row in rows] for n, head in enumerate(heads)}
    figure.layout.meta = {"caption": sentence, **({"table": columns} if table else {}), **facts}
    return figure


Part = tuple[theme.Look, Sequence[float]]
"""Attributes of a part of stacked bars, and its length in each row."""

Marks = Sequence[float | None]
"""Position of a stroke across each row; None: no stroke."""


def gantt(figure: Figure, bars: Iterable[tuple[float, float, float, str]], **look: Any) -> None:
    """Add bars ``(row, start, length, text)`` as one trace styled by `look`."""
    rows, starts, lengths, texts = zip(*bars)
    bar = {"type": "bar", "orientation": "h", **look}
    figure.add_trace({**bar, "y": rows, "base": starts, "x": lengths, "text": texts})


def stacked(title: str, names: Sequence[str], parts: Mapping[str, Part], marks: tuple[str, Marks]) -> Figure:
    """Draw a row of stacked bars for each name, and strokes across the bars.

    Parameters
    ----------
    title : str
        Title of the axis of lengths, with its unit.
    names : sequence of str
        Names of the rows, the first on top.
    parts : mapping of str to (dict, sequence of float)
        Name of each part -> its attributes and its length in each row. Parts without length are left out.
    marks : (str, sequence of float or None)
        Name of the strokes and the position of each; None: no stroke.
    """
    ends = map(sum, zip(*(lengths for _, lengths in parts.values())))
    places, known = list(range(len(names))), [(at, row) for row, at in enumerate(marks[1]) if at]
    xaxis = theme.axis(title, (0, theme.rounded_up(max([*ends, *(at for at, _ in known)]))))
    rows, height = theme.rows(names, automargin=True), max(260, 34 * len(names) + 150)
    figure = blank(height, xaxis=xaxis, yaxis=rows, barmode="stack", bargap=0.3)
    for name, (look, lengths) in parts.items():
        if any(lengths):
            bar = {"type": "bar", "orientation": "h", "y": places, "x": list(lengths), **look, "name": name}
            figure.add_trace(bar)
    if known:
        x, y = zip(*known)
        figure.add_scatter(x=x, y=y, name=marks[0], **theme.LOOKS["stroke"])
    return figure


def require(fine: bool, sentence: str) -> None:
    """Raise ValueError with this sentence unless a condition holds."""
    if not fine:
        raise ValueError(sentence)


def experiment_of(of: Experiment | Run, name: str = "of") -> Experiment:
    """Return an experiment, or a run's experiment. Raise ValueError about argument `name` for another type."""
    experiment = of.experiment if isinstance(of, Run) else of
    require(isinstance(experiment, Experiment), f"{name}: got {of!r:.60}, allowed is an Experiment or a Run")
    return experiment


def listed(given: Any, kind: type = Run, name: str = "runs") -> list[Any]:
    """Return one run or several as a list, or things of another kind.

    Raises
    ------
    ValueError
        If there is none, or one of another kind. The sentence calls the argument `name`.
    """
    things = [given] if isinstance(given, (kind, str)) or not isinstance(given, Iterable) else list(given)
    wrong = [thing for thing in things if not isinstance(thing, kind)]
    got = f"{wrong[0]!r:.60}" if wrong else "none"
    require(bool(things) and not wrong, f"{name}: got {got}, allowed is one {kind.__name__} or several")
    return things


def finished(runs: Runs, titles: Names = None) -> list[Run]:
    """Return one run or several as a list.

    Raises
    ------
    ValueError
        If a run has no finished step, or the numbers of titles and runs differ.
    """
    runs = listed(runs)
    got = len(runs if titles is None else titles)
    require(got == len(runs), f"titles: got {got}, allowed is one for each of {len(runs)} runs")
    for run in runs:
        require(not run.curve.empty, f"run {run.id}: has no finished step, so there is nothing to draw")
    return runs


def single(run: Runs) -> Run:
    """Return the only run, given alone or in a list. Raise ValueError if there are more."""
    runs, allowed = listed(run), "allowed is one: this figure shows the ranks of a single run"
    require(len(runs) == 1, f"run: got {len(runs)} runs, {allowed}")
    return runs[0]
