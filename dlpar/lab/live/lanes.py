"""Live figure of reads and pushes: one lane per worker, with arrows from reads to pushes.

The top lane marks every push. The number at an arrow's head is its staleness: the number of
marks of other workers between the two ends of the arrow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.lab import captions, theme
from dlpar.lab.live_plot import LivePlot

PER_WORKER, LEAST = 5, 16
"""Arrows drawn per worker, and the fewest in all."""

APART = 0.022
"""Least distance of two numbers in a lane, as a share of the width."""

TOP = -1.0
"""Height of the top lane; that of worker r is r."""


class Arrow(NamedTuple):
    """A worker's read of the weights and its push of the gradient computed on them (s)."""

    rank: int
    read: float
    push: float
    updates: int


class Arrows:
    """Find arrows in step records, given in each worker's order; `is_write`: workers write to shared memory."""

    def __init__(self, is_write: bool = False) -> None:
        self.is_write = is_write
        self._read: dict[int, float] = {}

    def find(self, rank: int, record: dict[str, Any]) -> Arrow | None:
        """The arrow that ends in this step; None if the step pushed nothing."""
        spans = record.get("spans") or ()
        begun = {name: start for name, start, *_ in reversed(spans)}  # the first of each name
        # A step between two pushes communicates nothing and keeps the weights read before it.
        pushed = self.is_write or record.get("messages") != 0
        push = begun.get("update" if self.is_write else "communicate") if pushed else None
        if spans:
            self._read.setdefault(rank, spans[0][1])
        if push is None:
            return None
        read, self._read[rank] = self._read[rank], spans[-1][2]
        return Arrow(rank, read, push, record["staleness"])


def window(arrows: Iterable[Arrow], workers: int) -> list[Arrow]:
    """The last arrows, few enough to be read."""
    return sorted(arrows, key=lambda arrow: arrow.push)[-max(LEAST, PER_WORKER * workers) :]


class Picture(NamedTuple):
    """Points to draw: arrays with columns x (ms since the first push) and y; labels have a third."""

    lanes: dict[int, np.ndarray]
    links: np.ndarray
    reads: np.ndarray
    pushes: np.ndarray
    labels: np.ndarray
    width: float

    def of(self, key: str) -> np.ndarray:
        """Points of a trace, by its key in :func:`styles`."""
        kind, _, rank = key.partition(" ")
        return self.lanes.get(int(rank), np.empty((0, 2))) if rank else getattr(self, kind)


def picture(arrows: list[Arrow]) -> Picture:
    """Lines and marks of arrows."""
    first = arrows[0].push if arrows else 0.0
    ms = [(a.rank, (a.read - first) * 1e3, (a.push - first) * 1e3, a.updates) for a in arrows]
    gap = (np.nan, np.nan)
    lanes = {
        rank: np.array([p for r, read, push, _ in ms if r == rank for p in ((read, rank), (push, rank), gap)])
        for rank in sorted({a.rank for a in arrows})
    }
    links = np.array([p for r, _, push, _ in ms for p in ((push, r), (push, TOP), gap)]).reshape(-1, 2)
    reads = np.array([(max(read, 0.0), r) for r, read, _, _ in ms if read >= 0]).reshape(-1, 2)
    pushes = np.array([(push, r) for r, _, push, _ in ms]).reshape(-1, 2)
    width = ms[-1][2] if ms else 0.0
    return Picture(lanes, links, reads, pushes, _labels(ms, APART * width), width)


def _labels(ms: list[tuple[int, float, float, int]], apart: float) -> np.ndarray:
    """Positions and values of the numbers, without those that would cover the number before them in the lane."""
    found, before = [], {}
    for rank, _, push, updates in ms:
        if push - before.get(rank, -np.inf) >= apart:
            before[rank] = push
            found.append((push, rank - 0.3, updates))
    return np.array(found, dtype=float).reshape(-1, 3)


def height(workers: int) -> int:
    """Pixels of the figure."""
    return max(400, 60 * workers + 150)


