"""What the ranks of a pipeline did and would do at best: passes of micro-batches, and the bubble between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean, median
from typing import NamedTuple

from dlpar.costmodel.timeline import Bar, idle_share
from dlpar.costmodel.timeline import timeline as ideal_bars
from dlpar.experiment import Experiment
from dlpar.lab.live import shown
from dlpar.run import Run
from dlpar.split.mesh import coordinates, sizes_of
from dlpar.split.schedules import SCHEDULES

KINDS = {"F": "forward", "R": "recompute", "B": "backward", "W": "weight"}
"""What the actions of a schedule are called in records."""

PASSES = ("forward", "recompute", "backward", "weight")
"""Spans in which a stage computes for a micro-batch."""

TALKING = ("receive", "send", "reduce")
"""Spans in which it waits for a neighbour, or, within a pass, for the other ranks of its stage: a strip at the foot
of its row."""


class Drawn(NamedTuple):
    """A bar: what a rank did, from `start` to `end` in seconds; `micro` and `chunk` are -1 where it was no pass."""

    rank: int
    name: str
    start: float
    end: float
    micro: int = -1
    chunk: int = 0


def stages_of(experiment: Experiment) -> int:
    """How many stages a replica has."""
    return sizes_of(experiment)["pipeline"]


def _chunks(experiment: Experiment) -> int:
    return experiment.split.chunks if experiment.split.schedule == "interleaved" else 1


def has_flush(experiment: Experiment) -> bool:
    """Whether a step ends before the next one begins."""
    return SCHEDULES[experiment.split.schedule].has_flush


def spans(run: Run) -> dict[int, list[Drawn]]:
    """What the drawn ranks did in each step that has passes."""
    found: dict[int, list[Drawn]] = defaultdict(list)
    drawn = shown.workers(run.experiment)
    for source, record in run.records():
        if record["k"] == "step" and (rank := int(source[5:])) < drawn:
            found[record["step"]] += _joined([Drawn(rank, *span) for span in record["spans"]])
    return {step: bars for step, bars in found.items() if any(bar.name in PASSES for bar in bars)}


def _joined(bars: list[Drawn]) -> list[Drawn]:
    """What one rank did in a step, each pass in one piece, the messages of a hybrid's cut layers included."""
    whole: dict[tuple[str, int, int], Drawn] = {}
    for bar in passes(bars):
        key = bar.name, bar.micro, bar.chunk
        whole[key] = whole.get(key, bar)._replace(end=bar.end)
    return [*whole.values(), *(bar for bar in bars if bar.name not in PASSES)]


def typical(by_step: dict[int, list[Drawn]], count: int) -> int:
    """The step of median duration, the first, in which all is cold, left out; of several the first in the middle."""
    if count > 1:
        return sorted(by_step)[(len(by_step) - count) // 2]
    last = {step: window(passes(bars)) for step, bars in by_step.items()}
    later = {step: end - start for step, (start, end) in last.items() if step or len(last) == 1}
    middle = median(later.values())
    return min(later, key=lambda step: abs(later[step] - middle))


def passes(bars: Iterable[Drawn]) -> list[Drawn]:
    """Those in which a micro-batch is computed."""
    return [bar for bar in bars if bar.name in PASSES]


def window(bars: Iterable[Drawn]) -> tuple[float, float]:
    """When the first began and the last ended."""
    bars = list(bars)
    return min(bar.start for bar in bars), max(bar.end for bar in bars)


def since(begin: float, bars: Iterable[Drawn]) -> list[Drawn]:
    """What was done from `begin` on, and when after it."""
    after = (bar._replace(start=max(bar.start - begin, 0.0), end=bar.end - begin) for bar in bars)
    return [bar for bar in after if bar.end > 0]


def ideal(experiment: Experiment, measured: list[Drawn], steps: range) -> list[Drawn]:
    """The schedule with equal stages, as if the first pass began when the measured one did."""
    stages, chunks = stages_of(experiment), _chunks(experiment)
    seconds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for bar in passes(measured):
        seconds[bar.name][bar.rank].append(bar.end - bar.start)
    # Of a rank the median: a single pass that was held up says nothing of the others.
    mean = {name: chunks * fmean(map(median, of_rank.values())) for name, of_rank in seconds.items()}
    weight = mean.get("weight", 0.0)
    times = {
        "forward": mean.get("forward", 0.0),
        "weight": weight,
        "backward": mean.get("backward", 0.0) + weight,
        "recompute": mean.get("recompute", 0.0),
    }
    first, ranks = 0, range(shown.workers(experiment))
    if not has_flush(experiment):  # a part of the list, where the pipeline is as full as it was
        first = min(steps.start, 2 * stages)
        bars = ideal_bars(experiment.split.schedule, stages, first + len(steps) + stages, **times)
        bars = [bar for bar in bars if 0 <= _step_of(bar, stages) - first < len(steps)]
    else:
        bars = ideal_bars(experiment.split.schedule, stages, experiment.split.microbatches, chunks, **times)
    begins = window(passes(measured))[0] - min(bar.start for bar in bars)
    later = 0 if has_flush(experiment) else steps.start - first
    return [
        Drawn(rank, KINDS[bar.kind], begins + bar.start, begins + bar.end, bar.micro + later, bar.chunk)
        for rank in ranks
        for bar in bars
        if bar.stage == stage_of(experiment, rank)
    ]


def _step_of(bar: Bar, stages: int) -> int:
    """The step a pass belongs to where each micro-batch is one: a stage goes so much ahead as stages follow."""
    return max(0, bar.micro - (stages - 1 - bar.stage)) if bar.kind == "F" else bar.micro


def stage_of(experiment: Experiment, rank: int) -> int:
    """A worker's stage, 0-based."""
    return coordinates(rank, sizes_of(experiment))["pipeline"]


def bubble(experiment: Experiment, bars: list[Drawn]) -> float:
    """Idle over computing seconds, from the first pass of a replica to its last, mean over replicas.

    Without a flush, from the first of a rank to its last: the steps looked at begin earlier on some than on others.
    """
    by_window: dict[int, list[Bar]] = defaultdict(list)
    for bar in passes(bars):
        as_bar = Bar(bar.rank, bar.name, bar.micro, bar.chunk, bar.start, bar.end)
        by_window[_window_of(experiment, bar.rank)].append(as_bar)
    return fmean(idle_share(each) for each in by_window.values())


def idle(experiment: Experiment, bars: list[Drawn]) -> list[Drawn]:
    """The bubble as bars: where a rank does nothing or waits for a message."""
    found = []
    for rank in sorted({bar.rank for bar in bars}):
        mine = _window_of(experiment, rank)
        start, end = window(bar for bar in passes(bars) if _window_of(experiment, bar.rank) == mine)
        busy = (bar for bar in bars if bar.rank == rank and bar.end > start and bar.name not in TALKING)
        at = start
        for bar in sorted(busy, key=lambda bar: bar.start):
            found.append(Drawn(rank, "bubble", at, min(bar.start, end)))
            at = max(at, bar.end)
        found.append(Drawn(rank, "bubble", at, end))
    return [bar for bar in found if bar.end > bar.start]


def _window_of(experiment: Experiment, rank: int) -> int:
    """Ranks of one number have their bubble within one window."""
    return coordinates(rank, sizes_of(experiment))["data"] if has_flush(experiment) else rank
