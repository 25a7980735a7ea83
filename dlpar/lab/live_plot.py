"""A figure that grows during a run, drawn by plotly.js in the page.

Points travel as binary messages and never as widget state. The page asks for a
snapshot whenever it is loaded or reloaded. plotly.js is the copy inside the installed
plotly package, sent once per page: nothing is fetched from anywhere.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import anywidget
import numpy as np
import traitlets

from dlpar.lab.cell import answer_while_busy

if TYPE_CHECKING:
    from dlpar.lab.figure import Figure


HERE = Path(__file__).parent


@lru_cache(maxsize=1)
def compressed_plotly() -> bytes:
    """plotly.js of the installed plotly package, gzip-compressed (1.5 MB)."""
    import plotly

    source = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    return gzip.compress(source.read_bytes(), 6)


class LivePlot(anywidget.AnyWidget):
    """A plotly figure whose curves are appended to from any thread.

    Parameters
    ----------
    layout : mapping
        plotly layout, with fixed axis ranges.
    x_axes : mapping of str to mapping
        Choices of the horizontal axis: name of a column -> plotly axis; the
        reader of the figure switches between them. Empty: ``layout`` has the only x-axis.
    height : int, default 400
        Pixels.
    logarithmic : bool, default False
        Offer a logarithmic first vertical axis.

    Notes
    -----
    Nothing is sent before :meth:`flush`; a reader thread calls it at most ten
    times a second.
    """

    _esm = "\n".join(
        (HERE / name).read_text() for name in ("plotly_once.js", "live_table.js", "live_plot.js")
    )
    _css = (HERE / "lab.css").read_text()
    x = traitlets.Unicode("", help="Column the horizontal axis shows.").tag(sync=True)

    def __init__(
        self,
        layout: dict[str, Any],
        x_axes: dict[str, dict] | None = None,
        height: int = 400,
        logarithmic: bool = False,
    ) -> None:
        self._figure = {
            "layout": layout,
            "x_axes": x_axes or {},
            "height": height,
            "logarithmic": logarithmic,
        }
        self._traces: dict[str, tuple[dict[str, Any], Series]] = {}
        self._guard = Lock()
        self._sequence, self._stale, self._live = 0, False, False
        self._caption, self._news = "", {}
        super().__init__(x=next(iter(self._figure["x_axes"]), ""))
        answer_while_busy(self)
        self.on_msg(self._asked)

    @property
    def caption(self) -> str:
        """Caption under the figure."""
        return self._caption

    def series(self, key: str) -> Series:
        """Points of one trace."""
        return self._traces[key][1]

    def add_trace(
        self, key: str, style: dict[str, Any], columns: Sequence[str], at: dict[str, str], limit: int = 2000
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
        at : mapping
            plotly attribute -> column, for example ``{"x": "*", "y": "loss"}``; ``"*"``
            is the horizontal axis that the reader chose.
        limit : int, default 2000
            Most points kept, here and in the page.
        """
        with self._guard:
            series = Series(len(columns), limit)
            self._traces[key] = ({"key": key, "style": style, "columns": list(columns), "at": at}, series)
            self._stale = True
        return series

    def restyle(self, key: str, **style: Any) -> None:
        """Change plotly attributes of a trace."""
        with self._guard:
            self._traces[key][0]["style"].update(style)
            self._stale = True

    def remove(self, key: str) -> None:
        """Remove a trace; nothing happens if there is none with that key."""
        with self._guard:
            self._stale = self._traces.pop(key, None) is not None or self._stale

    def style(self, key: str) -> dict[str, Any]:
        """plotly attributes of a trace."""
        return self._traces[key][0]["style"]

    def refigure(
        self, layout: dict[str, Any], x_axes: dict[str, dict] | None = None, height: int | None = None
    ) -> None:
        """Replace the layout, the choices of the horizontal axis and, if given, the height; traces stay."""
        with self._guard:
            self._figure.update(layout=layout, x_axes=x_axes or {}, height=height or self._figure["height"])
            self._stale = True

    def set_title(self, axis: str, text: str) -> None:
        """Change the title of an axis of the layout, such as ``xaxis2``."""
        with self._guard:
            title = self._figure["layout"][axis]["title"]
            if title["text"] != text:
                self._figure["layout"][axis]["title"] = {**title, "text": text}
                self._news.setdefault("titles", {})[axis] = text

    def set_range(self, axis: str, low: float, high: float, tick_every: float | None = None) -> None:
        """Fix an axis (``yaxis``, ``yaxis2``, ``xaxis`` or a name in ``x_axes``) to `low` … `high`.

        For a logarithmic axis these are exponents of ten, and so is `tick_every`, the distance of ticks.
        """
        with self._guard:
            where = self._figure["x_axes"] if axis in self._figure["x_axes"] else self._figure["layout"]
            if where[axis].get("range") != [low, high]:
                ticks = {"dtick": tick_every} if tick_every else {}
                where[axis] = {**where[axis], "range": [low, high], **ticks}
                self._news.setdefault("ranges", {})[axis] = [low, high]
                if ticks:
                    self._news.setdefault("ticks", {})[axis] = tick_every

    def set_caption(self, sentence: str) -> None:
        """Change the caption under the figure."""
        with self._guard:
            if sentence != self._caption:
                self._caption = self._news["caption"] = sentence

    def set_live(self, live: bool) -> None:
        """Tell the page whether a run is under way; it then expects a :meth:`flush` every second."""
        with self._guard:
            self._live = self._news["live"] = live

    def picture(self) -> Figure:
        """The figure as the page draws it now, as a static figure with its caption."""
        from dlpar.lab.figure import Figure

        with self._guard:
            layout = {
                **self._figure["layout"],
                "height": self._figure["height"],
                "meta": {"caption": self._caption},
            }
            if self.x in self._figure["x_axes"]:
                layout["xaxis"] = {**layout.get("xaxis", {}), **self._figure["x_axes"][self.x]}
            traces = []
            for spec, series in self._traces.values():
                columns = {name: series.rows[:, i].copy() for i, name in enumerate(spec["columns"])}
                points = {
                    where: columns[self.x if name == "*" else name] for where, name in spec["at"].items()
                }
                traces.append({**spec["style"], **points})
        return Figure({"data": traces, "layout": layout})

    def flush(self, alive: bool = False) -> bool:
        """Send new points in one message or, with `alive`, a sign of life; returns whether it sent anything."""
        with self._guard:
            if self._stale:
                self._send_snapshot()
                return True
            new = [(spec["key"], *series.take_new()) for spec, series in self._traces.values()]
            new = [(key, whole, rows) for key, whole, rows in new if whole or len(rows)]
            if not (new or self._news or alive):
                return False
            self._sequence += 1
            traces = [{"key": key, "whole": whole, "points": len(rows)} for key, whole, rows in new]
            news, self._news = self._news, {}
            self.send(
                {"is": "points", "sequence": self._sequence, "traces": traces, **news},
                [_packed(rows) for *_, rows in new],
            )
            return True

    def _send_snapshot(self) -> None:
        self._stale, self._news = False, {}
        self._sequence += 1
        for _, series in self._traces.values():
            series.take_new()
        traces = [{**spec, "points": len(series)} for spec, series in self._traces.values()]
        self.send(
            {
                "is": "figure",
                "sequence": self._sequence,
                "traces": traces,
                "caption": self._caption,
                "live": self._live,
                **self._figure,
            },
            [_packed(series.rows) for _, series in self._traces.values()],
        )

    def _asked(self, _widget: Any, message: dict[str, Any], _buffers: Any) -> None:
        if message.get("ask") == "figure":
            with self._guard:
                self._send_snapshot()
        elif message.get("ask") == "plotly":
            self.send({"is": "plotly"}, [compressed_plotly()])


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
        self._rows = np.empty((min(limit, 64), columns))
        self._size = 0
        self._sent = 0

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
        self._rows = np.array(rows, dtype=float).reshape(-1, self._rows.shape[1])[-self.limit :]
        self._size, self._sent, self.stride = len(self._rows), -1, 1

    def take_new(self) -> tuple[bool, np.ndarray]:
        """Return ``(whole, rows)`` for a reader of all earlier calls: new rows only or, if `whole`, all rows."""
        whole, start = self._sent < 0, max(self._sent, 0)
        self._sent = self._size
        return whole, self.rows[start:]

    def _push(self, row: Sequence[float]) -> None:
        if self._size == len(self._rows):
            more = min(self.limit, max(64, 2 * self._size)) - self._size
            self._rows = np.concatenate([self._rows, np.empty((more, self._rows.shape[1]))])
        self._rows[self._size] = row
        self._size += 1

    def _thin(self) -> None:
        kept = self.rows[::2]
        self._rows[: len(kept)] = kept
        self._size, self._sent = len(kept), -1
        self.stride *= 2
