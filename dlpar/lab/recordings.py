"""Recorded runs in a panel: choose one to play, also instead of waiting in the queue."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.run import Run, runs
from dlpar.lab.labels import with_world
from dlpar.lab.watch import AT_MOST, has_ended

if TYPE_CHECKING:
    from dlpar.lab.panel import Panel

SPEEDS = {"a hundredth": 0.01, "a tenth": 0.1, "as it was": 1.0, "10 times": 10.0, "100 times": 100.0}
"""Speeds of a recording, by their names."""

LISTED = 20
"""Number of newest runs to choose from."""


def recordings() -> list[dict[str, str]]:
    """The newest runs that have ended, each with its experiment in words."""
    found = []
    for run in runs()[:LISTED]:
        try:
            says = with_world(str(run.experiment), run.experiment)
        except BadExperiment:  # of another version
            continue
        if has_ended(run):
            found.append({"id": run.id, "says": f"{says} ({run.id})"})
    return found


def newest_like(experiment: Experiment) -> Run | None:
    """The finished run most like an experiment, of the same scheme and split; None if there is none.

    A run with the same settings comes first, then one with the same world; among these the newest.
    """
    nearest, found = -1, None
    for run in runs()[: 10 * LISTED]:
        try:
            other = run.experiment
        except BadExperiment:  # of another version
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


def speed_of(run: Run) -> float:
    """Speed at which a recording is not too long."""
    seconds = float(run.curve["seconds"].iloc[-1])
    return min(AT_MOST, max(1.0, math.ceil(seconds / LONGEST)))


INSTEAD = [
    (
        "simulate",
        "Simulate it now",
        "Leave the queue; run the same in the simulated world, which has no queue",
    ),
    ("watch", "Watch a recording", "Leave the queue; play your newest run of this kind"),
]
"""Alternatives to waiting."""


class Meanwhile:
    """Two alternatives to waiting, shown in a panel after `PATIENCE` seconds in the queue."""

    def __init__(self, panel: Panel) -> None:
        self._panel, self._pressed, self._waits, self._is_shown = panel, 0.0, False, False

    def pressed(self) -> None:
        """Note the time: a job has been launched."""
        self._pressed = time.monotonic()

    def queued(self) -> None:
        """Note that the job waits; the offer comes later."""
        self._waits = True

    def look(self) -> None:
        """Show the alternatives when it is time; called now and then."""
        if self._waits and time.monotonic() - self._pressed >= PATIENCE and not self._is_shown:
            self._is_shown = True
            self._panel.tell(offer={"text": "Instead of waiting:", "actions": INSTEAD})

    def over(self) -> None:
        """Hide the alternatives: the job no longer waits."""
        self._waits = False
        if self._is_shown:
            self._is_shown = False
            self._panel.tell(offer=None)

    def simulate(self) -> None:
        """Leave the queue, and run the same in the simulated world."""
        self._panel.leave()
        self._panel.choose("cluster.world", "simulated")
        self._panel.run()

    def watch(self) -> None:
        """Leave the queue, and play the newest run of this kind."""
        like = newest_like(self._panel.experiment)
        if like is None:
            raise LookupError("you have no recording of a run of this kind yet")
        self._panel.leave()
        self._panel.replay(like, speed_of(like))
