"""Figures of a time window: the phases of every rank as a Gantt chart, and lanes of reads and pushes."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.graphs import neighbours
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import Run
from dlpar.jobs.tail import rank_of
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, require, single
from dlpar.lab.labels import WITH_PUSHES
from dlpar.lab.plot import Plot, Reader, Shown, drawn, shown

STEPS, SLOWEST = 8, 2
"""Number of steps of the fastest and of the slowest rank in a window. The longer duration counts."""

MOST, BARS = 100, 8000
"""Maximum number of steps of the fastest rank in a window, and of bars of a phase."""

KEPT = 1000
"""Number of records kept for each rank during a run."""

LATE = 5.0
"""Seconds after which a window no longer waits for a silent rank."""

COLUMNS = ("rank", "start (ms)", "duration (ms)", "step")
AT = {"y": "rank", "base": "start (ms)", "x": "duration (ms)", "customdata": "step"}
HOVER = "%{fullData.name}, step %{customdata}<br>rank %{y}: %{x:.3f} ms from %{base:.3f} ms<extra></extra>"
ARROWS, SEEN = 40, 0.02
"""Maximum number of arrows from waits, and shortest wait with an arrow, as a share of its window."""

SOON = 0.5
"""Share of a wait by which a send may seem late, because ranks record only durations of waits."""

GAP = (np.nan, np.nan)
"""Point at which a line is interrupted."""

TALKING = ("communicate", "receive", "send")
"""Phases in which a rank may wait."""


class Window(Plot):
    """Figure of the newest records of the run in front. One drawing a second keeps it readable.

    Attributes
    ----------
    recent : list of deque
        Kept records of each rank. Files of ranks are read one after the other, so each rank has its own deque.
    """

    pause = 1.0
    margin: ClassVar[float] = 0.0

    def prepare(self, title: str, top: list[str], kept: int, width: float, tall: int, **rows: Any) -> None:
        """Clear the figure for the run in front. Draw `kept` entries per rank over `width` ms.

        Rows are `tall` pixels high. `top` names a row above the rows of the ranks.
        """
        self.remove()
        experiment, self._width = self.front.experiment, width
        self.recent = [deque[Any](maxlen=kept) for _ in range(theme.workers(experiment))]
        names = [*top, *(f"rank {rank}" for rank in range(len(self.recent)))]
        xaxis = theme.axis(theme.on_clock(title, experiment.cluster.world), self._ends(), showgrid=not top)
        yaxis, height = theme.rows(names, **rows), max(400, tall * len(names) + 140)
        self.relayout(height=height, xaxis=xaxis, yaxis=yaxis, barmode="overlay", bargap=0.2)

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Draw the newest records if the last drawing is a second old or the run has ended."""
        if any(self.recent) and self.is_due(ended):
            self.draw_newest(ended)

    def draw_newest(self, ended: bool) -> None:
        """Draw the newest records."""
        raise NotImplementedError

    def read_again(self, begin: float, end: float, between: Reader) -> None:
        """Keep a time window's records instead of the newest records."""
        for own in self.recent:
            own.clear()
        for rank, record in between(begin, end):
            self.take(rank, record)

    def fit(self, width: float, ended: bool = False) -> None:
        """Update the axis for a window of `width` ms."""
        if ended or not self._width / 2 <= width <= self._width:
            self._width = theme.rounded_up(width)
            self.set_axis("xaxis", range=list(self._ends()))

    def _ends(self) -> tuple[float, float]:
        return -self.margin * self._width, (1 + self.margin) * self._width


# ---- phases -----------------------------------------------------------------------------


class Span(NamedTuple):
    """Phase of a rank's step, from `start` to `end` in seconds."""

    rank: int
    step: int
    name: str
    start: float
    end: float


