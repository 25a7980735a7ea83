"""Recorded runs in a panel: choose one to play, also instead of waiting in the queue."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run, runs
from dlpar.lab.cell import button
from dlpar.lab.watch import AT_MOST, has_ended

if TYPE_CHECKING:
    from dlpar.lab.panel import Panel

SPEEDS = {"a hundredth": 0.01, "a tenth": 0.1, "as it was": 1.0, "10 times": 10.0, "100 times": 100.0}
"""Speeds of a recording, by their names."""

LISTED = 20
"""Number of newest runs to choose from."""


class Recordings(widgets.VBox):
    """A list of runs, a speed, and a Play button.

    Parameters
    ----------
    play : callable
        Called with a run's id and a speed.
    """

    def __init__(self, play: Callable[[str, float], None]) -> None:
        self._which = widgets.Dropdown(description="run", layout={"width": "32em"})
        self._which.tooltip = "Your newest runs; panel.replay(run) plays any run"
        self._speed = widgets.Dropdown(
            options=SPEEDS, value=1.0, description="speed", layout={"width": "14em"}
        )
        self._speed.tooltip = "Seconds of the run's clock in a second"
        pressed = lambda: play(self._which.value, self._speed.value)
        self._play = button("Play", "film", "Play it in this panel", pressed)
        note = widgets.HTML("<p>A recording shows a run again as it was. Nothing is computed.</p>")
        row = widgets.Box([self._which, self._speed, self._play]).add_class("dlpar-fields")
        self._allowed = True
        super().__init__([note, row])
        self.allow(True)

    def look(self, _change: Any = None) -> None:
        """List the newest runs; called when a section opens or closes, so that an idle panel reads none."""
        newest, before = runs()[:LISTED], self._which.value
        kept = [run.id for run in newest if has_ended(run)]
        self._which.options = kept
        if kept:
            self._which.value = before if before in kept else kept[0]
        self.allow(self._allowed)

    def allow(self, allowed: bool) -> None:
        """Enable or disable Play."""
        self._allowed = allowed
        self._play.disabled = not allowed or not self._which.options


def newest_like(experiment: Experiment) -> Run | None:
    """The finished run most like an experiment, of the same scheme and split; None if there is none.

    A run with the same settings comes first, then one with the same world; among these the newest.
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


PATIENCE = 12.0
"""Seconds in the queue before something else is offered: less than 15, also on a busy machine."""

LONGEST = 30.0
"""Longest recording (seconds): a run with a longer clock is played faster."""


class Meanwhile(widgets.HBox):
    """Two alternatives to waiting, shown after `PATIENCE` seconds in the queue.

    Parameters
    ----------
    panel : Panel
        The panel whose job waits.
    do : callable
        Runs its argument on another thread, because leaving the queue takes a moment.
    """

    def __init__(self, panel: Panel, do: Callable[[Callable[[], None]], None]) -> None:
        self._panel, self._pressed, self._waits = panel, 0.0, False
        simulate = "Leave the queue; run the same in the simulated world, which has no queue"
        recording = "Leave the queue; play your newest run of this kind"
        super().__init__(
            [
                widgets.Label("Instead of waiting:"),
                button("Simulate it now", "forward", simulate, lambda: do(self._simulate)),
                button("Watch a recording", "film", recording, lambda: do(self._play)),
            ]
        )
        self.over()

    def pressed(self) -> None:
        """Note the time: a job has been launched."""
        self._pressed = time.monotonic()

    def queued(self) -> None:
        """Note that the job waits; the offer comes later."""
        self._waits = True

    def look(self) -> None:
        """Show the offer when it is time; called now and then."""
        if self._waits and time.monotonic() - self._pressed >= PATIENCE and self.layout.display == "none":
            self.layout.display = None

    def over(self) -> None:
        """Hide the offer: the job no longer waits."""
        self._waits, self.layout.display = False, "none"

    def _simulate(self) -> None:
        self._panel.leave()
        self._panel.choose("cluster.world", "simulated")
        self._panel.run()

    def _play(self) -> None:
        like = newest_like(self._panel.experiment)
        if like is None:
            raise LookupError("you have no recording of a run of this kind yet")
        seconds = float(like.curve["seconds"].iloc[-1])
        speed = min(AT_MOST, max(1.0, math.ceil(seconds / LONGEST)))
        self._panel.leave()
        self._panel.replay(like, speed)
