"""Static figure of whether replicas agree: their consensus distance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, finished, saying, thinned
from dlpar.lab.labels import labels, with_world
from dlpar.lab.live import consensus as distances
from dlpar.run import Run


def consensus(
    runs: Run | Sequence[Run], predicted: bool = True, titles: Sequence[str] | None = None
) -> Figure:
    """Consensus distance over steps, on a logarithmic axis.

    Parameters
    ----------
    runs : Run or sequence of Run
        Runs of gossip or with local steps.
    predicted : bool
        Say how mixing alone would shrink it each step, on a fixed graph by |lambda_2| of its weights; and draw
        that, dashed, where replicas begin apart (``start="random"``).
    titles : sequence of str, optional
        What each of several runs is called; default: what tells them apart.
    """
    runs = finished(runs, titles)
    figure, seen, said = blank(distances.layout(runs[0].experiment)), [], []
    names = (
        (titles or labels([run.experiment for run in runs])) if len(runs) > 1 else [theme.HOW[runs[0].world]]
    )
    for number, (run, name) in enumerate(zip(runs, names)):
        rows = run.consensus
        if rows.empty:
            n = run.experiment.workers
            raise ValueError(
                f"run {run.id}: got sync {run.experiment.sync} with {n} worker{'s' * (n != 1)}, allowed is "
                f"gossip, or averaging, with two or more: its replicas are equal at every step"
            )
        rows = rows[
            (rows["distance"] > distances.FLOOR).cummax()
        ]  # the zero of replicas that begin equal is left out
        if rows.empty:
            raise ValueError(
                f"run {run.id}: its replicas were equal at every step, so there is no distance to draw"
            )
        drawn = np.maximum(rows["distance"], distances.FLOOR)
        style = theme.beside(theme.scheme_colour(run.experiment.sync.scheme), number, run.world)
        kept = thinned(rows.assign(distance=drawn))
        figure.add_scatter(x=kept["step"], y=kept["distance"], name=with_world(name, run.experiment), **style)
        first, last = ((int(r["step"]), float(r["distance"])) for _, r in rows.iloc[[0, -1]].iterrows())
        factor = distances.contraction(run.experiment) if predicted else None
        if factor is not None and distances.starts_apart(run.experiment):
            points = distances.predicted_points(first, factor, last[0])
            line = distances.predicted_line(factor)
            shown = {"name": f"{name}: predicted × {factor:.3f}"} if len(runs) > 1 else {}
            figure.add_scatter(x=points[:, 0], y=points[:, 1], **{**line, **shown})
        seen.append(drawn.to_numpy())
        warning = distances.disagreement(run.experiment)
        mixed = "" if factor is None else says.mixing(factor, run.experiment)
        sentence = says.consensus(first, last, float(rows["distance"].max()), mixed, warning)
        said.append(f"{name}: {sentence}" if len(runs) > 1 else sentence)
    figure.layout.yaxis.range = ends = distances.decades(np.concatenate(seen))
    figure.layout.yaxis.dtick = distances.tick_every(*ends)
    figure.layout.xaxis.range = [0, max(run.experiment.steps for run in runs)]
    return saying(figure, " ".join(said))
