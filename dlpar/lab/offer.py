"""The experiment a teacher has sent to everybody, in a panel: one button accepts it, another undoes that."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from dlpar.config.experiment import Experiment
from dlpar.lab.exchange import current_offer
from dlpar.lab.labels import scheme, split

if TYPE_CHECKING:
    from dlpar.lab.panel import Panel


LOOK = 2.0
"""Seconds between two checks for an offer, for all panels of a kernel together; only on a hub."""


class Offer:
    """The offer in a panel: "Take it" sets the controls, "Undo" sets them to their values before."""

    def __init__(self, panel: Panel) -> None:
        self._panel, self._id = panel, None
        self._before: dict[str, Any] | None = None
        self._experiment: Experiment | None = None
        if "JUPYTERHUB_USER" in os.environ:  # elsewhere none can arrive
            with _guard:
                _waiting.add(self)
            _look_for_offers()

    def see(self, offer: dict[str, Any] | None) -> None:
        """Show the current offer; an offer that was shown before changes nothing."""
        if (offer and offer["id"]) == self._id:
            return
        self._id, self._experiment = offer and offer["id"], None
        with suppress(Exception):  # another version of dlpar sent it
            self._experiment = Experiment(**offer["experiment"]) if offer else None
        if self._experiment is not None:
            undo = ["undo"] if self._before else []
            self._tell(f"Your teacher ({offer['by']}) sent:", "take", *undo, "away")
        elif self._before is None:
            self.away()
        self._panel.flush()

    def take(self) -> None:
        """Set the panel's controls."""
        self._before = self._before or self._panel.state["values"]
        self._panel.show(self._experiment)
        words = "The controls are as your teacher sent them. Press Run to run it."
        self._panel.tell(offer={"text": words, "actions": ["undo", "away"]})

    def undo(self) -> None:
        """Set the controls as they were before the first press of "Take it", and show the offer again."""
        self._panel.restore(self._before)
        self.away()
        if self._experiment is not None:
            self._tell("As before. Your teacher sent:", "take", "away")

    def away(self) -> None:
        """Hide the offer; controls that were set stay."""
        self._before = None
        self._panel.tell(offer=None)

    def _tell(self, words: str, *actions: str) -> None:
        e = self._experiment
        workers = f"{e.workers} worker{'s' * (e.workers != 1)}"
        parts = [f"{e.model.name} on {e.data.name}", *([] if e.split.kind == "data" else [split(e)])]
        what = ", ".join([*parts, scheme(e), workers, e.cluster.world])
        self._panel.tell(offer={"text": words, "what": what, "actions": list(actions)})


_waiting: WeakSet[Offer] = WeakSet()
_guard = Lock()


@cache
def _look_for_offers() -> None:
    """Show every panel the offers that arrive; once in a kernel."""
    Thread(target=_look, name="dlpar offers", daemon=True).start()


def _look() -> None:
    while True:
        offer = current_offer()
        with _guard:
            shown = list(_waiting)
        for one in shown:
            one.see(offer)
        del shown
        time.sleep(LOOK)
