"""Static figures of pipelines: passes of micro-batches on the ranks, beside their ideal, and the bubble."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.config.split import SCHEDULES as TRAITS
from dlpar.jobs.run import Run
from dlpar.jobs.tail import rank_of
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned, finished
from dlpar.split.mesh import coordinates, sizes_of
from dlpar.split.schedules import SCHEDULES, Action
from dlpar.theory.pipeline import Bar, idle_share, most_in_flight, timed
from dlpar.theory.pipeline import timeline as ideal_bars

KINDS = {"F": "forward", "R": "recompute", "B": "backward", "W": "weight"}
"""Names of a schedule's actions in records."""

PASSES = ("forward", "recompute", "backward", "weight")
"""Spans in which a stage computes for a micro-batch."""

TALKING = ("receive", "send", "reduce")
"""Spans in which a stage waits for messages; a strip at the foot of its row."""


class Drawn(NamedTuple):
    """A bar: one action of a rank from `start` to `end` in seconds; outside of passes `micro` is -1."""

    rank: int
    name: str
    start: float
    end: float
    micro: int = -1
    chunk: int = 0


def stages_of(experiment: Experiment) -> int:
    """Number of stages of a replica."""
    return sizes_of(experiment)["pipeline"]


def _chunks(experiment: Experiment) -> int:
    return experiment.split.chunks if experiment.split.schedule == "interleaved" else 1


def has_flush(experiment: Experiment) -> bool:
    """Return whether a step ends before the next one begins."""
    return experiment.split.traits.has_flush


def spans(run: Run) -> dict[int, list[Drawn]]:
    """Bars of the drawn ranks, by step, of each step that has passes."""
    found: dict[int, list[Drawn]] = defaultdict(list)
    drawn = theme.workers(run.experiment)
    for source, record in run.records():
        if record["k"] == "step" and (rank := rank_of(source)) < drawn:
            found[record["step"]] += _joined([Drawn(rank, *span) for span in record["spans"]])
    return {step: bars for step, bars in found.items() if any(bar.name in PASSES for bar in bars)}


def _joined(bars: list[Drawn]) -> list[Drawn]:
    """Bars of one rank's step, each pass in one piece that includes the messages of a hybrid's cut layers."""
    whole: dict[tuple[str, int, int], Drawn] = {}
    for bar in passes(bars):
        key = bar.name, bar.micro, bar.chunk
        whole[key] = whole.get(key, bar)._replace(end=bar.end)
    return [*whole.values(), *(bar for bar in bars if bar.name not in PASSES)]


