"""Figures that receive records one by one: live in a panel, or all at once for a static figure.

A panel sends changes to the page, at most ten times a second.  A static figure takes all records and is drawn once.
So live and static figures cannot differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.jobs.tail import rank_of
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, Names, Runs, finished, require
from dlpar.lab.labels import labels, with_world
from dlpar.lab.theme import Look
from dlpar.lab.watch import in_order

Message = tuple[dict[str, Any], list[bytes]]
"""Short facts about a figure for its page, and the figure's points."""


Columns = dict[str, str]
"""Map from plotly's attributes to columns of a row."""


class Drawing:
    """Layout, curves and caption of one figure. Any thread may change them.

    Parameters
    ----------
    logarithmic : bool, default False
        Offer a logarithmic first vertical axis.

    Attributes
    ----------
    x : str
        Column that the horizontal axis shows.
    caption : str
        Sentence under the figure.
    """

    def __init__(self, logarithmic: bool = False) -> None:
        self.looks: dict[str, Any] = {"logarithmic": logarithmic, "origin": None}
        self.x, self.caption = "", ""
        self._traces: dict[str, tuple[dict[str, Any], Series]] = {}
        self._guard, self._news = RLock(), dict[str, Any]()
        nothing = theme.axis("") | {"visible": False}  # until there is something to draw
        self.relayout(xaxis=nothing, yaxis=nothing)

    def series(self, key: str) -> Series:
        """Points of one trace."""
        return self._traces[key][1]

    def add_trace(
        self, key: str, style: Look, columns: Sequence[str], at: Columns | None = None, limit: int = 2000
    ) -> Series:
        """Add a curve.

        Parameters
        ----------
        key : str
            Identifies the trace in later calls. It replaces an older trace with that key.
        style : mapping
            plotly trace attributes, such as ``name`` and ``line``.
        columns : sequence of str
            Columns of a row, with units. They are the heads of the data table.
        at : mapping, optional
            Map from plotly's attributes to columns, for example ``{"x": "*", "y": "loss"}``. ``"*"`` is the
            horizontal axis that the reader chose. Default: the first columns are x and y.
        limit : int, default 2000
            Maximum number of points kept, here and in the page.
        """
        with self._guard:
            series = Series(len(columns), limit)
            at = at or dict(zip("xy", columns))
            self._traces[key] = ({"key": key, "style": style, "columns": list(columns), "at": at}, series)
            self._stale = True
        return series

    def restyle(self, key: str, **style: Any) -> None:
        """Change plotly attributes of a trace."""
        with self._guard:
            self._traces[key][0]["style"].update(style)
            self._stale = True

    def remove(self, beginning: str = "") -> None:
        """Remove the traces with keys that begin with a prefix."""
        with self._guard:
            self._traces = {k: trace for k, trace in self._traces.items() if not k.startswith(beginning)}
            self._stale = True

    def relayout(self, x_axes: dict[str, Look] | None = None, height: int = 400, **layout: Any) -> None:
        """Replace the layout, the choices of the horizontal axis and the height. Keep the traces.

        Parameters
        ----------
        x_axes : mapping of str to mapping, optional
            Choices of the horizontal axis: name of a column -> plotly axis. Default: the axis of the layout.
        height : int, default 400
            Pixels of a static figure. A panel fits a figure to the view.
        **layout
            plotly layout, with fixed axis ranges.
        """
        with self._guard:
            self.looks |= {"layout": theme.layout(**layout), "x_axes": x_axes or {}, "height": height}
            if self.x not in self.looks["x_axes"]:
                self.x = next(iter(self.looks["x_axes"]), "")
            self._stale = True

    def set_axis(self, name: str, **attributes: Any) -> None:
        """Change attributes of an axis: ``yaxis``, ``xaxis2`` … or one of ``x_axes``."""
        with self._guard:
            axes = self._axes(name)
            changed = {**axes[name], **attributes}
            if changed != axes[name]:
                axes[name] = changed
                self._news.setdefault("axes", {}).setdefault(name, {}).update(attributes)

    def grow(self, name: str, value: float, ended: bool = False) -> None:
        """Double the upper limit of an axis until `value` fits.

        When a run has `ended`, end the axis at a round number.
        """
        low, end = self._axes(name)[name]["range"]
        self.set_axis(name, range=[low, theme.rounded_up(value) if ended else theme.doubled(value, end)])

    def end_of(self, name: str) -> float:
        """Return the upper limit of an axis."""
        return self._axes(name)[name]["range"][1]

    def _axes(self, name: str) -> dict[str, Any]:
        return self.looks["x_axes" if name in self.looks["x_axes"] else "layout"]

    def set_origin(self, seconds: float) -> None:
        """Set the moment of the run at which a time window begins.

        The horizontal axis shows milliseconds since that moment.
        """
        with self._guard:
            if seconds != self.looks["origin"]:
                self.looks["origin"] = self._news["origin"] = seconds

    def set_caption(self, sentence: str) -> None:
        """Change the caption under the figure."""
        with self._guard:
            if sentence != self.caption:
                self.caption = self._news["caption"] = sentence

    def static(self) -> Figure:
        """Return the current figure with its caption."""
        with self._guard:
            layout = {**self.looks["layout"], "height": self.looks["height"]}
            layout["meta"] = {"caption": self.caption}
            if self.x in self.looks["x_axes"]:
                layout["xaxis"] = {**layout.get("xaxis", {}), **self.looks["x_axes"][self.x]}
            traces = []
            for spec, series in self._traces.values():
                columns = dict(zip(spec["columns"], series.rows.T.copy()))
                at = {where: self.x if name == "*" else name for where, name in spec["at"].items()}
                traces.append({**spec["style"], **{where: columns[name] for where, name in at.items()}})
        return Figure({"data": traces, "layout": layout})

    def snapshot(self) -> Message:
        """Return the full state of the figure. The next :meth:`changes` are those after this state."""
        with self._guard:
            self._stale, self._news = False, {}
            for _, series in self._traces.values():
                series.take_new()
            traces = [{**spec, "points": len(series)} for spec, series in self._traces.values()]
            whole = {"whole": True, "traces": traces, "caption": self.caption, "x": self.x, **self.looks}
            return whole, [_packed(series.rows) for _, series in self._traces.values()]

    def changes(self) -> Message | None:
        """Return the changes since the last call or snapshot, or None if there are none."""
        with self._guard:
            if self._stale:
                return self.snapshot()
            new = [(spec["key"], *series.take_new()) for spec, series in self._traces.values()]
            new = [(key, whole, rows) for key, whole, rows in new if whole or len(rows)]
            if not (new or self._news):
                return None
            traces = [{"key": key, "whole": whole, "points": len(rows)} for key, whole, rows in new]
            news, self._news = self._news, {}
            return {"traces": traces, **news}, [_packed(rows) for *_, rows in new]


