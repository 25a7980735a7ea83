"""The phases of every rank in a window of time: a Gantt chart."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.graphs import neighbours
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import Run
from dlpar.jobs.tail import rank_of
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, single
from dlpar.lab.figures.lanes import GAP
from dlpar.lab.plot import Plot, Shown, shown

STEPS, SLOWEST = 8, 2
"""Steps of the quickest rank and of the slowest that a window has room for; the longer of both counts."""

MOST, BARS = 100, 8000
"""Most steps of the quickest rank in a window, and most bars of a phase."""

KEPT = 1000
"""Records kept of each rank during a run."""

LATE = 5.0
"""Seconds after which a window no longer waits for a rank that says nothing."""

TITLE = "time since the beginning of the window (ms)"
COLUMNS = ("rank", "start (ms)", "duration (ms)", "step")
AT = {"y": "rank", "base": "start (ms)", "x": "duration (ms)", "customdata": "step"}
HOVER = "%{fullData.name}, step %{customdata}<br>rank %{y}: %{x:.3f} ms from %{base:.3f} ms<extra></extra>"
ARROWS, SEEN = 40, 0.02
"""Most arrows from waits, as more could not be told apart, and the shortest such wait as a share of its window."""

SOON = 0.5
"""Share of a wait by which a send may seem to begin after its end, as ranks record only how long they waited."""

ARROW = "#c2185b"
"""Colour of arrows, which lie on bars and between them."""

_HEAD = {"mode": "markers", "showlegend": False, "hoverinfo": "skip", "name": "send that ended a wait"}
ARROW_TRACES = {
    "arrows": {"mode": "lines", "name": "wait → send", "line": {"color": ARROW, "width": 2}},
    "arrows up": {**_HEAD, "marker": {"symbol": "triangle-up", "size": 10, "color": ARROW}},
    "arrows down": {**_HEAD, "marker": {"symbol": "triangle-down", "size": 10, "color": ARROW}},
}

TALKING = ("communicate", "receive", "send")
"""Phases in which a rank may wait."""


class Span(NamedTuple):
    """A phase of a rank's step, from `start` to `end` in seconds."""

    rank: int
    step: int
    name: str
    start: float
    end: float


def spans_of(rank: int, record: dict[str, Any]) -> list[Span]:
    """Spans of a record, with the waiting inside them as spans of its own.

    Records hold the duration of waiting, not its start. It is drawn at the
    beginning of each communication, in proportion to the communication's length.
    """
    found, spans, wait = [], [span[:3] for span in record["spans"]], record.get("wait", 0.0)
    talking = sum(stop - start for name, start, stop in spans if name in TALKING)
    share = min(1.0, wait / talking) if talking else 0.0
    for name, start, stop in spans:
        begun = start + share * (stop - start) if name in TALKING else start
        if begun > start:
            found.append(Span(rank, record["step"], "wait", start, begun))
        found.append(Span(rank, record["step"], name, begun, stop))
    return found


def clipped(spans: Iterable[Span], begin: float, end: float) -> list[Span]:
    """The parts of spans inside a window of time."""
    inside = (s._replace(start=max(s.start, begin), end=min(s.end, end)) for s in spans)
    return [s for s in inside if s.end > s.start]


def shares(spans: Iterable[Span], ranks: int, seconds: float) -> dict[str, float]:
    """Share of a window that ranks spent on each kind of work, on average."""
    spent: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        spent[theme.PHASES.get(span.name, theme.OTHER).group] += span.end - span.start
    return {kind: spent[kind] / (ranks * seconds) for kind in theme.KINDS if kind in spent}


def neighbours_of(experiment: Experiment) -> dict[int, set[int]]:
    """Ranks that each worker waits for, of those that are drawn: its neighbours on a fixed graph, or all others."""
    drawn = range(theme.workers(experiment))
    if getattr(experiment.sync, "exchange", "") == "neighbours":
        graph = neighbours(experiment.sync, experiment.workers, experiment.seed)
        return {rank: set(graph[rank]) for rank in drawn}
    return {rank: set(drawn) - {rank} for rank in drawn}


def arrows(spans: Iterable[Span], peers: Mapping[int, set[int]]) -> list[tuple[int, float, Span]]:
    """Find what ended waits where all workers do a step together: ``(sender, time of its send, wait)`` of each.

    It is the last of its `peers` to begin to send in that step.
    """
    waits, begun = [], dict[tuple[int, int], float]()
    for span in spans:
        key = span.rank, span.step
        waits += [span] if span.name == "wait" else []
        if span.name == "wait" or span.name in TALKING:
            begun[key] = min(span.start, begun.get(key, span.start))
    found = []
    for wait in waits:
        others = [(begun[rank, wait.step], rank) for rank in peers[wait.rank] if (rank, wait.step) in begun]
        if others and wait.start < max(others)[0] <= wait.end + SOON * (wait.end - wait.start):
            sent, sender = max(others)
            found.append((sender, sent, wait))
    return found


