"""What a panel offers who would wait long for job slots: simulate now, or watch a recording."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import ipywidgets as widgets

from dlpar.lab.face import button
from dlpar.lab.recordings import newest_like
from dlpar.lab.replay import AT_MOST

if TYPE_CHECKING:
    from dlpar.lab.panel import Panel

PATIENCE = 12.0
"""Seconds after Run until something else is offered to who waits in the queue: less than 15 on a busy machine, too."""

LONGEST = 30.0
"""Seconds that the recording takes: a run whose clock went on for longer is played back faster."""


class Meanwhile(widgets.HBox):
    """Two buttons, shown to who still waits in the queue `PATIENCE` seconds after Run.

    Parameters
    ----------
    panel : Panel
        Whose job waits.
    do : callable
        Does what it is given on another thread: leaving the queue takes a moment.
    """

    def __init__(self, panel: Panel, do: Callable[[Callable[[], None]], None]) -> None:
        self._panel, self._pressed, self._waits = panel, 0.0, False
        simulate = "Leave the queue; run the same in the simulated world, where nobody waits"
        recording = "Leave the queue; play back your newest run of this kind"
        super().__init__(
            [
                widgets.Label("Rather than wait:"),
                button("Simulate it now", "forward", simulate, lambda: do(self._simulate)),
                button("Watch a recording", "film", recording, lambda: do(self._play)),
            ]
        )
        self.over()

    def pressed(self) -> None:
        """A job is on its way."""
        self._pressed = time.monotonic()

    def queued(self) -> None:
        """It waits; the offer comes in a while."""
        self._waits = True

    def look(self) -> None:
        """Called every now and then: show the offer when it is time."""
        if self._waits and time.monotonic() - self._pressed >= PATIENCE and self.layout.display == "none":
            self.layout.display = None

    def over(self) -> None:
        """It waits no more."""
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