def _packed(rows: np.ndarray) -> bytes:
    """Pack rows as little-endian float64, column by column. The page reads one Float64Array per column."""
    return np.ascontiguousarray(rows.T, dtype="<f8").tobytes()


class Series:
    """Rows of one curve. When the rows are full, the stride doubles.

    Parameters
    ----------
    columns : int
        Numbers in a row.
    limit : int, default 2000
        Maximum number of rows kept, an even number.

    Notes
    -----
    The series keeps rows 0, s, 2s, 3s …. The stride s is a power of two. So every drawn point is a measured
    row, never an average.
    """

    def __init__(self, columns: int, limit: int = 2000) -> None:
        self.limit, self.stride, self.seen = limit, 1, 0
        self._rows = np.empty((limit, columns))  # unused memory is not allocated
        self._size = self._sent = 0

    def __len__(self) -> int:
        return self._size

    @property
    def rows(self) -> np.ndarray:
        """Rows that are kept, float64 of shape (points, columns)."""
        return self._rows[: self._size]

    def add(self, row: Sequence[float]) -> None:
        """Add the next row. The row is dropped unless the stride falls on it."""
        if self.seen % self.stride == 0:
            self._push(row)
        self.seen += 1

    def finish(self, row: Sequence[float]) -> None:
        """End the curve with its last `row`, even if the stride does not fall on it."""
        if not self._size or self._rows[self._size - 1, 0] != row[0]:
            self._push(row)

    def replace(self, rows: np.ndarray) -> None:
        """Replace all rows with the last `limit` of `rows`, of shape (points, columns)."""
        rows = np.array(rows, dtype=float).reshape(-1, self._rows.shape[1])[-self.limit :]
        self._rows[: len(rows)] = rows
        self._size, self._sent = len(rows), -1

    def take_new(self) -> tuple[bool, np.ndarray]:
        """Return ``(whole, rows)``: the rows added since the last call or, if `whole` is true, all rows."""
        whole, start = self._sent < 0, max(self._sent, 0)
        self._sent = self._size
        return whole, self.rows[start:]

    def _push(self, row: Sequence[float]) -> None:
        if self._size == self.limit:
            self.replace(self.rows[::2])
            self.stride *= 2  # this row is also on the stride, because the limit is even
        self._rows[self._size] = row
        self._size += 1


