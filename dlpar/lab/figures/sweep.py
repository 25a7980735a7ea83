"""Static figure of a sweep: speed-up and efficiency where workers vary, else how fast each experiment is."""

from __future__ import annotations

from collections.abc import Sequence

from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, saying
from dlpar.lab.figures.scaling import curves, scaling
from dlpar.lab.labels import labels, scheme
from dlpar.sweep import Outcome


def sweep(outcomes: Sequence[Outcome]) -> Figure:
    """The figure that fits what varies.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Done, one or more.
    """
    drawn = curves(outcomes)
    return scaling(drawn) if any(len(curve.points) > 1 for curve in drawn) else rates(outcomes)


def rates(outcomes: Sequence[Outcome]) -> Figure:
    """Samples a second of each experiment as a bar, faint where simulated; a diamond where the closed form puts it."""
    experiments = [outcome.experiment for outcome in outcomes]
    names = labels(experiments) if len(outcomes) > 1 else [scheme(experiments[0])]
    places = list(range(len(outcomes)))
    most = max(max(o.samples_per_s, o.predicted_samples_per_s or 0.0) for o in outcomes)
    rows = theme.axis(
        "", (len(outcomes) - 0.5, -0.5), tickvals=places, ticktext=names, showgrid=False, automargin=True
    )
    xaxis = theme.axis("throughput (samples/s)", (0, theme.rounded_up(most)))
    figure = blank(theme.layout(xaxis=xaxis, yaxis=rows, bargap=0.35), max(260, 34 * len(outcomes) + 140))
    for kind in dict.fromkeys(theme.HOW[e.cluster.world] for e in experiments):
        own = [n for n in places if theme.HOW[experiments[n].cluster.world] == kind]
        colours = [theme.scheme_colour(experiments[n].sync.scheme) for n in own]
        figure.add_bar(
            y=own,
            x=[outcomes[n].samples_per_s for n in own],
            orientation="h",
            name=kind,
            marker={"color": colours},
            opacity=theme.FAINT if kind == "simulated" else 1.0,
        )
    known = [n for n in places if outcomes[n].predicted_samples_per_s]
    if known:
        marker = {"symbol": "diamond-open", "size": 11, "color": "#7f7f7f", "line": {"width": 2}}
        figure.add_scatter(
            y=known,
            x=[outcomes[n].predicted_samples_per_s for n in known],
            mode="markers",
            name="predicted",
            marker=marker,
        )
    fastest, slowest = (f(places, key=lambda n: outcomes[n].samples_per_s) for f in (max, min))
    ratio = outcomes[fastest].samples_per_s / outcomes[slowest].samples_per_s
    said = f"{names[fastest]} is the fastest with {says.quantity(outcomes[fastest].samples_per_s)} samples/s"
    said += f", {ratio:.2f} times as fast as {names[slowest]}" if len(outcomes) > 1 else ""
    saying(figure, f"{said}.")
    table = {
        "experiment": names,
        "how": [theme.HOW[e.cluster.world] for e in experiments],
        "samples/s": [o.samples_per_s for o in outcomes],
        "predicted samples/s": [o.predicted_samples_per_s for o in outcomes],
    }
    figure.layout.meta = {**figure.layout.meta, "table": table, "open": True}
    return figure
