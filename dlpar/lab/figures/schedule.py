"""Static figure of a schedule alone: what each stage would do when, on a machine that loses no time."""

from __future__ import annotations

from collections.abc import Sequence

from dlpar.costmodel.timeline import Bar, idle_share, most_in_flight, timed
from dlpar.lab import theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, saying
from dlpar.lab.figures.passes import KINDS
from dlpar.lab.figures.pipeline import percent, style
from dlpar.split.schedules import SCHEDULES, Action

FORWARD, BACKWARD = 1.0, 2.0
"""Length of a micro-batch's passes on a stage; where weights have a pass of their own it is half of the second."""


def schedule(
    which: str | Sequence[Sequence[Action]], stages: int = 4, microbatches: int = 8, chunks: int = 2
) -> Figure:
    """A schedule as a Gantt chart; the unit of time is a forward pass of a micro-batch through a stage.

    Stages are equal, a backward pass takes twice as long as a forward one, and messages take no time.

    Parameters
    ----------
    which : str or sequence of sequence of Action
        One of :data:`dlpar.split.schedules.SCHEDULES`, or the list of actions of each stage.
    stages, microbatches : int
        Of a schedule that is named.
    chunks : int
        Of one that has several on a stage.

    Raises
    ------
    ValueError
        If there is no such schedule; :class:`~dlpar.costmodel.timeline.Stuck` if stages wait for each other.
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
    figure = _picture(bars, chunks, end)
    saying(
        figure,
        f"{name}, {stages} stages: {end:g} forward passes long, the bubble is {percent(idle)} of the time computed, "
        f"and at most {held} micro-batches{' of a chunk each' * (chunks > 1)} are in flight on a stage.",
    )
    table = {
        "stage": [bar.stage for bar in bars],
        "what": [KINDS[bar.kind] for bar in bars],
        "micro-batch": [bar.micro for bar in bars],
        "chunk": [bar.chunk for bar in bars],
        "start": [bar.start for bar in bars],
        "end": [bar.end for bar in bars],
    }
    figure.layout.meta = {**figure.layout.meta, "table": table, "bubble": idle, "in flight": held}
    return figure


def _lists(name: str, stages: int, microbatches: int, chunks: int) -> list[list[Action]]:
    if name not in SCHEDULES:
        raise ValueError(
            f"which: got {name!r}, allowed is one of {', '.join(SCHEDULES)}, or a list of actions a stage"
        )
    chunks = chunks if SCHEDULES[name].has_chunks else 1
    return [SCHEDULES[name].actions(stage, stages, microbatches, chunks) for stage in range(stages)]


def _picture(bars: list[Bar], chunks: int, end: float) -> Figure:
    stages = 1 + max(bar.stage for bar in bars)
    names = [f"stage {stage}" for stage in range(stages)]
    rows = {"tickvals": list(range(stages)), "ticktext": names, "showgrid": False}
    layout = theme.layout(
        xaxis=theme.axis("time (forward passes of a micro-batch)", (0, end)),
        yaxis=theme.axis("", (stages - 0.5, -0.5), automargin=True, **rows),
        barmode="overlay",
        bargap=0.15,
        uniformtext={"minsize": 9, "mode": "hide"},
    )
    figure, hover = (
        blank(layout, 42 * stages + 130),
        "micro-batch %{text}<br>stage %{y}: %{x:g} from %{base:g}",
    )
    for chunk in range(chunks):
        for kind, name in KINDS.items():
            own = [bar for bar in bars if (bar.kind, bar.chunk) == (kind, chunk)]
            if own:
                figure.add_bar(
                    y=[bar.stage for bar in own],
                    base=[bar.start for bar in own],
                    x=[bar.end - bar.start for bar in own],
                    text=[str(bar.micro) for bar in own],
                    **{**style(name, chunk, chunks), "hovertemplate": hover},
                )
    return figure
