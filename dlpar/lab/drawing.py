"""A figure that grows: curves in bounded memory, what changed since the last look, and the same as a static figure.

A panel sends the changes to the page, at most ten times a second; a static figure is fed to its end and drawn once.
So live and static figures cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Any

import numpy as np

from dlpar.lab import theme
from dlpar.lab.figure import Figure
from dlpar.lab.theme import Look

Message = tuple[dict[str, Any], list[bytes]]
"""What a page is told of a figure, and the points that belong to it."""


class Drawing:
    """Layout, curves and caption of one figure, changed from any thread.

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
        self.relayout(xaxis=theme.axis(""), yaxis=theme.axis(""))

    def series(self, key: str) -> Series:
        """Points of one trace."""
        return self._traces[key][1]

    def add_trace(
        self,
        key: str,
        style: Look,
        columns: Sequence[str],
        at: dict[str, str] | None = None,
        limit: int = 2000,
    ) -> Series:
        """Add a curve.

        Parameters
        ----------
        key : str
            Identifies the trace in later calls; replaces an older one with that key.
        style : mapping
            plotly trace attributes, such as ``name`` and ``line``.
        columns : sequence of str
            Columns of a row, with units; heads of the data table.
        at : mapping, optional
            plotly attribute -> column, for example ``{"x": "*", "y": "loss"}``; ``"*"``
            is the horizontal axis that the reader chose. Default: the first columns are x and y.
        limit : int, default 2000
            Most points kept, here and in the page.
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
        """Remove the traces whose keys begin so."""
        with self._guard:
            self._traces = {k: trace for k, trace in self._traces.items() if not k.startswith(beginning)}
            self._stale = True

    def relayout(self, x_axes: dict[str, Look] | None = None, height: int = 400, **layout: Any) -> None:
        """Replace the layout, the choices of the horizontal axis and the height; traces stay.

        Parameters
        ----------
        x_axes : mapping of str to mapping, optional
            Choices of the horizontal axis: name of a column -> plotly axis. Default: the layout has the only one.
        height : int, default 400
            Pixels of a static figure; a panel fits a figure to the view.
        **layout
            plotly layout, with fixed axis ranges.
        """
        with self._guard:
            self.looks |= {"layout": theme.layout(**layout), "x_axes": x_axes or {}, "height": height}
            if self.x not in self.looks["x_axes"]:
                self.x = next(iter(self.looks["x_axes"]), "")
            self._stale = True

    def set_axis(self, name: str, **attributes: Any) -> None:
        """Change attributes of an axis, which is ``yaxis``, ``xaxis2`` … or one of ``x_axes``."""
        with self._guard:
            axes = self._axes(name)
            changed = {**axes[name], **attributes}
            if changed != axes[name]:
                axes[name] = changed
                self._news.setdefault("axes", {}).setdefault(name, {}).update(attributes)

    def grow(self, name: str, value: float, ended: bool = False) -> None:
        """Double the end of an axis until `value` fits; when a run has `ended`, end it at a round number."""
        low, end = self._axes(name)[name]["range"]
        self.set_axis(name, range=[low, theme.rounded_up(value) if ended else theme.doubled(value, end)])

    def end_of(self, name: str) -> float:
        """End of an axis."""
        return self._axes(name)[name]["range"][1]

    def _axes(self, name: str) -> dict[str, Any]:
        return self.looks["x_axes" if name in self.looks["x_axes"] else "layout"]

    def set_origin(self, seconds: float) -> None:
        """Say at which moment of the run a window of time begins, in which the horizontal axis counts milliseconds."""
        with self._guard:
            if seconds != self.looks["origin"]:
                self.looks["origin"] = self._news["origin"] = seconds

    def set_caption(self, sentence: str) -> None:
        """Change the sentence under the figure."""
        with self._guard:
            if sentence != self.caption:
                self.caption = self._news["caption"] = sentence

    def static(self) -> Figure:
        """Return the figure as it is now, with its caption."""
        with self._guard:
            layout = {**self.looks["layout"], "height": self.looks["height"]}
            layout["meta"] = {"caption": self.caption}
            if self.x:
                layout["xaxis"] = {**layout.get("xaxis", {}), **self.looks["x_axes"][self.x]}
            traces = []
            for spec, series in self._traces.values():
                columns = dict(zip(spec["columns"], series.rows.T.copy()))
                at = {where: self.x if name == "*" else name for where, name in spec["at"].items()}
                traces.append({**spec["style"], **{where: columns[name] for where, name in at.items()}})
        return Figure({"data": traces, "layout": layout})

    def snapshot(self) -> Message:
        """Return all of the figure; the next :meth:`changes` are those after it."""
        with self._guard:
            self._stale, self._news = False, {}
            for _, series in self._traces.values():
                series.take_new()
            traces = [{**spec, "points": len(series)} for spec, series in self._traces.values()]
            whole = {"whole": True, "traces": traces, "caption": self.caption, "x": self.x, **self.looks}
            return whole, [_packed(series.rows) for _, series in self._traces.values()]

    def changes(self) -> Message | None:
        """Return what is new since the last call or snapshot; None if nothing is."""
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
    """Rows as little-endian float64, column by column; the page reads one Float64Array per column."""
    return np.ascontiguousarray(rows.T, dtype="<f8").tobytes()


class Series:
    """Rows of one curve; when they fill up, the stride doubles.

    Parameters
    ----------
    columns : int
        Numbers in a row.
    limit : int, default 2000
        Most rows kept; even.

    Notes
    -----
    Rows 0, s, 2s, 3s … are kept, where the stride s is a
    power of two. So every drawn point is a measured row, never an average.
    """

    def __init__(self, columns: int, limit: int = 2000) -> None:
        self.limit, self.stride, self.seen = limit, 1, 0
        self._rows = np.empty((limit, columns))  # memory that is not used is not taken
        self._size = self._sent = 0

    def __len__(self) -> int:
        return self._size

    @property
    def rows(self) -> np.ndarray:
        """Rows kept, float64 of shape (points, columns)."""
        return self._rows[: self._size]

    def add(self, row: Sequence[float]) -> None:
        """Add the next row; it is dropped unless the stride falls on it."""
        number, self.seen = self.seen, self.seen + 1
        if number % self.stride:
            return
        if self._size == self.limit:
            self._thin()
            if number % self.stride:
                return
        self._push(row)

    def finish(self, row: Sequence[float]) -> None:
        """End the curve with its last `row`, whether or not the stride falls on it."""
        if self._size and self._rows[self._size - 1, 0] == row[0]:
            return
        if self._size == self.limit:
            self._thin()
        self._push(row)

    def replace(self, rows: np.ndarray) -> None:
        """Replace all rows by the last `limit` of `rows`, of shape (points, columns)."""
        rows = np.array(rows, dtype=float).reshape(-1, self._rows.shape[1])[-self.limit :]
        self._rows[: len(rows)] = rows
        self._size, self._sent, self.stride = len(rows), -1, 1

    def take_new(self) -> tuple[bool, np.ndarray]:
        """Return ``(whole, rows)`` for a reader of all earlier calls: new rows only or, if `whole`, all rows."""
        whole, start = self._sent < 0, max(self._sent, 0)
        self._sent = self._size
        return whole, self.rows[start:]

    def _push(self, row: Sequence[float]) -> None:
        self._rows[self._size] = row
        self._size += 1

    def _thin(self) -> None:
        kept = self.rows[::2]
        self._rows[: len(kept)] = kept
        self._size, self._sent = len(kept), -1
        self.stride *= 2
