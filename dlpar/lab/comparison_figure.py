"""The figure of a comparison: loss and accuracy of several runs, none behind another, while they go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlpar.experiment import Experiment
from dlpar.lab import says, theme
from dlpar.lab.global_steps import GlobalSteps
from dlpar.lab.labels import with_world
from dlpar.lab.live.convergence import grow, x_axes
from dlpar.lab.live.run_curve import RunCurve, ends, layout
from dlpar.lab.live_plot import LivePlot


class ComparisonFigure:
    """Curves of `experiments`, one after the other.

    Parameters
    ----------
    experiments : sequence of Experiment
        Of one kind of task.
    titles : sequence of str
        What each is called.
    x : str
        Column of the horizontal axis at first.
    """

    def __init__(self, experiments: Sequence[Experiment], titles: Sequence[str], x: str) -> None:
        self.experiments, self.titles = experiments, titles
        self._reach: dict[str, float] = {}
        for each in map(ends, experiments):
            self._reach |= {name: max(end, self._reach.get(name, 0.0)) for name, end in each.items()}
        axes = x_axes(self._reach, {experiment.cluster.world for experiment in experiments})
        self.plot = LivePlot(layout(experiments[0]), axes, height=430, logarithmic=True)
        self.plot.x = x
        self.plot.say("Not started. Press Run.")
        self.curves: dict[int, RunCurve] = {}
        self._latest: dict[str, float] = {}
        self._room()

    def _room(self) -> None:
        # Without a trace plotly leaves the accuracy's axes out, and the figure would jump at the first point.
        self.plot.add_trace(
            "room", {"yaxis": "y2", "showlegend": False}, ("step", "y"), {"x": "step", "y": "y"}
        )

    def clear(self) -> None:
        """Take all curves away."""
        for number in self.curves:
            for kind in ("loss", "test"):
                self.plot.remove(f"{number} {kind}")
        self.curves.clear()
        self._room()

    def begin(self, number: int) -> None:
        """Start the curve of experiment `number`."""
        if number in self.curves:
            self.plot.remove(f"{number} loss"), self.plot.remove(f"{number} test")
        self.plot.remove("room")
        experiment = self.experiments[number]
        style = theme.beside(theme.scheme_colour(experiment.sync.scheme), number, experiment.cluster.world)
        style["name"] = with_world(self.titles[number], experiment)
        self.curves[number] = RunCurve(self.plot, str(number), experiment, style)
        self.steps = GlobalSteps(experiment.workers, experiment.free_running)
        self.curve = self.curves[number]

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """A record of a step or a test of the present run."""
        if record["k"] == "step":
            for done in self.steps.add(rank, record):
                self.curve.step(done)
        elif record["k"] == "eval":
            self.curve.test(record, self.steps.last)

    def settle(self, ended: bool) -> None:
        """Bring axes and sentence up to date; `ended`: the present run has."""
        self._all_ended = ended and len(self.curves) == len(self.experiments)
        for done in self.steps.catch_up(ended):
            self.curve.step(done)
        if ended:
            self.curve.finish(self.steps)
        if self.steps.last:
            top = max(curve.top for curve in self.curves.values())
            self.plot.set_range("yaxis", 0, max(theme.rounded_up(top), 1.0))
            self._latest = grow(self.plot, self._reach, self._latest, self.steps.last, ended)
        self.plot.say(self._sentence())

    def _sentence(self) -> str:
        said = []
        for number, curve in self.curves.items():
            if len(curve.loss):
                loss = f"loss {says.quantity(curve.loss.rows[-1, -1])}"
                tested = "" if curve.accuracy is None else f", accuracy {curve.accuracy:.1%}"
                said.append(f"{self.titles[number]} {loss}{tested}")
        when = "At the end" if self._all_ended else "So far"
        return f"{when}: {'; '.join(said)}." if said else "Starting …"
