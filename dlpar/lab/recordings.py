"""Choosing a recorded run to be played back in a panel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run, runs
from dlpar.lab.watch import has_ended

SPEEDS = {"a hundredth": 0.01, "a tenth": 0.1, "as it was": 1.0, "10 times": 10.0, "100 times": 100.0}
"""Of a recording, as one chooses it."""

LISTED = 20
"""Newest runs to choose from."""


class Recordings(widgets.VBox):
    """A list of runs, a speed, and Play.

    Parameters
    ----------
    play : callable
        Called with a run's id and a speed.
    """

    def __init__(self, play: Callable[[str, float], None]) -> None:
        self._which = widgets.Dropdown(description="run", layout={"width": "32em"})
        self._which.tooltip = "Your newest runs; panel.replay(run) plays any"
        self._speed = widgets.Dropdown(
            options=SPEEDS, value=1.0, description="speed", layout={"width": "14em"}
        )
        self._speed.tooltip = "Seconds of the run's clock in a second"
        self._play = widgets.Button(description="Play", icon="film", tooltip="Play it back in this panel")
        self._play.on_click(lambda _button: play(self._which.value, self._speed.value))
        said = widgets.HTML("<p>A recording shows a run again as it was. Nothing is computed.</p>")
        self._allowed = True
        super().__init__(
            [said, widgets.Box([self._which, self._speed, self._play]).add_class("dlpar-fields")]
        )
        self.allow(True)

    def look(self, _change: Any = None) -> None:
        """List the newest runs; called when a section is opened or closed, so that a panel at rest reads none."""
        newest, before = runs()[:LISTED], self._which.value
        kept = [run.id for run in newest if has_ended(run)]
        self._which.options = kept
        if kept:
            self._which.value = before if before in kept else kept[0]
        self.allow(self._allowed)

    def allow(self, allowed: bool) -> None:
        """Whether Play may be pressed now."""
        self._allowed = allowed
        self._play.disabled = not allowed or not self._which.options


def newest_like(experiment: Experiment) -> Run | None:
    """The finished run most like it, of the same scheme and split; None if there is none.

    Who has the same settings comes first, then who has the same world; among these the newest.
    """
    nearest, found = -1, None
    for run in runs()[: 10 * LISTED]:
        try:
            other = run.experiment
        except Exception:  # of another version
            continue
        if (other.sync.scheme, other.split.kind) != (experiment.sync.scheme, experiment.split.kind):
            continue
        near = (other.cluster.world == experiment.cluster.world) + (other == experiment)
        if near > nearest and run.status == "done":
            nearest, found = near, run
    return found
