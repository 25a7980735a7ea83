"""What a panel offers who would wait long for job slots: simulate now, or watch a recording."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable

import ipywidgets as widgets

from dlpar.lab.face import button
from dlpar.lab.recordings import newest_like

if TYPE_CHECKING:
    from dlpar.lab.panel import Panel

PATIENCE = 15.0
"""Seconds in the queue after which something else is offered."""


class Meanwhile(widgets.HBox):
    """Two buttons, shown after `PATIENCE` seconds in the queue.

    Parameters
    ----------
    panel : Panel
        Whose job waits.
    do : callable
        Does what it is given on another thread: leaving the queue takes a moment.
    """

    def __init__(self, panel: Panel, do: Callable[[Callable[[], None]], None]) -> None:
        self._panel, self._since = panel, 0.0
        simulate = "Leave the queue; run the same in the simulated world, where nobody waits"
        recording = "Leave the queue; play back your newest run of this kind"
        super().__init__([
            widgets.Label("Rather than wait:"),
            button("Simulate it now", "forward", simulate, lambda: do(self._simulate)),
            button("Watch a recording", "film", recording, lambda: do(self._play)),
        ])  # fmt: skip
        self.over()

    def queued(self) -> None:
        """The job waits; the offer comes in a while."""
        self._since = self._since or time.monotonic()

    def look(self) -> None:
        """Called every now and then: show the offer when it is time."""
        if self._since and time.monotonic() - self._since >= PATIENCE and self.layout.display == "none":
            self.layout.display = None

    def over(self) -> None:
        """It waits no more."""
        self._since, self.layout.display = 0.0, "none"

    def _simulate(self) -> None:
        self._panel.leave()
        self._panel.choose("cluster.world", "simulated")
        self._panel.run()

    def _play(self) -> None:
        like = newest_like(self._panel.experiment)
        if like is None:
            raise LookupError("you have no recording of a run of this kind yet")
        self._panel.leave()
        self._panel.replay(like)