def spans_of(rank: int, record: dict[str, Any]) -> list[Span]:
    """Return the spans of a record. Waiting inside them becomes separate spans.

    Records hold the duration of waiting, not its start. Waiting is drawn at the
    start of each communication, in proportion to the communication's length.
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
    """Return the parts of spans inside a time window."""
    inside = (s._replace(start=max(s.start, begin), end=min(s.end, end)) for s in spans)
    return [s for s in inside if s.end > s.start]


def shares(spans: Iterable[Span], ranks: int, seconds: float) -> dict[str, float]:
    """Return the average share of each kind of work in a window."""
    spent: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        spent[theme.PHASES.get(span.name, theme.OTHER).group] += span.end - span.start
    return {kind: spent[kind] / (ranks * seconds) for kind in theme.KINDS if kind in spent}


def neighbours_of(experiment: Experiment) -> dict[int, set[int]]:
    """Return the drawn ranks for which each worker waits: neighbours on a fixed graph, or all others.

    There are none if ranks share a model, because these wait for different ranks in each pass.
    """
    drawn = range(theme.workers(experiment))
    if getattr(experiment.sync, "exchange", "") == "neighbours":
        graph = neighbours(experiment.sync, experiment.workers, experiment.seed)
        return {rank: set(graph[rank]) for rank in drawn}
    return {rank: {*drawn} - {rank} if experiment.replicas == experiment.workers else set() for rank in drawn}


def arrows(spans: Iterable[Span], peers: Mapping[int, set[int]]) -> list[tuple[int, float, Span]]:
    """Find the send that ended each wait in a synchronous step: ``(sender, time of its send, wait)``.

    The sender is the last of a rank's `peers` that begins to send in the step.
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


