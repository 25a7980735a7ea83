"""Static figures of a pipeline step: measured and ideal passes of micro-batches, the bubble, and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

import pandas as pd

from dlpar.config.experiment import Experiment
from dlpar.config.split import SCHEDULES as TRAITS
from dlpar.jobs.run import Run
from dlpar.jobs.tail import rank_of
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, Names, Runs, blank, captioned, finished, gantt, require, single, stacked
from dlpar.lab.labels import labels
from dlpar.memory import bytes_of, model_state
from dlpar.split.mesh import coordinates, sizes_of
from dlpar.split.schedules import SCHEDULES, Action
from dlpar.theory import sizes
from dlpar.theory.pipeline import Bar, actions_of, idle_share, most_in_flight, timed
from dlpar.theory.pipeline import timeline as ideal_bars

KINDS = {"F": "forward", "R": "recompute", "B": "backward", "W": "weight"}
"""Names of a schedule's actions in records and of the bars in figures."""

PASSES = ("forward", "recompute", "backward", "weight")
"""Spans in which a stage computes for a micro-batch."""

TALKING = ("receive", "send", "reduce")
"""Spans in which a stage waits for messages, drawn as a strip at the foot of its row."""


def stages_of(experiment: Experiment) -> int:
    """Return the number of stages of a replica."""
    return sizes_of(experiment)["pipeline"]


def stage_of(experiment: Experiment, rank: int) -> int:
    """Return a worker's stage, 0-based."""
    return coordinates(rank, sizes_of(experiment))["pipeline"]


def has_flush(experiment: Experiment) -> bool:
    """Return whether a step ends before the next step begins."""
    return experiment.split.traits.has_flush


def spans(run: Run) -> dict[int, list[Bar]]:
    """Return the bars of drawn ranks for each step that has passes.

    Each pass is one piece, which includes the messages of a hybrid's cut layers. The micro-batch of a span is
    None if the span has none.
    """
    found: dict[int, list[Bar]] = {}
    for source, record in run.records():
        if record["k"] != "step" or (rank := rank_of(source)) >= theme.workers(run.experiment):
            continue
        whole: dict[Any, Bar] = {}
        for number, (name, start, end, *of) in enumerate(record["spans"]):
            bar, key = Bar(rank, name, *(of or (None, None)), start, end), number
            if name in PASSES:
                bar, key = whole.get((name, *of), bar), (name, *of)
            whole[key] = bar._replace(end=end)
        found.setdefault(record["step"], []).extend(whole.values())
    return {step: bars for step, bars in found.items() if passes(bars)}


def passes(bars: Iterable[Bar]) -> list[Bar]:
    """Return the bars that show a pass of a micro-batch."""
    return [bar for bar in bars if bar.kind in PASSES]


def window(bars: list[Bar]) -> tuple[float, float]:
    """Return the start of the first bar and the end of the last bar."""
    return min(bar.start for bar in bars), max(bar.end for bar in bars)


