"""Static figure of what overlap hides: a step, in times of its computing, and what of its messages stands out."""

from __future__ import annotations

from collections.abc import Sequence

from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, saying
from dlpar.lab.labels import labels
from dlpar.sweep import Outcome


def exposed(outcomes: Sequence[Outcome], titles: Sequence[str] | None = None) -> Figure:
    """A bar for each experiment: computing, which is 1, and the communication nobody computes beside.

    A mark shows the whole step by the closed form, where there is one.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Done, one or more; see :func:`dlpar.sweep.run_all`.
    titles : sequence of str, optional
        What each is called; default: what tells them apart.

    Raises
    ------
    ValueError
        If there is none, or one is not done.
    """
    if not outcomes:
        raise ValueError("outcomes: got none, allowed is one or more")
    bad = next((outcome for outcome in outcomes if outcome.status != "done"), None)
    if bad:
        raise ValueError(
            f"outcomes: got one that is {bad.status} ({bad.reason}), allowed are those that are done"
        )
    names = list(titles or labels([outcome.experiment for outcome in outcomes]))
    computing = [o.summary["seconds"]["compute"] / o.summary["steps"] for o in outcomes]
    steps = [o.step_s / own for o, own in zip(outcomes, computing)]
    predicted = [o.prediction and o.prediction.seconds / own for o, own in zip(outcomes, computing)]
    figure = _drawn(names, steps, predicted, {theme.HOW[o.experiment.cluster.world] for o in outcomes})
    saying(figure, _sentence(names, steps, predicted))
    figure.layout.meta = {
        **figure.layout.meta,
        "open": True,
        "table": {
            "": names,
            "computing (ms)": [1e3 * own for own in computing],
            "step (ms)": [1e3 * o.step_s for o in outcomes],
            "predicted step (ms)": [o.prediction and 1e3 * o.prediction.seconds for o in outcomes],
            "exposed (share of computing)": [step - 1 for step in steps],
        },
    }
    return figure


def _drawn(names: list[str], steps: list[float], predicted: list[float | None], how: set[str]) -> Figure:
    places = list(range(len(names)))
    rows = theme.axis(
        "", (len(names) - 0.5, -0.5), tickvals=places, ticktext=names, showgrid=False, automargin=True
    )
    most = max([*steps, *(p for p in predicted if p)])
    across = theme.axis("time of a step (times its computing)", (0, theme.rounded_up(most)))
    layout = theme.layout(xaxis=across, yaxis=rows, barmode="stack", bargap=0.3)
    figure = blank(layout, max(280, 36 * len(names) + 150))
    suffix = f", {how.pop()}" if len(how) == 1 else ""
    for phase, name, lengths in (
        ("forward", "computing", [1.0] * len(names)),
        ("communicate", "exposed communication", [s - 1 for s in steps]),
    ):
        figure.add_bar(y=places, x=lengths, **{**theme.phase_bar(phase), "name": name + suffix})
    known = [place for place in places if predicted[place]]
    if known:
        symbol = {"symbol": "line-ns", "size": 24, "line": {"width": 3, "color": "#7f7f7f"}}
        figure.add_scatter(
            y=known, x=[predicted[n] for n in known], mode="markers", marker=symbol, name="predicted"
        )
    return figure


def _sentence(names: list[str], steps: list[float], predicted: list[float | None]) -> str:
    each = says.listed(f"{name} {step - 1:.1%}" for name, step in zip(names, steps))
    text = f"Beside its computing a step spends on communication that nothing hides: {each} of it."
    off = [abs(p / step - 1) for p, step in zip(predicted, steps) if p]
    return f"{text} {says.off('prediction', max(off))}" if off else text
