"""Static figure of a pipeline: what every stage did in one step, above what it would do if it lost no time."""

from __future__ import annotations

from typing import Any

from dlpar.experiment import Experiment
from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, saying
from dlpar.lab.figures.passes import (
    PASSES,
    TALKING,
    Drawn,
    bubble,
    has_flush,
    ideal,
    idle,
    passes,
    since,
    spans,
    stage_of,
    stages_of,
    typical,
    window,
)
from dlpar.lab.live import shown
from dlpar.run import Run

STYLES = {
    "forward": theme.Phase("pass", "#3A97CC", ""),
    "recompute": theme.Phase("pass", "#B79F00", "|"),
    "backward": theme.Phase("pass", "#2CA079", "\\"),
    "weight": theme.Phase("pass", "#A983C9", "x"),
    "bubble": theme.Phase("idle", "#8c8c8c", "/"),
    "receive": theme.Phase("message", "#B5473C", ""),
    "send": theme.Phase("message", "#6b6b6b", ""),
}
"""How passes are drawn; the chunks of a stage are lighter and lighter.  All else looks as in the timeline."""

WAYS = ("run", "ideal")
"""What is compared: what was done, above, and what the schedule would do, below."""

AFTER = 1.2
"""Times the duration of all passes that is shown at most: how replicas agree afterwards may take much longer."""