def typical(experiment: Experiment, by_step: dict[int, list[Bar]]) -> range:
    """Return the step of median duration, excluding the slow first step.

    Of overlapping steps, return some from the middle.
    """
    if not has_flush(experiment):
        count = min(2 * stages_of(experiment), len(by_step))
        first = sorted(by_step)[(len(by_step) - count) // 2]
        return range(first, first + count)
    last = {step: window(passes(bars)) for step, bars in by_step.items()}
    later = {step: end - start for step, (start, end) in last.items() if step or len(last) == 1}
    middle = median(later.values())
    step = min(later, key=lambda step: abs(later[step] - middle))
    return range(step, step + 1)


def ideal(experiment: Experiment, measured: list[Bar], steps: range) -> list[Bar]:
    """Return the schedule's bars for equal stages. They start with the first measured pass."""
    cut, stages, total = experiment.split, stages_of(experiment), experiment.steps
    chunks = cut.chunks if cut.schedule == "interleaved" else 1
    durations = pd.DataFrame(passes(measured)).assign(seconds=lambda bars: bars["end"] - bars["start"])
    # The median of each rank, so that one delayed pass does not affect all.
    means = durations.groupby(["kind", "stage"])["seconds"].median().groupby("kind").mean()
    times = {name: chunks * float(means.get(name, 0.0)) for name in PASSES}
    times["backward"] += times["weight"]
    lag = 0
    if has_flush(experiment):
        bars = ideal_bars(cut.schedule, stages, cut.microbatches, chunks, **times)
    else:  # a part of the list in which the pipeline stays equally full
        first = min(steps.start, 2 * stages)
        lag = steps.start - first
        bars = ideal_bars(cut.schedule, stages, min(first + len(steps) + stages, total - lag), **times)
        bars = [bar for bar in bars if 0 <= _step_of(bar, stages) - first < len(steps)]
    begins = window(passes(measured))[0] - window(bars)[0]
    return [
        Bar(rank, KINDS[bar.kind], bar.micro + lag, bar.chunk, begins + bar.start, begins + bar.end)
        for rank in range(theme.workers(experiment))
        for bar in bars
        if bar.stage == stage_of(experiment, rank)
    ]


def _step_of(bar: Bar, stages: int) -> int:
    """Return the step of a pass without a flush.

    Each micro-batch is a step, and early stages are ahead.
    """
    return max(0, bar.micro - (stages - 1 - bar.stage)) if bar.kind == "F" else bar.micro


def windows(experiment: Experiment, bars: Iterable[Bar]) -> list[list[Bar]]:
    """Group passes by the window of their bubble: for each replica, from its first pass to its last.

    Without a flush each rank has its own window, because a step begins at different times on ranks.
    """
    found: dict[int, list[Bar]] = defaultdict(list)
    for bar in passes(bars):
        replica = coordinates(bar.stage, sizes_of(experiment))["data"]
        found[replica if has_flush(experiment) else bar.stage].append(bar)
    return list(found.values())


def idle(experiment: Experiment, bars: list[Bar]) -> list[Bar]:
    """Return the bubble as bars: the times when a rank is idle or waits for a message."""
    found = []
    for own in windows(experiment, bars):
        begin, end = window(own)
        for rank in {bar.stage for bar in own}:
            busy = sorted((b.start, b.end) for b in bars if b.stage == rank and b.kind not in TALKING)
            free = accumulate((stop for _, stop in busy), max, initial=begin)
            taken = [*(min(start, end) for start, _ in busy), end]
            found += [Bar(rank, "bubble", None, None, *gap) for gap in zip(free, taken)]
    return [bar for bar in found if bar.end > bar.start]


ORDER = ["bubble", *PASSES, *TALKING, *theme.PHASES]
"""Order of the legend."""

AFTER = 1.2
"""Longest shown time, as a multiple of the duration of all passes. The synchronisation of replicas
afterwards may take much longer.
"""


def pipeline(run: Run) -> Figure:
    """Draw a step of every rank of a pipeline, micro-batch by micro-batch, above the schedule's ideal.

    The step has the median duration. For a schedule without a flush, the figure shows steps from the middle of
    the run, twice as many as stages.

    In the ideal, all stages are equal and messages take no time. An ideal pass has the run's average duration
    (mean over each rank's median). The passes of a hybrid include the messages between the ranks of a
    stage. A bubble is the ratio of idle to computing seconds, from the first pass of a step to the last
    (Narayanan et al., arXiv 2104.04473, section 2.2.1).

    Parameters
    ----------
    run : Run
        A run split by ``pipeline`` or ``hybrid``, with spans.

    Raises
    ------
    ValueError
        If the run is split in another way, or has no spans.
    """
    run = single(run)
    experiment, cut = run.experiment, run.experiment.split
    fine = cut.kind in ("pipeline", "hybrid") and stages_of(experiment) > 1
    require(fine, f"run {run.id}: got split {cut}, allowed are two or more stages of a pipeline or hybrid")
    by_step = spans(run)
    require(len(by_step) > 0, f"run {run.id}: no spans of passes were recorded, so there is no timeline")
    steps = typical(experiment, by_step)
    done = [bar for each in steps for bar in by_step.get(each, ())]
    begin, _ = window(passes(done))
    how = theme.HOW[experiment.cluster.world]
    pictures = {how: _since(begin, done), "ideal": _since(begin, ideal(experiment, done, steps))}
    bubbles = [fmean(map(idle_share, windows(experiment, bars))) for bars in pictures.values()]
    names = [f"rank {rank}" for rank in range(theme.workers(experiment))]
    if cut.kind == "hybrid" or experiment.replicas > 1:
        names = [f"{name}, stage {stage_of(experiment, rank)}" for rank, name in enumerate(names)]
    texts = zip((how, f"ideal {cut.schedule}"), bubbles, (1.0, 0.44))
    notes = [theme.annotation(f"{what}: bubble {percent(share)} of computing time", 0, top, xanchor="left")
             for what, share, top in texts]  # fmt: skip
    ends = [window(own)[1] for bars in pictures.values() for own in (bars, passes(bars))]
    title = theme.on_clock("time since the first of these passes began (ms)", experiment.cluster.world)
    width = theme.rounded_up(min(max(ends), AFTER * max(ends[1::2])))
    layout = _layout(title, width, names, domain=[0.56, 1])
    layout["xaxis"]["anchor"], layout["annotations"] = "y2", notes
    layout["yaxis2"] = {**layout["yaxis"], "domain": [0, 0.44]}
    figure = blank(70 * len(names) + 190, **layout, margin={"l": 92, "r": 16, "t": 84, "b": 54})
    for yaxis, bars in zip(("y", "y2"), pictures.values()):
        _add(figure, [*idle(experiment, bars), *bars], yaxis)
    heads = ("picture", "rank", "phase", "micro-batch", "chunk", "start (ms)", "duration (ms)")
    rows = [(way, *bar[:5], bar.end - bar.start) for way, bars in pictures.items() for bar in bars]
    sentence = _sentence(experiment, steps.start, pictures, bubbles)
    return captioned(figure, sentence, (heads, rows), bubble=dict(zip(("run", "ideal"), bubbles)))


def _since(begin: float, bars: Iterable[Bar]) -> list[Bar]:
    """Return the bars that end after `begin`, in ms since `begin`."""
    after = (bar._replace(start=1e3 * max(bar.start - begin, 0), end=1e3 * (bar.end - begin)) for bar in bars)
    return [bar for bar in after if bar.end > 0]


def _sentence(experiment: Experiment, step: int, pictures: dict[str, list[Bar]], bubbles: list[float]) -> str:
    took, best = (end - start for start, end in (window(passes(bars)) for bars in pictures.values()))
    length = captions.duration(took / 1e3) if took >= 1e3 else f"{took:.3g} ms"
    part = f"Step {step}" if has_flush(experiment) else f"The part from step {step} on"
    found, least = (percent(max(0.0, bubble)) for bubble in bubbles)
    text = (
        f"{part} took {length} from its first pass to its last, {took / best:.2f} times the ideal: "
        f"the bubble was {found} of the computing time; ideally it is {least}."
    )
    return captions.shown_workers(experiment, text)


def percent(bubble: float) -> str:
    """Return a bubble as a percentage of computation time."""
    return f"{bubble:.0%}" if bubble >= 1 else f"{bubble:.1%}"


def _layout(title: str, width: float, names: Sequence[str], **rows: Any) -> dict[str, Any]:
    xaxis, yaxis = theme.axis(title, (0, width)), theme.rows(names, automargin=True, anchor="x", **rows)
    fit = {"uniformtext": {"minsize": 9, "mode": "hide"}, "barmode": "overlay", "bargap": 0.15}
    return {"xaxis": xaxis, "yaxis": yaxis, **fit}


def _add(figure: Figure, bars: Sequence[Bar], yaxis: str = "y") -> None:
    """Add a timeline to a figure.

    The timeline has a trace for each phase and chunk of passes, and a row for each stage or rank.
    """
    named = {trace.name for trace in figure.data}
    chunks = 1 + max(bar.chunk or 0 for bar in bars)
    by_look: dict[tuple[str, int], list[Bar]] = defaultdict(list)
    for bar in bars:
        by_look[bar.kind, bar.chunk if bar.kind in PASSES else 0].append(bar)
    for name, chunk in sorted(by_look, key=lambda key: ((*ORDER, key[0]).index(key[0]), key[1])):
        own, look = by_look[name, chunk], _look(name, chunk, chunks)
        texts = [str(bar.micro) if name in PASSES else "" for bar in own]
        drawn = [(bar.stage, bar.start, bar.end - bar.start, text) for bar, text in zip(own, texts)]
        gantt(figure, drawn, yaxis=yaxis, showlegend=look["name"] not in named, **look)


def _look(name: str, chunk: int, chunks: int) -> dict[str, Any]:
    """Return plotly attributes of a kind of bar. Later chunks are lighter."""
    is_pass, own = name in PASSES, theme.PHASES.get(name, theme.OTHER).colour
    title = f"{name}, chunk {chunk}" if is_pass and chunks > 1 else name
    title = "bubble: idle" if name == "bubble" else title
    colour = theme.lighter(theme.PIPELINE.get(name, own), 0.6 * chunk / max(chunks - 1, 1))
    marker = {"color": colour, "pattern": theme.hatch("/" * (name == "bubble"))}
    micro = ", micro-batch %{text}" if is_pass else ""
    hover = f"%{{fullData.name}}{micro}: %{{x:.4g}}, from %{{base:.4g}}<extra></extra>"
    look = {"name": title, "legendgroup": title, "marker": marker, "hovertemplate": hover, **theme.INSIDE}
    strip = {"width": 0.18, "offset": 0.24} if name in TALKING else {}
    return {**look, **strip, "opacity": 0.45 if name == "bubble" else 1.0}


FORWARD, BACKWARD = 1.0, 2.0
"""Lengths of a micro-batch's passes on a stage. A separate pass for weights takes half of the backward pass.
"""


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
        Size of a schedule that is given by name.
    chunks : int, default 2
        Chunks on a stage, for a schedule with several.

    Raises
    ------
    ValueError
        If the schedule is not known, or a number is not allowed; :class:`~dlpar.theory.pipeline.Stuck` if stages
        wait for each other.
    """
    name = which if isinstance(which, str) else "a schedule of your own"
    if not isinstance(which, str):
        lists = [[Action(*action) for action in own] for own in which]
    else:
        allowed = f"allowed is one of {', '.join(SCHEDULES)}, or a list of actions a stage"
        require(which in SCHEDULES, f"which: got {which!r}, {allowed}")
        lists = actions_of(which, stages, microbatches, chunks if TRAITS[which].has_chunks else 1)
    stages, chunks = len(lists), 1 + max(action.chunk for own in lists for action in own)
    has_weight_pass = any(action.kind == "W" for action in lists[0])
    seconds = {"F": FORWARD, "B": BACKWARD / (1 + has_weight_pass), "W": BACKWARD / 2}
    bars = timed(lists, {kind: [each] * stages for kind, each in seconds.items()}, chunks)
    bars = [bar._replace(kind=KINDS[bar.kind]) for bar in bars]
    held = max(most_in_flight(own, has_weight_pass) for own in lists)
    share, (_, end) = idle_share(bars), window(bars)
    sentence = (
        f"{name}, {stages} stages: {end:g} forward passes long, the bubble is {percent(share)} of the computing time, "
        f"and at most {held} micro-batches{' of a chunk each' * (chunks > 1)} are in flight on a stage."
    )
    names = [f"stage {stage}" for stage in range(stages)]
    figure = blank(42 * stages + 130, **_layout("time (forward passes of a micro-batch)", end, names))
    _add(figure, bars)
    heads = ("stage", "phase", "micro-batch", "chunk", "start", "end")
    return captioned(figure, sentence, (heads, bars), bubble=share, **{"in flight": held})


Seconds = Mapping[int, float]
"""Seconds of a step, by the number of micro-batches."""


def micro_batches(runs: Sequence[Run], predicted: Mapping[str, Seconds] = MappingProxyType({})) -> Figure:
    """Draw a step's duration against the number of micro-batches.

    Each schedule has a curve with its lowest point.

    Parameters
    ----------
    runs : sequence of Run
        Pipeline runs of one world with two steps or more. The median of their steps counts.
    predicted : mapping of str to mapping of int to float, optional
        Seconds of a step by schedule and number of micro-batches, drawn as dashed lines.

    Raises
    ------
    ValueError
        If a run has too few steps, another split, or a different world from the first run.
    """
    found: dict[str, dict[int, float]] = {}
    runs = finished(runs)
    world = runs[0].experiment.cluster.world
    for run in runs:
        cut, own_world = run.experiment.split, run.experiment.cluster.world
        fine = cut.kind in ("pipeline", "hybrid") and own_world == world and len(run.curve) > 1
        require(fine, f"run {run.id}: allowed is a pipeline of two steps or more in the {world} world")
        found.setdefault(cut.schedule, {})[cut.microbatches] = float(run.curve["seconds"].diff().median())
    curves = [(theme.HOW[world], name, points) for name, points in found.items()]
    curves += [("predicted", name, predicted[name]) for name in found if name in predicted]
    rows = [(how, name, m, s) for how, name, points in curves for m, s in sorted(points.items())]
    xaxis = theme.log_axis("number of micro-batches of a step", sorted({m for _, _, m, _ in rows}))
    title, top = theme.on_clock("time of a step (ms)", world), max(s for *_, s in rows)
    figure = blank(400, xaxis=xaxis, yaxis=theme.axis(title, (0, theme.rounded_up(1.05e3 * top))))
    looks, parts = dict(zip(found, zip(theme.RUNS, theme.MARKERS))), []
    for how, name, points in curves:
        x, y = zip(*sorted(points.items()))
        look = theme.result(f"{name}, {how}", looks[name][0], how, looks[name][1])
        figure.add_scatter(x=x, y=[1e3 * s for s in y], **look)
    for name, points in found.items():
        best, most = min(points, key=points.__getitem__), max(points)
        text = f"{name} is fastest with {best} micro-batch{'es' * (best > 1)}, "
        longer = f", and takes {points[most] / points[best]:.1f} times as long with {most}"
        parts.append(f"{text}{captions.quantity(1e3 * points[best])} ms a step{longer * (most > best)}")
        ring = theme.LOOKS["ring"] | {"marker": {**theme.LOOKS["ring"]["marker"], "color": looks[name][0]}}
        figure.add_scatter(x=[best], y=[1e3 * points[best]], name=f"{name}, fastest", **ring)
    return captioned(figure, "; ".join(parts) + ".", (("how", "schedule", "micro-batches", "step (s)"), rows))


# ---- memory ------------------------------------------------------------------------------


STATE = ("weights", "gradients", "optimizer")
"""Kinds that have a closed form."""

INSTANTS = 400
"""Number of parts into which a step is divided. The largest and the last value of each part are drawn."""

States = Sequence[float | None]
"""Bytes of a rank by the closed form; None if there is none."""


def memory(runs: Runs, titles: Names = None) -> Figure:
    """Draw each rank's memory by kind at a step's peak. For several runs, draw each run's fullest rank.

    The step is the last one with recorded memory. If the model is split only by data, a mark shows weights,
    gradients and optimizer state by the closed form (Rajbhandari et al., arXiv 1910.02054, section 5). For a
    single run, a second panel shows the memory over the time of the step. For a pipeline, the caption gives
    the micro-batches in flight.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs in a world in which ranks compute values.
    titles : sequence of str, optional
        Name of each of several runs; default: the settings in which it differs from the others.

    Raises
    ------
    ValueError
        If a run has no record of memory.
    """
    runs = finished(runs, titles)
    held = [_last(run, "memory") for run in runs]
    for run, of_run in zip(runs, held):
        allowed = "allowed is a run whose ranks compute with numbers"
        require(len(of_run) > 0, f"run {run.id}: no memory was recorded, {allowed}")
    one, states = len(runs) == 1, [_state(run.experiment) for run in runs]
    if one:
        names, rows = [f"rank {rank}" for rank in held[0]], list(held[0].values())
        states *= len(rows)
    else:
        names = list(titles or labels([run.experiment for run in runs]))
        rows = [max(of_run.values(), key=lambda row: sum(row.values())) for of_run in held]
    peaks = pd.DataFrame(rows, columns=list(theme.MEMORY)).fillna(0)
    total = peaks.sum(axis=1)
    scale, unit = theme.unit_of(total.max())
    parts = {kind: ({"marker_color": theme.MEMORY[kind]}, peaks[kind] / scale) for kind in peaks}
    forms = [state and state / scale for state in states]
    title = f"memory of a rank at the peak of a step ({unit})"
    figure = stacked(title, names, parts, ("closed form of the first three", forms))
    figure.update_layout(legend_entrywidth=0)
    over_time = _last(runs[0], "memory_over_time") if one else {}
    if over_time:
        _add_course(figure, runs[0].experiment, over_time, scale, unit)
    columns = {"": names, **{f"{kind} ({unit})": peaks[kind] / scale for kind in peaks}}
    columns[f"total ({unit})"] = total / scale
    if any(forms):
        columns[f"closed form of weights, gradients, optimizer ({unit})"] = forms
    amounts = [f"{captions.quantity(each)} {unit}" for each in total / scale]
    text = _memory_in_words(names, peaks, amounts, states)
    flights = [r["in_flight"] for _, r in runs[0].records() if "in_flight" in r] if one else []
    if flights:
        each = " of a chunk each" * (runs[0].experiment.split.schedule == "interleaved")
        text += f"; at most {max(flights)} micro-batch{'es' * (max(flights) > 1)}{each} in flight on a rank"
    text = captions.shown_workers(runs[0].experiment, f"{text}.") if one else f"{text}."
    return captioned(figure, text, (list(columns), list(zip(*columns.values()))))


def _last(run: Run, what: str) -> dict[int, Any]:
    """Return `what` of each drawn rank's last step with such a record. A rank's records are in order."""
    last: dict[int, Any] = {}
    for source, record in run.records():
        if record["k"] == "step" and record.get(what):
            last[rank_of(source)] = record[what]
    return {rank: last[rank] for rank in sorted(last) if rank < theme.workers(run.experiment)}


def _state(experiment: Experiment) -> float | None:
    """Return closed-form bytes of weights, gradients and optimizer state, or None if there is no closed form."""
    split, sync = experiment.split, experiment.sync
    if split.kind != "data" or sync.scheme != "ring" or experiment.averaging.method != "none":
        return None
    each = bytes_of(experiment.optimizer, experiment.itemsize)
    return model_state(sizes(experiment).parameters, experiment.workers, split.zero, each).total


def _add_course(
    figure: Figure, experiment: Experiment, held: dict[int, list], scale: float, unit: str
) -> None:
    """Add each rank's memory over the time of a step. It is drawn to the right of the bars."""
    courses = {rank: pd.DataFrame(points, columns=["t", "held"]) for rank, points in held.items()}
    everything = pd.concat(courses)
    begin, end = everything["t"].min(), everything["t"].max()
    time = theme.on_clock("time in a step (ms)", experiment.cluster.world)
    across = theme.axis(time, (0, theme.rounded_up(1e3 * (end - begin))), domain=[0.56, 1], anchor="y2")
    top = theme.rounded_up(everything["held"].max() / scale)
    figure.layout.xaxis.domain, figure.layout.xaxis2 = [0, 0.46], across
    figure.layout.yaxis2 = theme.axis(f"held ({unit})", (0, top), anchor="x2", nticks=5)
    figure.layout.height = max(figure.layout.height, 320)
    for rank, course in courses.items():
        parts = course["held"].groupby(((course["t"] - begin) / (end - begin or 1) * INSTANTS).astype(int))
        kept = course.loc[sorted({*parts.idxmax(), *parts.tail(1).index})]
        line = {**theme.rank_line(rank)["line"], "shape": "hv", "width": 2.5}
        where = {"xaxis": "x2", "yaxis": "y2", "mode": "lines", "name": f"rank {rank}"}
        figure.add_scatter(x=1e3 * (kept["t"] - begin), y=kept["held"] / scale, line=line, **where)


def _memory_in_words(names: list[str], peaks: pd.DataFrame, amounts: list[str], states: States) -> str:
    total, sums = peaks.sum(axis=1), peaks[list(STATE)].sum(axis=1)
    most, least = total.idxmax(), total.idxmin()
    kind, share = peaks.loc[most].idxmax(), peaks.loc[most].max() / total[most]
    text = f"At its peak {names[most]} held {amounts[most]}, {share:.0%} of it {kind}"
    if amounts[most] != amounts[least]:
        text += f"; {names[least]} held the least, {amounts[least]}"
    errors = [abs(own / state - 1) for own, state in zip(sums, states) if state]
    if errors:
        by = "less than 0.1%" if max(errors) < 1e-3 else f"at most {max(errors):.1%}"
        text += f"; weights, gradients and optimizer state differ from the closed form by {by}"
    return text