class Timeline(Window):
    """Figure of the phases in the newest window that all ranks have reported."""

    title = "Timeline"

    def begin(self, run: Shown) -> None:
        """Add a run. Only the run in front is drawn."""
        super().begin(run)
        self.names, experiment, self._seconds, self._dead = list[str](), run.experiment, 0.0, set[int]()
        # With overlap, phases of a rank overlap in time: communication takes the lower half of a row.
        self._two_lanes = getattr(experiment.sync, "overlap", False)
        self._peers = neighbours_of(experiment)
        self.prepare("time since the beginning of the window (ms)", [], KEPT, 100.0, 26)

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Process a record that may have spans."""
        if record.get("name") == "death":
            self._dead.add(record["dead"])
        elif rank < len(self.recent) and record.get("spans"):
            self.recent[rank].append(record)

    def draw_newest(self, ended: bool) -> None:
        """Draw the newest window."""
        self.draw(*self.window())

    def look(self, end: float, between: Reader) -> None:
        """Draw the window that ends at a moment. It has the last window's length."""
        # A step that continues at the end of the window is written later.
        self.read_again(end - 2 * self._seconds, end + self._seconds, between)
        if self._seconds:
            self.draw(end - self._seconds, end)

    def window(self) -> tuple[float, float]:
        """Return the newest window's start and end, in seconds of the run's clock."""
        told = [own for rank, own in enumerate(self.recent) if own and rank not in self._dead]
        told = told or [own for own in self.recent if own]
        newest = [_ended(own[-1]) for own in told]
        end = max(min(newest), max(newest) - LATE)
        taking = [statistics.median(_ended(r) - r["spans"][0][1] for r in list(own)[-STEPS:]) for own in told]
        seconds = max(STEPS * min(taking), SLOWEST * max(taking))
        # Nothing is before the first step.
        return max(min(own[0]["spans"][0][1] for own in told), end - min(seconds, MOST * min(taking))), end

    def draw(self, begin: float, end: float) -> None:
        """Draw a time window."""
        self._seconds = end - begin
        self.set_origin(begin)
        inside = lambda record: _ended(record) > begin and record["spans"][0][1] < end
        near = [(rank, record) for rank, own in enumerate(self.recent) for record in filter(inside, own)]
        whole = [span for each in near for span in spans_of(*each)]
        spans = clipped(whole, begin, end)
        rows = defaultdict[str, list[tuple]](list)
        for rank, step, name, start, stop in spans:
            rows[name].append((rank, (start - begin) * 1e3, (stop - start) * 1e3, step))
        for name in sorted(rows.keys() - set(self.names), key=lambda name: [*theme.PHASES, name].index(name)):
            self.names.append(name)
            self.add_trace(name, self._bar(name), COLUMNS, AT, limit=BARS)
        for name in self.names:
            self.series(name).replace(np.array(rows[name]))
        self._draw_arrows(whole, begin, end)
        self.fit((end - begin) * 1e3)
        told = len({span.rank for span in spans})
        self.say(captions.timeline(end - begin, shares(spans, told or 1, end - begin), told))

    def _draw_arrows(self, spans: Iterable[Span], begin: float, end: float) -> None:
        """Draw an arrow from each long wait to the send that ended it, if this send is known."""
        free = self.front.experiment.sync.runs_free or theme.crowded(self.front.experiment)
        found = [] if free else [a for a in arrows(spans, self._peers) if begin <= a[1] and a[2].end <= end]
        seen = [a for a in found if a[2].end - a[2].start > SEEN * (end - begin)]
        longest = sorted(seen, key=lambda a: a[2].start - a[2].end)[:ARROWS]
        rows = {key: list[tuple[float, float]]() for key in ("arrows", "arrows up", "arrows down")}
        for sender, sent, wait in longest:
            head, tail = ((sent - begin) * 1e3, sender), ((wait.end - begin) * 1e3, wait.rank)
            rows["arrows"] += [tail, head, GAP]
            rows["arrows up" if sender < wait.rank else "arrows down"].append(head)
        for key, points in rows.items():
            if seen and key not in self._traces:
                self.add_trace(key, theme.LOOKS[key], ("ms", "rank"))
            if key in self._traces:
                self.series(key).replace(np.array(points))

    def _bar(self, name: str) -> theme.Look:
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
        Global steps to draw, from the first rank's start to the last rank's end; default: the newest
        window, as in a panel.
    """
    run, plot = single(run), Timeline()
    plot.begin(shown([run.experiment], [run.id])[0])
    for source, record in run.records():
        if source != "job" and (steps is None or record.get("step") in steps):
            plot.take(rank_of(source), record)
    records = [record for own in plot.recent for record in own]
    refusal = f"run {run.id}: no spans were recorded, so there is no timeline"
    if steps is not None:
        refusal = f"steps: got {steps}, allowed is any part of 0 to {run.experiment.steps - 1}"
    require(len(records) > 0, refusal)
    asked = min(record["spans"][0][1] for record in records), max(map(_ended, records))
    plot.draw(*(plot.window() if steps is None else asked))
    return plot.static()


# ---- reads and pushes -------------------------------------------------------------------


PER_WORKER, LEAST = 5, 16
"""Number of arrows drawn per worker, and minimum number for all workers together."""

APART = 0.022
"""Smallest distance between two numbers in a lane, as a share of the width."""

TOP = -1.0
"""Height of the top lane, which marks every push. Worker r's lane has height r."""


class Arrow(NamedTuple):
    """Times (s) at which a worker read weights and pushed the gradient computed from them."""

    rank: int
    read: float
    push: float
    updates: int