class Timeline(Plot):
    """Phases in the newest window of which all ranks have told; drawn once a second, as fast as one can read."""

    title = "Timeline"

    def begin(self, run: Shown) -> None:
        """Add a run; only the one in front is drawn."""
        super().begin(run)
        self.remove()
        self.names, self._drawn, experiment = list[str](), 0.0, run.experiment
        self.records = [deque(maxlen=KEPT) for _ in range(theme.workers(experiment))]
        # With overlap, phases of a rank overlap in time: communication has the lower half of a row.
        self._two_lanes = getattr(experiment.sync, "overlap", False)
        self._peers = neighbours_of(experiment)
        self._width, self._seconds = 100.0, 0.0
        layout = theme.layout(
            xaxis=theme.axis(theme.on_clock(TITLE, experiment.cluster.world), (0, self._width)),
            yaxis=theme.rows([f"rank {rank}" for rank in range(len(self.records))]),
            barmode="overlay",
            bargap=0.2,
        )
        self.relayout(layout, height=max(400, 26 * len(self.records) + 140))

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take a record that may have spans."""
        if rank < len(self.records) and record.get("spans"):
            self.records[rank].append(record)

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Draw the newest window if the last drawing is a second old, or if the run has ended."""
        if any(self.records) and (ended or time.monotonic() - self._drawn >= 1):
            self._drawn = time.monotonic()
            self.draw(*self.window())

    def look(
        self, end: float, between: Callable[[float, float], Iterable[tuple[int, dict[str, Any]]]]
    ) -> None:
        """Draw the window that ends at a moment, as long as the last one."""
        for own in self.records:
            own.clear()
        # A step that goes on at the end of the window is written after it.
        for rank, record in between(end - 2 * self._seconds, end + self._seconds):
            self.rank_step(rank, record)
        if self._seconds:
            self.draw(end - self._seconds, end)

    def window(self) -> tuple[float, float]:
        """Beginning and end of the newest window, in seconds of the run's clock."""
        told = [own for own in self.records if own]
        newest = [_ended(own[-1]) for own in told]
        end = max(min(newest), max(newest) - LATE)
        taking = [statistics.median(_ended(r) - r["spans"][0][1] for r in list(own)[-STEPS:]) for own in told]
        seconds = max(STEPS * min(taking), SLOWEST * max(taking))
        first = min(own[0]["spans"][0][1] for own in told)  # nothing is before the first step
        return max(first, end - min(seconds, MOST * min(taking))), end

    def draw(self, begin: float, end: float) -> None:
        """Draw a window of time."""
        self._seconds = end - begin
        self.set_origin(begin)
        near = [
            (rank, record)
            for rank, own in enumerate(self.records)
            for record in own
            if _ended(record) > begin and record["spans"][0][1] < end
        ]
        whole = [span for each in near for span in spans_of(*each)]
        spans = clipped(whole, begin, end)
        rows: defaultdict[str, list[tuple]] = defaultdict(list)
        for span in spans:
            rows[span.name].append(
                (span.rank, (span.start - begin) * 1e3, (span.end - span.start) * 1e3, span.step)
            )
        for name in sorted(rows, key=lambda name: [*theme.PHASES, name].index(name)):
            if name not in self.names:
                self.names.append(name)
                self.add_trace(name, self._bar(name), COLUMNS, AT, limit=BARS)
        for name in self.names:
            self.series(name).replace(np.array(rows.get(name, np.empty((0, len(COLUMNS))))))
        self._draw_arrows(whole, begin, end)
        width = (end - begin) * 1e3
        if not self._width / 2 <= width <= self._width:
            self._width = theme.rounded_up(width)
            self.set_range("xaxis", 0, self._width)
        told = len({span.rank for span in spans})
        sentence = captions.timeline(end - begin, shares(spans, told or 1, end - begin), told)
        self.set_caption(captions.shown_workers(self.front.experiment, sentence))

    def _draw_arrows(self, spans: Iterable[Span], begin: float, end: float) -> None:
        """Draw an arrow from each long wait to the send that ended it, where one can tell which that was."""
        free = self.front.experiment.sync.runs_free
        found = [] if free else [a for a in arrows(spans, self._peers) if begin <= a[1] and a[2].end <= end]
        seen = [a for a in found if a[2].end - a[2].start > SEEN * (end - begin)]
        longest = sorted(seen, key=lambda a: a[2].start - a[2].end)[:ARROWS]
        rows = {key: list[tuple[float, float]]() for key in ARROW_TRACES}
        for sender, sent, wait in longest:
            head, tail = ((sent - begin) * 1e3, sender), ((wait.end - begin) * 1e3, wait.rank)
            rows["arrows"] += [tail, head, GAP]
            rows["arrows up" if sender < wait.rank else "arrows down"].append(head)
        for key, style in ARROW_TRACES.items():
            if seen and key not in self._traces:
                self.add_trace(key, style, ("ms", "rank"), {"x": "ms", "y": "rank"})
            if key in self._traces:
                self.series(key).replace(np.array(rows[key]))

    def _bar(self, name: str) -> dict[str, Any]:
        style = {**theme.phase_bar(name), "hovertemplate": HOVER}
        if self._two_lanes:
            computing = theme.PHASES.get(name, theme.OTHER).group in ("compute", "evaluate")
            style |= {"width": 0.4, "offset": -0.4 if computing else 0.0}
        return style


def _ended(record: dict[str, Any]) -> float:
    return max(span[2] for span in record["spans"])


def timeline(run: Run, steps: range | None = None) -> Figure:
    """Draw the phases of every rank as a Gantt chart.

    Parameters
    ----------
    run : Run
        A run with spans.
    steps : range, optional
        Global steps to draw, from when the first rank began them until the last ended them; default: the
        newest window, as in a panel.
    """
    run, plot = single(run), Timeline()
    plot.begin(shown([run.experiment], [run.id])[0])
    for source, record in run.records():
        if source != "job" and (steps is None or record.get("step") in steps):
            plot.rank_step(rank_of(source), record)
    records = [record for own in plot.records for record in own]
    if not records and steps is None:
        raise ValueError(f"run {run.id}: no spans were recorded, so there is no timeline")
    if not records:
        raise ValueError(f"steps: got {steps}, allowed is any part of 0 to {run.experiment.steps - 1}")
    if steps is None:
        plot.draw(*plot.window())
    else:
        plot.draw(min(record["spans"][0][1] for record in records), max(map(_ended, records)))
    return plot.static()