def typical(by_step: dict[int, list[Drawn]], count: int) -> int:
    """The step of median duration, without the first, which is slow; or the first of `count` steps in the middle."""
    if count > 1:
        return sorted(by_step)[(len(by_step) - count) // 2]
    last = {step: window(passes(bars)) for step, bars in by_step.items()}
    later = {step: end - start for step, (start, end) in last.items() if step or len(last) == 1}
    middle = median(later.values())
    return min(later, key=lambda step: abs(later[step] - middle))


def passes(bars: Iterable[Drawn]) -> list[Drawn]:
    """Bars in which a micro-batch is computed."""
    return [bar for bar in bars if bar.name in PASSES]


def window(bars: Iterable[Drawn]) -> tuple[float, float]:
    """Start of the first and end of the last bar."""
    bars = list(bars)
    return min(bar.start for bar in bars), max(bar.end for bar in bars)


def since(begin: float, bars: Iterable[Drawn]) -> list[Drawn]:
    """Bars that end after `begin`, with times counted from it."""
    after = (bar._replace(start=max(bar.start - begin, 0.0), end=bar.end - begin) for bar in bars)
    return [bar for bar in after if bar.end > 0]


def ideal(experiment: Experiment, measured: list[Drawn], steps: range) -> list[Drawn]:
    """Bars of the schedule with equal stages, which begin when the first measured pass began."""
    stages, chunks = stages_of(experiment), _chunks(experiment)
    seconds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for bar in passes(measured):
        seconds[bar.name][bar.rank].append(bar.end - bar.start)
    # The median of each rank, so that one delayed pass does not count for all.
    mean = {name: chunks * fmean(map(median, of_rank.values())) for name, of_rank in seconds.items()}
    weight = mean.get("weight", 0.0)
    times = {
        "forward": mean.get("forward", 0.0),
        "weight": weight,
        "backward": mean.get("backward", 0.0) + weight,
        "recompute": mean.get("recompute", 0.0),
    }
    first, ranks = 0, range(theme.workers(experiment))
    if not has_flush(experiment):  # a part of the list in which the pipeline stays equally full
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
    """Step of a pass without a flush, where each micro-batch is a step and early stages are ahead."""
    return max(0, bar.micro - (stages - 1 - bar.stage)) if bar.kind == "F" else bar.micro


def stage_of(experiment: Experiment, rank: int) -> int:
    """A worker's stage, 0-based."""
    return coordinates(rank, sizes_of(experiment))["pipeline"]


def bubble(experiment: Experiment, bars: list[Drawn]) -> float:
    """Idle over computing seconds, from the first pass of a replica to its last; mean over replicas.

    Without a flush, from the first pass of a rank to its last, because a step begins at different times on ranks.
    """
    by_window: dict[int, list[Bar]] = defaultdict(list)
    for bar in passes(bars):
        as_bar = Bar(bar.rank, bar.name, bar.micro, bar.chunk, bar.start, bar.end)
        by_window[_window_of(experiment, bar.rank)].append(as_bar)
    return fmean(idle_share(each) for each in by_window.values())


def idle(experiment: Experiment, bars: list[Drawn]) -> list[Drawn]:
    """The bubble as bars: the times in which a rank does nothing or waits for a message."""
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
    """Number of the window within which the bubble of a rank lies."""
    return coordinates(rank, sizes_of(experiment))["data"] if has_flush(experiment) else rank


STYLES = {
    "forward": theme.Phase("pass", "#3A97CC", ""),
    "recompute": theme.Phase("pass", "#B79F00", "|"),
    "backward": theme.Phase("pass", "#2CA079", "\\"),
    "weight": theme.Phase("pass", "#A983C9", "x"),
    "bubble": theme.Phase("idle", "#8c8c8c", "/"),
    "receive": theme.Phase("message", "#B5473C", ""),
    "send": theme.Phase("message", "#6b6b6b", ""),
}
"""Style of passes; later chunks of a stage are lighter. Other phases look as in the timeline."""

WAYS = ("run", "ideal")
"""The two pictures: the run above, the ideal schedule below."""

AFTER = 1.2
"""Longest time shown, in durations of all passes: synchronising replicas afterwards may take much longer."""


def pipeline(run: Run, step: int | None = None) -> Figure:
    """Draw a step of every rank of a pipeline, micro-batch by micro-batch, and the schedule's ideal below it.

    In the ideal, all stages are equal and messages take no time; a pass is as long as the run's
    passes are on average (mean over each rank's median). The passes of a hybrid include the messages
    between the ranks of a stage. A bubble is idle over computing seconds, from the first pass of
    a step to its last (Narayanan et al., arXiv 2104.04473, section 2.2.1).

    Parameters
    ----------
    run : Run
        A run split by ``pipeline`` or ``hybrid``, with spans.
    step : int, optional
        Step to draw; default: the one of median duration. Of a schedule without a flush, the first of twice as
        many steps as there are stages; default: in the middle of the run.

    Raises
    ------
    ValueError
        If the run is split in another way, or has no spans of that step.
    """
    experiment = run.experiment
    if experiment.split.kind not in ("pipeline", "hybrid"):
        raise ValueError(f"run {run.id}: got split {experiment.split}, allowed is pipeline or hybrid")
    by_step = spans(run)
    if not by_step:
        raise ValueError(f"run {run.id}: no spans of passes were recorded, so there is no timeline")
    count = 1 if has_flush(experiment) else min(2 * stages_of(experiment), len(by_step))
    step = typical(by_step, count) if step is None else step
    if step not in by_step:
        raise ValueError(f"step: got {step}, allowed is a step with spans: {min(by_step)} to {max(by_step)}")
    steps = range(step, min(step + count, max(by_step) + 1))
    done = [bar for each in steps for bar in by_step.get(each, ())]
    begin, _ = window(passes(done))
    pictures = {"run": since(begin, done), "ideal": since(begin, ideal(experiment, done, steps))}
    bubbles = {way: bubble(experiment, bars) for way, bars in pictures.items()}
    figure, sentence = _picture(experiment, pictures, bubbles), _sentence(experiment, step, pictures, bubbles)
    return captioned(figure, sentence, _table(experiment, pictures), bubble=bubbles)


def _picture(experiment: Experiment, pictures: dict[str, list[Drawn]], bubbles: dict[str, float]) -> Figure:
    """Both pictures over one axis of time."""
    ends = [max(bar.end for bar in bars) for each in pictures.values() for bars in (each, passes(each))]
    width = 1e3 * min(max(ends), AFTER * max(ends[1::2]))
    figure = blank(
        _layout(experiment, theme.rounded_up(width), bubbles), 70 * theme.workers(experiment) + 190
    )
    everything = {way: [*idle(experiment, bars), *bars] for way, bars in pictures.items()}
    keys = sorted({_key(bar) for bars in everything.values() for bar in bars}, key=_order)
    for name, chunk in keys:
        look = style(name, chunk, max(c for n, c in keys if n == name) + 1)
        legend = True
        for yaxis, bars in zip(("y", "y2"), everything.values()):
            own = [bar for bar in bars if _key(bar) == (name, chunk)]
            if own:
                text = [str(bar.micro) if bar.name in PASSES else "" for bar in own]
                where = {"y": [bar.rank for bar in own], "base": [1e3 * bar.start for bar in own]}
                lengths = [1e3 * (bar.end - bar.start) for bar in own]
                figure.add_bar(x=lengths, **where, text=text, yaxis=yaxis, showlegend=legend, **look)
                legend = False
    return figure


def _key(bar: Drawn) -> tuple[str, int]:
    """Key of the style of a bar: for passes their name and chunk, otherwise the name."""
    return bar.name, bar.chunk if bar.name in PASSES else 0


def _order(key: tuple[str, int]) -> tuple[int, int]:
    names = ["bubble", *PASSES, *TALKING, *theme.PHASES]
    return names.index(key[0]) if key[0] in names else len(names), key[1]


def style(name: str, chunk: int, chunks: int) -> dict[str, Any]:
    """plotly attributes of a kind of bar; later chunks are lighter."""
    phase = STYLES.get(name) or theme.PHASES.get(name, theme.OTHER)
    title = f"{name}, chunk {chunk}" if chunks > 1 else "bubble: idle" if name == "bubble" else name
    hover = "%{fullData.name}, micro-batch %{text}" if name in PASSES else "%{fullData.name}"
    pattern = {**theme.hatch(phase.pattern), "fgopacity": 0.45} if phase.pattern else {}
    return {
        "orientation": "h",
        "name": title,
        "legendgroup": title,
        "marker": {
            "color": theme.lighter(phase.colour, 0.6 * chunk / max(chunks - 1, 1)),
            "pattern": pattern,
        },
        "opacity": 0.45 if name == "bubble" else 1.0,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "inside",
        "insidetextfont": {"color": "#000000", "size": 13},
        **({"width": 0.18, "offset": 0.24} if name in TALKING else {}),
        "hovertemplate": f"{hover}<br>rank %{{y}}: %{{x:.3f}} ms from %{{base:.3f}} ms<extra></extra>",
    }


def _layout(experiment: Experiment, width: float, bubbles: dict[str, float]) -> dict[str, Any]:
    """The run above, the ideal below; `width` in ms."""
    names = [_row(experiment, rank) for rank in range(theme.workers(experiment))]
    titles = {"run": theme.HOW[experiment.cluster.world], "ideal": f"ideal {experiment.split.schedule}"}
    texts = {way: f"{titles[way]}: bubble {percent(bubbles[way])} of computing time" for way in WAYS}
    notes = [theme.annotation(texts[way], 0, top, xanchor="left") for way, top in zip(WAYS, (1.0, 0.44))]
    title = theme.on_clock("time since the first of these passes began (ms)", experiment.cluster.world)
    return theme.layout(
        xaxis=theme.axis(title, (0, width), anchor="y2"),
        yaxis=theme.rows(names, domain=[0.56, 1], anchor="x", automargin=True),
        yaxis2=theme.rows(names, domain=[0, 0.44], anchor="x", automargin=True),
        barmode="overlay",
        bargap=0.15,
        annotations=notes,
        uniformtext={"minsize": 9, "mode": "hide"},
        margin={"l": 92, "r": 16, "t": 84, "b": 54},
    )


def _row(experiment: Experiment, rank: int) -> str:
    """Name of a rank's row, with its stage if that has another number."""
    alone = experiment.split.kind == "pipeline" and experiment.replicas == 1
    return f"rank {rank}" if alone else f"rank {rank}, stage {stage_of(experiment, rank)}"


def _sentence(
    experiment: Experiment, step: int, pictures: dict[str, list[Drawn]], bubbles: dict[str, float]
) -> str:
    took, best = (end - start for start, end in (window(passes(bars)) for bars in pictures.values()))
    length = captions.duration(took) if took >= 1 else f"{1e3 * took:.3g} ms"
    part = f"Step {step}" if has_flush(experiment) else f"The part from step {step} on"
    found, ideal = (percent(bubbles[way]) for way in WAYS)
    text = (
        f"{part} took {length} from its first pass to its last, {took / best:.2f} times the ideal: "
        f"the bubble was {found} of the computing time; ideally it is {ideal}."
    )
    return captions.shown_workers(experiment, text)


def percent(bubble: float) -> str:
    """A bubble, as a percentage of computing time."""
    return f"{bubble:.0%}" if bubble >= 1 else f"{bubble:.1%}"


def _table(experiment: Experiment, pictures: dict[str, list[Drawn]]) -> dict[str, list]:
    names = {"run": theme.HOW[experiment.cluster.world], "ideal": "ideal"}
    rows = [(names[way], bar) for way, bars in pictures.items() for bar in bars]
    return {
        "picture": [way for way, _ in rows],
        "rank": [bar.rank for _, bar in rows],
        "phase": [bar.name for _, bar in rows],
        "micro-batch": [bar.micro if bar.micro >= 0 else None for _, bar in rows],
        "chunk": [bar.chunk if bar.micro >= 0 else None for _, bar in rows],
        "start (ms)": [1e3 * bar.start for _, bar in rows],
        "duration (ms)": [1e3 * (bar.end - bar.start) for _, bar in rows],
    }


FORWARD, BACKWARD = 1.0, 2.0
"""Length of a micro-batch's passes on a stage; a separate pass for weights takes half of the second."""


def schedule(
    which: str | Sequence[Sequence[Action]], stages: int = 4, microbatches: int = 8, chunks: int = 2
) -> Figure:
    """Draw a schedule as a Gantt chart.

    The unit of time is the forward pass of a micro-batch through a stage. Stages are equal, a backward pass
    takes twice as long as a forward pass, and messages take no time.

    Parameters
    ----------
    which : str or sequence of sequence of Action
        One of :data:`dlpar.split.schedules.SCHEDULES`, or the list of actions of each stage.
    stages, microbatches : int, default 4 and 8
        Size of a schedule given by its name.
    chunks : int, default 2
        Chunks on a stage, for a schedule that has several.

    Raises
    ------
    ValueError
        If the schedule is not known; :class:`~dlpar.theory.pipeline.Stuck` if stages wait for each other.
    """
    if isinstance(which, str):
        name, lists = which, _lists(which, stages, microbatches, chunks)
    else:
        name, lists = "a schedule of your own", [[Action(*action) for action in own] for own in which]
    stages, chunks = len(lists), 1 + max(action.chunk for own in lists for action in own)
    has_weight_pass = any(action.kind == "W" for action in lists[0])
    backward = BACKWARD / 2 if has_weight_pass else BACKWARD
    seconds = {"F": [FORWARD] * stages, "B": [backward] * stages, "W": [BACKWARD / 2] * stages}
    bars = timed(lists, seconds, chunks)
    held = max(most_in_flight(own, has_weight_pass) for own in lists)
    idle, end = idle_share(bars), max(bar.end for bar in bars)
    sentence = (
        f"{name}, {stages} stages: {end:g} forward passes long, the bubble is {percent(idle)} of the computing time, "
        f"and at most {held} micro-batches{' of a chunk each' * (chunks > 1)} are in flight on a stage."
    )
    table = {
        "stage": [bar.stage for bar in bars],
        "phase": [KINDS[bar.kind] for bar in bars],
        "micro-batch": [bar.micro for bar in bars],
        "chunk": [bar.chunk for bar in bars],
        "start": [bar.start for bar in bars],
        "end": [bar.end for bar in bars],
    }
    facts = {"bubble": idle, "in flight": held}
    return captioned(_ideal_picture(bars, chunks, end), sentence, table, **facts)


def _lists(name: str, stages: int, microbatches: int, chunks: int) -> list[list[Action]]:
    if name not in SCHEDULES:
        raise ValueError(
            f"which: got {name!r}, allowed is one of {', '.join(SCHEDULES)}, or a list of actions a stage"
        )
    chunks = chunks if TRAITS[name].has_chunks else 1
    return [SCHEDULES[name](stage, stages, microbatches, chunks) for stage in range(stages)]


def _ideal_picture(bars: list[Bar], chunks: int, end: float) -> Figure:
    stages = 1 + max(bar.stage for bar in bars)
    layout = theme.layout(
        xaxis=theme.axis("time (forward passes of a micro-batch)", (0, end)),
        yaxis=theme.rows([f"stage {stage}" for stage in range(stages)], automargin=True),
        barmode="overlay",
        bargap=0.15,
        uniformtext={"minsize": 9, "mode": "hide"},
    )
    figure = blank(layout, 42 * stages + 130)
    hover = "micro-batch %{text}<br>stage %{y}: %{x:g} from %{base:g}"
    for chunk in range(chunks):
        for kind, name in KINDS.items():
            own = [bar for bar in bars if (bar.kind, bar.chunk) == (kind, chunk)]
            if own:
                where = {"y": [bar.stage for bar in own], "base": [bar.start for bar in own]}
                lengths, text = [bar.end - bar.start for bar in own], [str(bar.micro) for bar in own]
                looks = {**style(name, chunk, chunks), "hovertemplate": hover}
                figure.add_bar(x=lengths, **where, text=text, **looks)
    return figure


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Colours of schedules, in their order."""

Seconds = Mapping[int, float]
"""Seconds of a step, by the number of micro-batches."""


def micro_batches(runs: Sequence[Run], predicted: Mapping[str, Seconds] = MappingProxyType({})) -> Figure:
    """Draw the duration of a step over the number of micro-batches, a curve for each schedule.

    The lowest point of a curve is marked.

    Parameters
    ----------
    runs : sequence of Run
        Runs split by pipeline, of one world, with two steps or more; the median of their steps counts.
    predicted : mapping of str to mapping of int to float, optional
        Seconds of a step by the number of micro-batches, by schedule; drawn dashed.

    Raises
    ------
    ValueError
        If a run has too few steps, is split in another way, or its world is not that of the first.
    """
    found: dict[str, dict[int, float]] = {}
    runs = finished(runs)
    world = runs[0].experiment.cluster.world
    for run in runs:
        cut, own_world = run.experiment.split, run.experiment.cluster.world
        if cut.kind not in ("pipeline", "hybrid") or own_world != world or len(run.curve) < 2:
            raise ValueError(f"run {run.id}: allowed is a pipeline of two steps or more in the {world} world")
        found.setdefault(cut.schedule, {})[cut.microbatches] = float(run.curve["seconds"].diff().median())
    parts = []
    for name, points in found.items():
        best, most = min(points, key=points.__getitem__), max(points)
        text = f"{name} is fastest with {best} micro-batch{'es' * (best > 1)}, "
        text += f"{captions.quantity(1e3 * points[best])} ms a step"
        longer = f", and takes {points[most] / points[best]:.1f} times as long with {most}"
        parts.append(text + longer * (most > best))
    rows = [
        (how, name, m, s)
        for how, curves in ((theme.HOW[world], found), ("predicted", predicted))
        for name, points in curves.items()
        for m, s in sorted(points.items())
    ]
    columns = zip(("how", "schedule", "micro-batches", "step (s)"), zip(*rows))
    table = {name: list(values) for name, values in columns}
    return captioned(_curves(found, predicted, world), "; ".join(parts) + ".", table)


def _curves(found: dict[str, dict[int, float]], predicted: Mapping[str, Seconds], world: str) -> Figure:
    most = max(s for points in (*found.values(), *predicted.values()) for s in points.values())
    counts = sorted({m for points in found.values() for m in points})
    ticks = {"type": "log", "tickvals": counts, "ticktext": list(map(str, counts))}
    xaxis = theme.axis("number of micro-batches of a step", **ticks)
    yaxis = theme.axis(theme.on_clock("time of a step (ms)", world), (0, theme.rounded_up(1e3 * most)))
    figure = blank(theme.layout(xaxis=xaxis, yaxis=yaxis), 400)
    for colour, symbol, (name, points) in zip(COLOURS, theme.MARKERS, found.items()):
        style = {"mode": "lines+markers", "line": theme.line_by_source(colour, theme.HOW[world]),
                 "marker": {"symbol": symbol, "size": 8}, "name": f"{name}, {theme.HOW[world]}"}  # fmt: skip
        lines = [(points, style)]
        if name in predicted:
            lines.append((predicted[name], theme.predicted_line(f"{name}, predicted", colour)))
        for curve, look in lines:
            x, y = zip(*sorted(curve.items()))
            figure.add_scatter(x=x, y=[1e3 * s for s in y], **look)
        best = min(points, key=points.__getitem__)
        ring = {"symbol": "circle-open", "size": 17, "color": colour, "line": {"width": 2.5}}
        style = {"mode": "markers", "marker": ring, "showlegend": False, "name": f"{name}, fastest"}
        figure.add_scatter(x=[best], y=[1e3 * points[best]], **style)
    return figure