class Lanes(Window):
    """Figure with one lane per worker, and arrows from its last reads of weights to its pushes.

    The number at an arrow's head is its staleness: the number of other workers' marks between both ends.
    """

    title, margin = "Lanes", 0.03

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether several workers update the same weights."""
        return experiment.workers > 1 and (experiment.sync.server_ranks > 0 or experiment.sync.shares_memory)

    def begin(self, run: Shown) -> None:
        """Add a run. Only the run in front is drawn."""
        super().begin(run)
        experiment, self.workers = run.experiment, theme.workers(run.experiment)
        self.is_write, self._before, self._read = experiment.sync.shares_memory, 0.0, dict[int, float]()
        self.most = max(LEAST, PER_WORKER * self.workers)
        top = "writes" if self.is_write else "pushes"
        top = f"their {top}" if theme.crowded(experiment) else f"all {top}"
        rows = {"tickvals": [TOP, *range(self.workers)], "range": [self.workers - 0.4, TOP - 0.5]}
        self.prepare("time since the first push shown (ms)", [top], self.most, 1.0, 60, **rows)
        looks = dict(theme.LANES)
        links, lane = looks.pop("links"), looks.pop("lane")
        if self.is_write:
            looks["pushes"] = {**looks["pushes"], "name": "write of the update"}
        lanes = {}
        for rank in range(self.workers):
            line = {"color": theme.RANKS[rank % len(theme.RANKS)], "width": 4}
            lanes[f"lane {rank}"] = {**lane, "line": line, "name": f"rank {rank}"}
        for key, style in {"links": links, **lanes, **looks}.items():
            columns = ("ms", "lane", "updates") if key == "labels" else ("ms", "lane")
            self.add_trace(key, style, columns, dict(zip(("x", "y", "text"), columns)))

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Process the record of one worker's step. A rank's steps come in order."""
        spans = record.get("spans") or ()
        if rank >= self.workers or record["k"] != "step" or not spans:
            return
        begun = {name: start for name, start, *_ in reversed(spans)}  # the first span of each name
        # A step between two pushes communicates nothing and keeps the weights read before it.
        pushed = self.is_write or record.get("messages") != 0
        push = begun.get("update" if self.is_write else "communicate") if pushed else None
        read = self._read.setdefault(rank, spans[0][1])
        if push is not None:
            self._read[rank] = spans[-1][2]
            self.recent[rank].append(Arrow(rank, read, push, record["staleness"]))

    def look(self, end: float, between: Reader) -> None:
        """Draw the last arrows before a moment."""
        self._read.clear()
        self.read_again(end - self._before, end, between)
        if any(self.recent):
            return self._draw_last(ended=True)
        for _, series in self._traces.values():
            series.replace(np.empty(0))
        return self.set_caption("Until then no worker has pushed.")

    def draw_newest(self, ended: bool) -> None:
        """Draw the last arrows."""
        self._draw_last(ended)
        self._before = 3 * self._width / 1e3

    def _draw_last(self, ended: bool) -> None:
        recent = sorted((arrow for own in self.recent for arrow in own), key=lambda arrow: arrow.push)
        recent = recent[-self.most :]
        first = recent[0].push
        self.set_origin(first)
        self.fit((recent[-1].push - first) * 1e3, ended)
        lanes = {f"lane {rank}": list[tuple[float, float]]() for rank in range(self.workers)}
        rows: dict[str, list[tuple]] = {"links": [], "reads": [], "pushes": [], "labels": [], **lanes}
        before = dict.fromkeys(range(self.workers), -np.inf)
        for rank, began, ends, updates in recent:
            read, push = (began - first) * 1e3, (ends - first) * 1e3
            rows[f"lane {rank}"] += [(read, rank), (push, rank), GAP]
            rows["links"] += [(push, rank), (push, TOP), GAP]
            rows["reads"] += [(read, rank)] * (read >= 0)
            rows["pushes"].append((push, rank))
            if ends - before[rank] >= APART * (recent[-1].push - first):  # it hides no number in the lane
                before[rank] = ends
                rows["labels"].append((push, rank - 0.3, updates))
        for key, points in rows.items():
            self.series(key).replace(np.array(points, dtype=float))
        self.say(captions.lanes([arrow.updates for arrow in recent]))


def lanes(run: Run) -> Figure:
    """Draw one lane per worker.

    An arrow with its staleness leads from each read of the weights to the push.

    Parameters
    ----------
    run : Run
        A run of a parameter server or of workers that share memory, with spans.
    """
    run = single(run)
    experiment, n = run.experiment, run.experiment.workers
    got = f"run {run.id}: got sync {experiment.sync} with {n} worker{'s' * (n != 1)}"
    require(Lanes.fits(experiment), f"{got}, allowed is {WITH_PUSHES} with two workers or more")
    figure = drawn(plot := Lanes(), run)
    require(any(plot.recent), f"run {run.id}: no spans were recorded, so there are no arrows")
    return figure
