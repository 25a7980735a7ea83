"""Live figure of each rank's phases in the last few steps: a Gantt chart."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.lab import captions, theme
from dlpar.lab.live_plot import LivePlot

STEPS = 8
"""Steps drawn."""

TITLE = "time since the first of these steps began (ms)"
"""Title of the horizontal axis."""

COLUMNS = ("rank", "start (ms)", "duration (ms)", "step")
AT = {"y": "rank", "base": "start (ms)", "x": "duration (ms)", "customdata": "step"}
HOVER = "%{fullData.name}, step %{customdata}<br>rank %{y}: %{x:.3f} ms from %{base:.3f} ms<extra></extra>"
TALKING = ("communicate", "receive", "send")
"""Phases in which a rank may wait."""

Spans = list[tuple[int, int, str, float, float]]
"""Rows ``(rank, step, name, start, end)``, seconds."""


def without_wait(record: dict[str, Any]) -> list[list]:
    """Spans of a record, with the waiting inside them as spans of its own.

    Records hold the duration of waiting, not its start. It is drawn at the
    beginning of each communication, in proportion to the communication's length.
    """
    spans, wait = [span[:3] for span in record["spans"]], record.get("wait", 0.0)
    talking = sum(stop - start for name, start, stop in spans if name in TALKING)
    share = min(1.0, wait / talking) if talking else 0.0
    if not share:
        return spans
    found = []
    for name, start, stop in spans:
        if name in TALKING:
            begun = start + share * (stop - start)
            found += [["wait", start, begun], [name, begun, stop]]
        else:
            found.append([name, start, stop])
    return found


def layout(experiment: Experiment, width: float) -> dict[str, Any]:
    """One row per rank, rank 0 on top; `width` in ms."""
    return theme.layout(
        xaxis=theme.axis(theme.on_clock(TITLE, experiment.cluster.world), (0, width)),
        yaxis=theme.rows([f"rank {rank}" for rank in range(theme.workers(experiment))]),
        barmode="overlay",
        bargap=0.2,
    )


def two_lanes(experiment: Experiment) -> bool:
    """Return whether phases of a rank overlap in time, so that its row is divided."""
    return getattr(experiment.sync, "overlap", False)


def bar(name: str, two_lanes: bool) -> dict[str, Any]:
    """Style of a phase's bars; with two lanes, communication takes the lower half of a row."""
    style = {**theme.phase_bar(name), "hovertemplate": HOVER}
    if two_lanes:
        computing = theme.PHASES.get(name, theme.OTHER).group in ("compute", "evaluate")
        style.update(width=0.4, offset=-0.4 if computing else 0.0)
    return style


def ordered(names: Iterable[str]) -> list[str]:
    """Phases in the order of the theme's table, then all others."""
    return sorted(names, key=lambda name: [*theme.PHASES, name].index(name))


def bars(spans: Spans) -> tuple[dict[str, np.ndarray], float]:
    """Rows of each phase's bars as `COLUMNS`, from the start of the first span, and the total width in ms."""
    if not spans:
        return {}, 0.0
    begin, end = min(s[3] for s in spans), max(s[4] for s in spans)
    rows = defaultdict(list)
    for rank, step, name, start, stop in spans:
        rows[name].append((rank, (start - begin) * 1e3, (stop - start) * 1e3, step))
    return {name: np.array(r) for name, r in rows.items()}, (end - begin) * 1e3


def shares(spans: Spans, ranks: Iterable[int]) -> tuple[float, dict[str, float]]:
    """Duration of a step in ms, and the share of each kind of work in it; means over `ranks`."""
    ranks, total, spent = set(ranks), 0.0, defaultdict(float)
    for rank in ranks:
        own = [s for s in spans if s[0] == rank]
        total += max(s[4] for s in own) - min(s[3] for s in own) if own else 0.0
        for _, _, name, start, stop in own:
            spent[theme.PHASES.get(name, theme.OTHER).group] += stop - start
    if not total:
        return 0.0, {}
    steps = len({s[1] for s in spans})
    found = {kind: spent[kind] / total for kind in theme.KINDS if kind in spent}
    return total / len(ranks) / steps * 1e3, found


class Timeline:
    """Phases of the last steps; drawn once a second, which is as fast as one can read."""

    title = "Timeline"

    @staticmethod
    def fits(_experiment: Experiment) -> bool:
        """Return whether to show it: always."""
        return True

    def __init__(self, experiment: Experiment) -> None:
        self.plot = LivePlot(layout(experiment, 100.0))
        self.names: list[str] = []

    def begin(self, experiment: Experiment) -> None:
        """Start a run."""
        for name in self.names:
            self.plot.remove(name)
        self.experiment, self.names, self._width, self._drawn = experiment, [], 0.0, 0.0
        self.plot.refigure(layout(experiment, 100.0))
        self.recent = [deque(maxlen=2 * STEPS) for _ in range(theme.workers(experiment))]

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take a record that may have spans."""
        if rank < len(self.recent) and record.get("spans"):
            self.recent[rank].append(record)

    def settle(self, _steps: GlobalSteps, ended: bool) -> None:
        """Draw the last steps if the last drawing is a second old, or if the run has ended."""
        if not any(self.recent) or (time.monotonic() - self._drawn < 1 and not ended):
            return
        self._drawn = time.monotonic()
        newest = max(record["step"] for own in self.recent for record in own)
        first = max(0, newest - STEPS + 1)
        recent = (
            (rank, record)
            for rank, own in enumerate(self.recent)
            for record in own
            if record["step"] >= first
        )
        spans = [(rank, record["step"], *span) for rank, record in recent for span in without_wait(record)]
        rows, width = bars(spans)
        for name in ordered(rows):
            if name not in self.names:
                self.names.append(name)
                self.plot.add_trace(name, bar(name, two_lanes(self.experiment)), COLUMNS, AT)
        for name in self.names:
            self.plot.series(name).replace(rows.get(name, np.empty((0, len(COLUMNS)))))
        if ended or not self._width / 3 <= width <= self._width:
            self._width = theme.rounded_up(width * (1 if ended else 1.1))
            self.plot.set_range("xaxis", 0, self._width)
        step_ms, parts = shares(spans, range(len(self.recent)))
        sentence = captions.timeline(newest - first + 1, step_ms, parts)
        self.plot.set_caption(captions.shown_workers(self.experiment, sentence))