def pipeline(run: Run, step: int | None = None) -> Figure:
    """What every rank of a pipeline did in a step, micro-batch by micro-batch, and the schedule's ideal below it.

    The ideal has passes as long as the run's are on average (of each rank's median), on every
    stage the same, and messages that take no time.  Of a hybrid, passes include the messages between the
    ranks of a stage.  A bubble is idle over computing seconds, from the first pass of a
    step to its last (Narayanan et al., arXiv 2104.04473, section 2.2.1).

    Parameters
    ----------
    run : Run
        A run split by ``pipeline`` or ``hybrid``, with spans.
    step : int, optional
        Default: the one of median duration.  Of a schedule without a flush, the first of twice as many steps as
        there are stages; default: in the middle of the run.

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
    figure = saying(_picture(experiment, pictures, bubbles), _sentence(experiment, step, pictures, bubbles))
    figure.layout.meta = {**figure.layout.meta, "table": _table(experiment, pictures), "bubble": bubbles}
    return figure


def _picture(experiment: Experiment, pictures: dict[str, list[Drawn]], bubbles: dict[str, float]) -> Figure:
    """Both pictures over one axis of time."""
    ends = [max(bar.end for bar in bars) for each in pictures.values() for bars in (each, passes(each))]
    width = 1e3 * min(max(ends), AFTER * max(ends[1::2]))
    figure = blank(
        _layout(experiment, theme.rounded_up(width), bubbles), 70 * shown.workers(experiment) + 190
    )
    everything = {way: [*idle(experiment, bars), *bars] for way, bars in pictures.items()}
    keys = sorted({_key(bar) for bars in everything.values() for bar in bars}, key=_order)
    for name, chunk in keys:
        look = style(name, chunk, max(c for n, c in keys if n == name) + 1)
        legend = True
        for row, bars in enumerate(everything.values()):
            own = [bar for bar in bars if _key(bar) == (name, chunk)]
            if own:
                figure.add_bar(
                    y=[bar.rank for bar in own],
                    base=[1e3 * bar.start for bar in own],
                    x=[1e3 * (bar.end - bar.start) for bar in own],
                    text=[str(bar.micro) if bar.name in PASSES else "" for bar in own],
                    yaxis="y2" if row else "y",
                    showlegend=legend,
                    **look,
                )
                legend = False
    return figure


def _key(bar: Drawn) -> tuple[str, int]:
    """What is drawn alike: passes through one chunk, all else by its name."""
    return bar.name, bar.chunk if bar.name in PASSES else 0


def _order(key: tuple[str, int]) -> tuple[int, int]:
    names = ["bubble", *PASSES, *TALKING, *theme.PHASES]
    return names.index(key[0]) if key[0] in names else len(names), key[1]


def style(name: str, chunk: int, chunks: int) -> dict[str, Any]:
    """Attributes of a kind of bar; later chunks are lighter."""
    phase = STYLES.get(name) or theme.PHASES.get(name, theme.OTHER)
    told = f"{name}, chunk {chunk}" if chunks > 1 else "bubble: idle" if name == "bubble" else name
    hover = "%{fullData.name}, micro-batch %{text}" if name in PASSES else "%{fullData.name}"
    pattern = {**theme.hatch(phase.pattern), "fgopacity": 0.45} if phase.pattern else {}
    return {
        "orientation": "h",
        "name": told,
        "legendgroup": told,
        "marker": {"color": lighter(phase.colour, 0.6 * chunk / max(chunks - 1, 1)), "pattern": pattern},
        "opacity": 0.45 if name == "bubble" else 1.0,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "inside",
        "insidetextfont": {"color": "#000000", "size": 13},
        **({"width": 0.18, "offset": 0.24} if name in TALKING else {}),
        "hovertemplate": f"{hover}<br>rank %{{y}}: %{{x:.3f}} ms from %{{base:.3f}} ms<extra></extra>",
    }


def lighter(colour: str, share: float) -> str:
    """A colour (``#rrggbb``) mixed with so much white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + share * (255 - part)):02x}" for part in parts)


def _layout(experiment: Experiment, width: float, bubbles: dict[str, float]) -> dict[str, Any]:
    """The run above, the ideal below; `width` in ms."""
    workers = shown.workers(experiment)
    names = [_row(experiment, rank) for rank in range(workers)]
    rows = {"tickvals": list(range(workers)), "ticktext": names, "showgrid": False}
    limits = (workers - 0.5, -0.5)
    titles = {"run": theme.HOW[experiment.cluster.world], "ideal": f"ideal {experiment.split.schedule}"}
    notes = [
        {
            "text": f"{titles[way]}: bubble {percent(bubbles[way])} of computing time",
            "showarrow": False,
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": top,
            "yref": "paper",
            "yanchor": "bottom",
            "font": {"size": 14},
        }
        for way, top in zip(WAYS, (1.0, 0.44))
    ]
    title = theme.on_clock("time since the first of these passes began (ms)", experiment.cluster.world)
    return theme.layout(
        xaxis=theme.axis(title, (0, width), anchor="y2"),
        yaxis=theme.axis("", limits, domain=[0.56, 1], anchor="x", automargin=True, **rows),
        yaxis2=theme.axis("", limits, domain=[0, 0.44], anchor="x", automargin=True, **rows),
        barmode="overlay",
        bargap=0.15,
        annotations=notes,
        uniformtext={"minsize": 9, "mode": "hide"},
        margin={"l": 92, "r": 16, "t": 84, "b": 54},
    )


def _row(experiment: Experiment, rank: int) -> str:
    """A rank and its stage, where these differ."""
    alone = experiment.split.kind == "pipeline" and experiment.replicas == 1
    return f"rank {rank}" if alone else f"rank {rank}, stage {stage_of(experiment, rank)}"


def _sentence(
    experiment: Experiment, step: int, pictures: dict[str, list[Drawn]], bubbles: dict[str, float]
) -> str:
    took, best = (end - start for start, end in (window(passes(bars)) for bars in pictures.values()))
    length = says.duration(took) if took >= 1 else f"{1e3 * took:.3g} ms"
    what = f"Step {step}" if has_flush(experiment) else f"What begins with step {step}"
    found, ideal = (percent(bubbles[way]) for way in WAYS)
    text = (
        f"{what} took {length} from its first pass to its last, {took / best:.2f} times the ideal: "
        f"the bubble was {found} of the time computed, ideally it is {ideal}."
    )
    return shown.note(experiment, text)


def percent(bubble: float) -> str:
    """A bubble, of computing time."""
    return f"{bubble:.0%}" if bubble >= 1 else f"{bubble:.1%}"


def _table(experiment: Experiment, pictures: dict[str, list[Drawn]]) -> dict[str, list]:
    names = {"run": theme.HOW[experiment.cluster.world], "ideal": "ideal"}
    rows = [(names[way], bar) for way, bars in pictures.items() for bar in bars]
    return {
        "picture": [way for way, _ in rows],
        "rank": [bar.rank for _, bar in rows],
        "what": [bar.name for _, bar in rows],
        "micro-batch": [bar.micro if bar.micro >= 0 else None for _, bar in rows],
        "chunk": [bar.chunk if bar.micro >= 0 else None for _, bar in rows],
        "start (ms)": [1e3 * bar.start for _, bar in rows],
        "duration (ms)": [1e3 * (bar.end - bar.start) for _, bar in rows],
    }