# ---- figures of runs ---------------------------------------------------------------------


class Shown(NamedTuple):
    """Name and style of a run in a figure.

    Attributes
    ----------
    key : str
        Key of the run, and prefix of its traces' keys.
    experiment : Experiment
        Settings of the run.
    name : str
        Name of the run, with its world unless it is the real world.
    number : int
        Place among the runs, from 0. It determines marker and dash.
    colour : str
        Colour of the run in all figures.
    """

    key: str
    experiment: Experiment
    name: str
    number: int
    colour: str

    @property
    def line(self) -> dict[str, Any]:
        """Plotly attributes of the run's line. A simulated line is faint and broad."""
        return {"name": self.name, **theme.beside(self.colour, self.number, self.experiment.cluster.world)}


def shown(experiments: Sequence[Experiment], keys: Sequence[str], names: Names = None) -> list[Shown]:
    """Return the names and styles of compared runs. A name lists the settings in which a run differs."""
    names = names or (labels(experiments) if len(experiments) > 1 else ["all workers"])
    rows = zip(keys, experiments, names, theme.run_colours(experiments))
    return [Shown(key, e, with_world(name, e), n, colour) for n, (key, e, name, colour) in enumerate(rows)]


Reader = Callable[[float, float], Iterable[tuple[int, dict[str, Any]]]]
"""Function that reads the records of a time window, with their ranks."""


