"""Static figure of a pipeline's micro-batches: how long a step takes with more and more of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, finished, saying
from dlpar.run import Run

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Of schedules, as they come."""

Seconds = Mapping[int, float]
"""Of a step, by the number of micro-batches."""


def micro_batches(runs: Sequence[Run], predicted: Mapping[str, Seconds] = {}) -> Figure:
    """Duration of a step over the number of micro-batches, a curve for each schedule; the lowest point is marked.

    Parameters
    ----------
    runs : sequence of Run
        Split by pipeline, of one world, with two steps or more; of their steps the median counts.
    predicted : mapping of str to mapping of int to float
        Seconds of a step by the number of micro-batches, by schedule; drawn dashed.

    Raises
    ------
    ValueError
        If a run has too few steps, is split in another way, or lives in another world than the first.
    """
    found: dict[str, dict[int, float]] = {}
    runs = finished(runs)
    world = runs[0].experiment.cluster.world
    for run in runs:
        cut = run.experiment.split
        if (
            cut.kind not in ("pipeline", "hybrid")
            or run.experiment.cluster.world != world
            or len(run.curve) < 2
        ):
            raise ValueError(f"run {run.id}: allowed is a pipeline of two steps or more in the {world} world")
        found.setdefault(cut.schedule, {})[cut.microbatches] = float(run.curve["seconds"].diff().median())
    figure = _picture(found, predicted, world)
    best = {name: min(points, key=points.__getitem__) for name, points in found.items()}
    told = [
        f"{name} is quickest with {best[name]} micro-batch{'es' * (best[name] > 1)}, "
        f"{says.quantity(1e3 * points[best[name]])} ms a step"
        + f", and takes {points[max(points)] / points[best[name]]:.1f} times as long with {max(points)}"
        * (max(points) > best[name])
        for name, points in found.items()
    ]
    saying(figure, "; ".join(told) + ".")
    rows = [
        (theme.HOW[world], name, m, s) for name, points in found.items() for m, s in sorted(points.items())
    ]
    rows += [
        ("predicted", name, m, s) for name, points in predicted.items() for m, s in sorted(points.items())
    ]
    columns = zip(("how", "schedule", "micro-batches", "step (s)"), zip(*rows))
    figure.layout.meta = {**figure.layout.meta, "table": {name: list(values) for name, values in columns}}
    return figure


def _picture(found: dict[str, dict[int, float]], predicted: Mapping[str, Seconds], world: str) -> Figure:
    each = [s for points in (*found.values(), *predicted.values()) for s in points.values()]
    counts = sorted({m for points in found.values() for m in points})
    ticks = {"type": "log", "tickvals": counts, "ticktext": list(map(str, counts))}
    across = theme.axis("micro-batches a step is cut into", **ticks)
    up = theme.axis(theme.on_clock("time of a step (ms)", world), (0, theme.rounded_up(1e3 * max(each))))
    figure = blank(theme.layout(xaxis=across, yaxis=up), 400)
    for colour, marker, (name, points) in zip(COLOURS, theme.MARKERS, found.items()):
        x, y = zip(*sorted(points.items()))
        line = {"mode": "lines+markers", "line": {"color": colour, "width": 2.5},
                "marker": {"symbol": marker, "size": 8}}  # fmt: skip
        figure.add_scatter(
            x=x, y=[1e3 * s for s in y], name=f"{name}, {theme.HOW[world]}", **theme.of_world(line, world)
        )
        if name in predicted:
            x, y = zip(*sorted(predicted[name].items()))
            figure.add_scatter(
                x=x,
                y=[1e3 * s for s in y],
                name=f"{name}, predicted",
                mode="lines",
                line={"color": colour, "width": 2, **theme.PREDICTED},
            )
        least = min(points, key=points.__getitem__)
        ring = {"symbol": "circle-open", "size": 17, "color": colour, "line": {"width": 2.5}}
        figure.add_scatter(
            x=[least],
            y=[1e3 * points[least]],
            mode="markers",
            marker=ring,
            showlegend=False,
            name=f"{name}, quickest",
        )
    return figure
