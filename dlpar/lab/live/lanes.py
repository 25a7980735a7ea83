"""The live figure of reads and pushes: a lane a worker, an arrow from each read of the weights to the push it led to.

The lane on top marks every push.  The number at an arrow's head, its staleness,
is how many of the others' marks lie between the arrow's ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.live import rank_lines as shown
from dlpar.lab.live_plot import LivePlot

PER_WORKER, LEAST = 5, 16
"""Arrows shown: so many a worker, but no fewer than this in all."""

APART = 0.022
"""Share of the width that two numbers in a lane are apart at least."""

TOP = -1.0
"""Height of the lane on top; worker r's is r."""


class Arrow(NamedTuple):
    """From the moment a worker had its weights to the moment it pushed the gradient computed on them (s)."""

    rank: int
    read: float
    push: float
    updates: int


class Arrows:
    """Finds arrows in the records of steps, given in each worker's order; `is_write`: of a run of hogwild."""

    def __init__(self, is_write: bool = False) -> None:
        self.is_write = is_write
        self._read: dict[int, float] = {}

    def find(self, rank: int, record: dict[str, Any]) -> Arrow | None:
        """The arrow that ends in this step; None in one that pushed nothing."""
        spans = record.get("spans") or ()
        begun = {name: start for name, start, *_ in reversed(spans)}  # the first of each name
        # A step between two pushes communicates nothing: its weights are still those read before it.
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
    """What is drawn, times in ms since the first push shown; each array has two columns, x and y, or three."""

    lanes: dict[int, np.ndarray]
    links: np.ndarray
    reads: np.ndarray
    pushes: np.ndarray
    labels: np.ndarray
    width: float


def picture(arrows: list[Arrow]) -> Picture:
    """Lines and marks of some arrows."""
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
    """Where the numbers stand and what they are; one that would cover the number before it in its lane is left out."""
    found, before = [], {}
    for rank, _, push, updates in ms:
        if push - before.get(rank, -np.inf) >= apart:
            before[rank] = push
            found.append((push, rank - 0.3, updates))
    return np.array(found, dtype=float).reshape(-1, 3)


def layout(experiment: Experiment, width: float) -> dict[str, Any]:
    """A lane per worker, the pushes of all on top; `width` in ms."""
    workers = shown.workers(experiment)
    lanes = [TOP, *range(workers)]
    top = "writes" if experiment.sync.scheme == "hogwild" else "pushes"
    top = f"all {top}" if workers == experiment.workers else f"their {top}"
    yaxis = theme.axis(
        "",
        (workers - 0.4, TOP - 0.5),
        tickvals=lanes,
        showgrid=False,
        zeroline=False,
        ticktext=[top, *(f"rank {r}" for r in range(workers))],
    )
    title = theme.on_clock("time since the first push shown (ms)", experiment.cluster.world)
    xaxis = theme.axis(title, (-0.03 * width, 1.03 * width), showgrid=False)
    return theme.layout(xaxis=xaxis, yaxis=yaxis)


def styles(workers: int, is_write: bool) -> dict[str, dict[str, Any]]:
    """plotly attributes of everything drawn, by the key of its trace; `is_write`: to shared memory."""
    grey = "#7f7f7f"
    found = {"links": {"mode": "lines", "line": {"color": grey, "width": 1}, "opacity": 0.45, "showlegend": False,
                       "hoverinfo": "skip", "name": "push"}}  # fmt: skip
    for rank in range(workers):
        line = {"color": theme.RANKS[rank % len(theme.RANKS)], "width": 4}
        found[f"lane {rank}"] = {
            "mode": "lines",
            "line": line,
            "showlegend": False,
            "name": f"rank {rank}",
            "hoverinfo": "skip",
        }
    found["reads"] = {"mode": "markers", "name": "read of the weights",
                      "marker": {"symbol": "circle-open", "size": 8, "color": grey, "line": {"width": 2}}}  # fmt: skip
    found["pushes"] = {
        "mode": "markers",
        "name": "write of the update" if is_write else "push of the gradient",
        "marker": {"symbol": "triangle-right", "size": 13, "color": grey},
    }
    found["labels"] = {"mode": "text", "name": "staleness (updates)", "texttemplate": "%{text:d}",
                       "textfont": {"size": 13}, "showlegend": False, "cliponaxis": False}  # fmt: skip
    return found


class Lanes:
    """Drawn anew once a second: faster, nobody could read it."""

    title = "Lanes"

    def __init__(self, experiment: Experiment) -> None:
        self.plot, self.workers = LivePlot(layout(experiment, 1.0)), 0

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Where gradients go to weights that others move too."""
        return experiment.workers > 1 and experiment.sync.scheme in ("ps", "hogwild")

    def begin(self, experiment: Experiment) -> None:
        """Start anew for a run."""
        for key in styles(self.workers, False) if self.workers else ():
            self.plot.remove(key)
        self.experiment, self.workers, self._drawn, self._width = (
            experiment,
            shown.workers(experiment),
            0.0,
            1.0,
        )
        self.plot.refigure(layout(experiment, 1.0), height=max(400, 60 * self.workers + 150))
        for key, style in styles(self.workers, experiment.sync.scheme == "hogwild").items():
            columns = ("ms", "lane", "updates") if key == "labels" else ("ms", "lane")
            at = {"x": "ms", "y": "lane"} | ({"text": "updates"} if key == "labels" else {})
            self.plot.add_trace(key, style, columns, at)
        self._find = Arrows(experiment.sync.scheme == "hogwild")
        self.recent: deque[Arrow] = deque(maxlen=8 * max(LEAST, PER_WORKER * self.workers))

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step."""
        if rank >= self.workers:
            return
        arrow = self._find.find(rank, record)
        if arrow:
            self.recent.append(arrow)

    def settle(self, _steps: GlobalSteps, ended: bool) -> None:
        """Draw the last arrows, if the last drawing is a second old or the run ended."""
        if not self.recent or (time.monotonic() - self._drawn < 1 and not ended):
            return
        self._drawn = time.monotonic()
        arrows = window(self.recent, self.workers)
        drawn = picture(arrows)
        empty = np.empty((0, 2))
        for rank in range(self.workers):
            self.plot.series(f"lane {rank}").replace(drawn.lanes.get(rank, empty))
        for key in ("links", "reads", "pushes", "labels"):
            self.plot.series(key).replace(getattr(drawn, key))
        if ended or not self._width / 3 <= drawn.width <= self._width:
            self._width = theme.rounded_up(drawn.width)
            self.plot.set_range("xaxis", -0.03 * self._width, 1.03 * self._width)
        self.plot.say(shown.note(self.experiment, says.lanes([a.updates for a in arrows])))