class Plot(Drawing):
    """Figure of one or several runs. The most recently started run is in front and receives the records.

    Attributes
    ----------
    title : str
        Title of its tab.
    pause : float
        Seconds between two drawings of a running run.
    runs : dict of str to Shown
        Runs in the figure, by key, in the order of their start.
    kept : dict of str to Any
        State that the figure keeps for each run, by the same keys.
    """

    title: ClassVar[str] = ""
    pause: ClassVar[float] = 0.0

    def __init__(self, logarithmic: bool = False) -> None:
        super().__init__(logarithmic)
        self.runs: dict[str, Shown] = {}
        self.kept: dict[str, Any] = {}

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether the figure can show a run of this experiment."""
        return True

    @property
    def front(self) -> Shown:
        """The run that began last."""
        return next(reversed(self.runs.values()))

    def begin(self, run: Shown) -> None:
        """Add a run in front of the others."""
        self.runs[run.key], self._drawn = run, 0.0

    def forget(self, key: str) -> None:
        """Remove a run if it is shown and not in front."""
        self.runs.pop(key, None)
        self.kept.pop(key, None)
        self.remove(f"{key} ")

    def is_due(self, ended: bool) -> bool:
        """Return whether to draw now: the last drawing is `pause` old, or the run has ended."""
        before, now = self._drawn, time.monotonic()
        due = ended or now - before >= self.pause
        self._drawn = now if due else before
        return due

    def say(self, sentence: str) -> None:
        """Change the caption of the run in front.

        Add the number of drawn workers if some are left out.
        """
        whose = f"{self.front.name}: " if len(self.runs) > 1 else ""
        self.set_caption(whose + captions.shown_workers(self.front.experiment, sentence))

    def worlds(self) -> list[str]:
        """Worlds of the runs."""
        return [run.experiment.cluster.world for run in self.runs.values()]

    def rename(self, key: str, name: str) -> None:
        """Give a run another name."""
        old, self.runs[key] = self.runs[key].name, self.runs[key]._replace(name=name)
        for trace, (spec, _) in self._traces.items():
            if trace.startswith(f"{key} "):
                self.restyle(trace, name=spec["style"]["name"].replace(old, name))

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Process the record of a worker's step, of a test on held-out samples, or of a rank's event."""

    def step(self, done: GlobalStep) -> None:
        """Process the record of a finished global step."""

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Update the axes and the caption."""

    def look(self, end: float, between: Reader) -> None:
        """Show the ended run in front as it was at a moment.

        `between` reads records of a time window.
        """


class Board:
    """Group of figures that receive the records of one run after the other.

    Attributes
    ----------
    steps : GlobalSteps
        Global steps of the run in front.
    ranks : dict of int to dict
        Report of each rank of this run about itself.
    slip : float or None
        Largest lag of the wall clock behind the figures' clock, in seconds; None on the wall clock.
    accuracy : float or None
        Latest accuracy of this run on held-out samples.
    goal : float
        Held-out accuracy to reach.
    reached : float or None
        Seconds of the first test with that accuracy. It is noted at once, because rereading a long run takes
        memory.
    """

    def __init__(self, plots: Sequence[Plot], goal: float = 1.0) -> None:
        self.plots, self.goal = list(plots), goal

    def begin(self, run: Shown) -> None:
        """Add a run to the figures that fit. The following records belong to this run."""
        experiment = run.experiment
        self.steps = GlobalSteps(experiment.workers - experiment.backup, experiment.sync.runs_free)
        self.ranks: dict[int, dict[str, Any]] = {}
        self.most = experiment.ranks  # figures of ranks leave out the workers that a resumed run has added
        self.slip = self.accuracy = self.reached = None
        self.fed = [plot for plot in self.plots if plot.fits(experiment)]
        for plot in self.fed:
            plot.begin(run)

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Process a record of a rank."""
        kind = record["k"]
        if kind == "step":
            self.steps.add(rank, record)
        elif kind == "rank":
            self.ranks[rank] = record
            self.steps.resume(record)
        elif kind == "eval":
            record["attempt"] = self.steps.attempt
            self.accuracy = record["accuracy"]
            self.reached = self.reached or (record["t"] if (self.accuracy or 0.0) >= self.goal else None)
        for plot in self.fed if rank < self.most else ():
            plot.take(rank, record)
        if record.get("slip") is not None:
            self.slip = max(self.slip or 0.0, record["slip"])

    def settle(self, ended: bool) -> None:
        """Update the axes and captions."""
        ready = self.steps.ready(ended)
        for plot in self.fed:
            for done in ready:
                plot.step(done)
            plot.settle(self.steps, ended)


def drawn(plot: Plot, runs: Runs, names: Names = None) -> Figure:
    """Feed a figure with whole runs, one after the other, and draw it.

    Raises
    ------
    ValueError
        If a run has no finished step, the numbers of names and runs differ, or the figure fits no run.
    """
    runs = finished(runs, names)
    require(any(plot.fits(run.experiment) for run in runs), f"runs: got none that {plot.title!r} can show")
    board = Board([plot])
    for run, look in zip(runs, shown([run.experiment for run in runs], [run.id for run in runs], names)):
        board.begin(look)
        for _, source, record in in_order(run):
            board.take(rank_of(source), record)
        board.settle(ended=True)
    return plot.static()