def layout(experiment: Experiment, width: float) -> dict[str, Any]:
    """One lane per worker, the pushes of all in the top lane; `width` in ms."""
    workers = theme.workers(experiment)
    top = "writes" if experiment.sync.shares_memory else "pushes"
    top = f"all {top}" if workers == experiment.workers else f"their {top}"
    names = [top, *(f"rank {rank}" for rank in range(workers))]
    yaxis = theme.rows(names, tickvals=[TOP, *range(workers)], range=[workers - 0.4, TOP - 0.5])
    title = theme.on_clock("time since the first push shown (ms)", experiment.cluster.world)
    xaxis = theme.axis(title, (-0.03 * width, 1.03 * width), showgrid=False)
    return theme.layout(xaxis=xaxis, yaxis=yaxis)


def styles(workers: int, is_write: bool) -> dict[str, dict[str, Any]]:
    """plotly attributes of all traces, by key; `is_write`: workers write to shared memory."""
    quiet = {"showlegend": False, "hoverinfo": "skip"}
    found = {"links": {"mode": "lines", "line": {"color": theme.GREY, "width": 1}, "opacity": 0.45, "name": "push",
                       **quiet}}  # fmt: skip
    for rank in range(workers):
        line = {"color": theme.RANKS[rank % len(theme.RANKS)], "width": 4}
        found[f"lane {rank}"] = {"mode": "lines", "line": line, "name": f"rank {rank}", **quiet}
    ring = {"symbol": "circle-open", "size": 8, "color": theme.GREY, "line": {"width": 2}}
    found["reads"] = {"mode": "markers", "name": "read of the weights", "marker": ring}
    found["pushes"] = {
        "mode": "markers",
        "name": "write of the update" if is_write else "push of the gradient",
        "marker": {"symbol": "triangle-right", "size": 13, "color": theme.GREY},
    }
    found["labels"] = {"mode": "text", "name": "staleness (updates)", "texttemplate": "%{text:d}",
                       "textfont": {"size": 13}, "showlegend": False, "cliponaxis": False}  # fmt: skip
    return found


class Lanes:
    """Arrows of the last pushes; drawn once a second, which is as fast as one can read."""

    title = "Lanes"

    def __init__(self, experiment: Experiment) -> None:
        self.plot, self.workers = LivePlot(layout(experiment, 1.0)), 0

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether several workers update the same weights."""
        return experiment.workers > 1 and (experiment.sync.server_ranks > 0 or experiment.sync.shares_memory)

    def begin(self, experiment: Experiment) -> None:
        """Start a run."""
        for key in styles(self.workers, False) if self.workers else ():
            self.plot.remove(key)
        self.experiment, self.workers = experiment, theme.workers(experiment)
        self._drawn, self._width = 0.0, 1.0
        self.plot.refigure(layout(experiment, 1.0), height=height(self.workers))
        for key, style in styles(self.workers, experiment.sync.shares_memory).items():
            columns = ("ms", "lane", "updates") if key == "labels" else ("ms", "lane")
            at = {"x": "ms", "y": "lane"} | ({"text": "updates"} if key == "labels" else {})
            self.plot.add_trace(key, style, columns, at)
        self._find = Arrows(experiment.sync.shares_memory)
        self.recent: deque[Arrow] = deque(maxlen=8 * max(LEAST, PER_WORKER * self.workers))

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step."""
        if rank < self.workers and (arrow := self._find.find(rank, record)):
            self.recent.append(arrow)

    def settle(self, _steps: GlobalSteps, ended: bool) -> None:
        """Draw the last arrows if the last drawing is a second old, or if the run has ended."""
        if not self.recent or (time.monotonic() - self._drawn < 1 and not ended):
            return
        self._drawn = time.monotonic()
        arrows = window(self.recent, self.workers)
        drawn = picture(arrows)
        for key in styles(self.workers, False):
            self.plot.series(key).replace(drawn.of(key))
        if ended or not self._width / 3 <= drawn.width <= self._width:
            self._width = theme.rounded_up(drawn.width)
            self.plot.set_range("xaxis", -0.03 * self._width, 1.03 * self._width)
        sentence = captions.lanes([a.updates for a in arrows])
        self.plot.set_caption(captions.shown_workers(self.experiment, sentence))
