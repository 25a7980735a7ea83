"""Reads and pushes: one lane per worker, with arrows from reads to pushes.

The top lane marks every push. The number at an arrow's head is its staleness: the number of
marks of other workers between the two ends of the arrow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, single
from dlpar.lab.labels import WITH_PUSHES
from dlpar.lab.plot import Plot, Shown, drawn

PER_WORKER, LEAST = 5, 16
"""Arrows drawn per worker, and the fewest in all."""

APART = 0.022
"""Least distance of two numbers in a lane, as a share of the width."""

TOP = -1.0
"""Height of the top lane; that of worker r is r."""

GAP = (np.nan, np.nan)
"""Point at which a line is interrupted."""


class Arrow(NamedTuple):
    """A worker's read of the weights and its push of the gradient computed on them (s)."""

    rank: int
    read: float
    push: float
    updates: int


class Lanes(Plot):
    """Arrows of the last pushes; drawn once a second, which is as fast as one can read.

    Parameters
    ----------
    last : int, optional
        Number of pushes to draw; default: five a worker.
    """

    title = "Lanes"

    def __init__(self, last: int | None = None) -> None:
        super().__init__()
        self.last = last

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether several workers update the same weights."""
        return experiment.workers > 1 and (experiment.sync.server_ranks > 0 or experiment.sync.shares_memory)

    def begin(self, run: Shown) -> None:
        """Add a run; only the one in front is drawn."""
        super().begin(run)
        self.remove()
        experiment, self.workers = run.experiment, theme.workers(run.experiment)
        self.is_write, self._drawn, self._width = experiment.sync.shares_memory, 0.0, 1.0
        self._before = 0.0
        self._read: dict[int, float] = {}
        self.most = self.last or max(LEAST, PER_WORKER * self.workers)
        # Files of ranks are read one after the other, so each rank has its own.
        self.recent = [deque[Arrow](maxlen=self.most) for _ in range(self.workers)]
        top = "writes" if self.is_write else "pushes"
        top = f"all {top}" if self.workers == experiment.workers else f"their {top}"
        names = [top, *(f"rank {rank}" for rank in range(self.workers))]
        rows = {"tickvals": [TOP, *range(self.workers)], "range": [self.workers - 0.4, TOP - 0.5]}
        title = theme.on_clock("time since the first push shown (ms)", experiment.cluster.world)
        xaxis = theme.axis(title, (-0.03, 1.03), showgrid=False)
        self.relayout(
            theme.layout(xaxis=xaxis, yaxis=theme.rows(names, **rows)), height=60 * self.workers + 190
        )
        for key, style in self._styles().items():
            labels = key == "labels"
            columns = ("ms", "lane", "updates") if labels else ("ms", "lane")
            self.add_trace(key, style, columns, dict(zip(("x", "y", "text"), columns)))

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step; a rank's steps come in order."""
        spans = record.get("spans") or ()
        if rank >= self.workers or record["k"] != "step" or not spans:
            return
        begun = {name: start for name, start, *_ in reversed(spans)}  # the first of each name
        # A step between two pushes communicates nothing and keeps the weights read before it.
        pushed = self.is_write or record.get("messages") != 0
        push = begun.get("update" if self.is_write else "communicate") if pushed else None
        read = self._read.setdefault(rank, spans[0][1])
        if push is not None:
            self._read[rank] = spans[-1][2]
            self.recent[rank].append(Arrow(rank, read, push, record["staleness"]))

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Draw the last arrows if the last drawing is a second old, or if the run has ended."""
        if any(self.recent) and (ended or time.monotonic() - self._drawn >= 1):
            self._drawn = time.monotonic()
            self._draw_last(ended)
            self._before = 3 * self._width / 1e3

    def look(
        self, end: float, between: Callable[[float, float], Iterable[tuple[int, dict[str, Any]]]]
    ) -> None:
        """Draw the last arrows before a moment."""
        for own in (self._read, *self.recent):
            own.clear()
        for rank, record in between(end - self._before, end):
            self.rank_step(rank, record)
        if any(self.recent):
            return self._draw_last(ended=True)
        for key in self._styles():
            self.series(key).replace(np.empty(0))
        return self.set_caption("Until then no worker has pushed.")

    def _draw_last(self, ended: bool) -> None:
        arrows = sorted((arrow for own in self.recent for arrow in own), key=lambda arrow: arrow.push)
        arrows = arrows[-self.most :]
        width = self._draw(arrows)
        if ended or not self._width / 3 <= width <= self._width:
            self._width = theme.rounded_up(width)
            self.set_range("xaxis", -0.03 * self._width, 1.03 * self._width)
        sentence = captions.lanes([arrow.updates for arrow in arrows])
        self.set_caption(captions.shown_workers(self.front.experiment, sentence))

    def _draw(self, arrows: list[Arrow]) -> float:
        """Draw arrows; returns the milliseconds from the first push to the last."""
        first = arrows[0].push
        ms = [a._replace(read=(a.read - first) * 1e3, push=(a.push - first) * 1e3) for a in arrows]
        width = ms[-1].push
        self.set_origin(first)
        for rank in range(self.workers):
            own = [a for a in ms if a.rank == rank]
            points = [p for a in own for p in ((a.read, rank), (a.push, rank), GAP)]
            self.series(f"lane {rank}").replace(np.array(points).reshape(-1, 2))
        links = [p for a in ms for p in ((a.push, a.rank), (a.push, TOP), GAP)]
        self.series("links").replace(np.array(links))
        reads = [(a.read, a.rank) for a in ms if a.read >= 0]
        self.series("reads").replace(np.array(reads).reshape(-1, 2))
        self.series("pushes").replace(np.array([(a.push, a.rank) for a in ms]))
        # Without the numbers that would cover the one before them in the lane.
        numbers, before = [], dict[int, float]()
        for a in ms:
            if a.push - before.get(a.rank, -np.inf) >= APART * width:
                before[a.rank] = a.push
                numbers.append((a.push, a.rank - 0.3, a.updates))
        self.series("labels").replace(np.array(numbers, dtype=float))
        return width

    def _styles(self) -> dict[str, dict[str, Any]]:
        """plotly attributes of all traces, by key."""
        quiet = {"showlegend": False, "hoverinfo": "skip", "mode": "lines"}
        links = {**quiet, "line": {"color": theme.GREY, "width": 1}, "opacity": 0.45, "name": "push"}
        colours = {rank: theme.RANKS[rank % len(theme.RANKS)] for rank in range(self.workers)}
        lanes = {
            f"lane {rank}": {**quiet, "line": {"color": colour, "width": 4}, "name": f"rank {rank}"}
            for rank, colour in colours.items()
        }
        ring = {"symbol": "circle-open", "size": 8, "color": theme.GREY, "line": {"width": 2}}
        head = {"symbol": "triangle-right", "size": 13, "color": theme.GREY}
        what = "write of the update" if self.is_write else "push of the gradient"
        marks = {
            "reads": {"mode": "markers", "name": "read of the weights", "marker": ring},
            "pushes": {"mode": "markers", "name": what, "marker": head},
        }
        labels = {"mode": "text", "name": "staleness (updates)", "texttemplate": "%{text:d}",
                  "textfont": {"size": 13}, "showlegend": False, "cliponaxis": False}  # fmt: skip
        return {"links": links, **lanes, **marks, "labels": labels}


def lanes(run: Run, last: int | None = None) -> Figure:
    """Draw one lane per worker, with an arrow and its staleness from each read of the weights to the push.

    Parameters
    ----------
    run : Run
        A run of a parameter server or of workers that share memory, with spans.
    last : int, optional
        Number of the last pushes to draw; default: five a worker.
    """
    run = single(run)
    experiment = run.experiment
    if last is not None and (not isinstance(last, Integral) or last < 1):
        raise ValueError(f"last: got {last!r}, allowed is a whole number from 1")
    if not Lanes.fits(experiment):
        n = experiment.workers
        got = f"run {run.id}: got sync {experiment.sync} with {n} worker{'s' * (n != 1)}"
        raise ValueError(f"{got}, allowed is {WITH_PUSHES} with two workers or more")
    figure = drawn(plot := Lanes(last), run)
    if not any(plot.recent):
        raise ValueError(f"run {run.id}: no spans were recorded, so there are no arrows")
    return figure
