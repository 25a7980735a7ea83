"""The experiment a teacher has sent to everybody, in a panel: one button accepts it, another undoes that."""

from __future__ import annotations

import os
import time
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from dlpar.config.experiment import Experiment
from dlpar.lab import offers
from dlpar.lab.labels import scheme, split

if TYPE_CHECKING:
    from dlpar.lab.panel import Panel


LOOK = 2.0
"""Seconds between two checks for an offer, for all panels of a kernel together; only on a hub."""

TAKE = ("take", "Take it", "Set the controls as your teacher has; nothing runs yet")
UNDO = ("undo", "Undo", "Set the controls as you had them")
AWAY = ("away", "Not now", "Hide the offer")


class Offer:
    """The offer in a panel: "Take it" sets the controls, "Undo" sets them to their values before."""

    def __init__(self, panel: Panel) -> None:
        self._panel, self._id = panel, None
        self._before: dict[str, Any] | None = None
        self._experiment: Experiment | None = None
        _look_for(self)

    def see(self, offer: dict[str, Any] | None) -> None:
        """Show the current offer; an offer that was shown before changes nothing."""
        if (offer and offer["id"]) == self._id:
            return
        self._id, self._experiment = offer and offer["id"], _experiment_of(offer)
        if self._experiment is not None:
            self._tell(f"Your teacher ({offer['by']}) sent:", TAKE, *([UNDO] if self._before else []), AWAY)
        elif self._before is None:
            self.away()
        self._panel.flush()

    def take(self) -> None:
        """Set the panel's controls."""
        self._before = self._before or self._panel.state["values"]
        self._panel.show(self._experiment)
        words = "The controls are as your teacher sent them. Press Run to run it."
        self._panel.tell(offer={"text": words, "actions": [UNDO, AWAY]})

    def undo(self) -> None:
        """Set the controls as they were before the first press of "Take it", and show the offer again."""
        self._panel.restore(self._before)
        self.away()
        if self._experiment is not None:
            self._tell("As before. Your teacher sent:", TAKE, AWAY)

    def away(self) -> None:
        """Hide the offer; controls that were set stay."""
        self._before = None
        self._panel.tell(offer=None)

    def _tell(self, words: str, *actions: tuple[str, str, str]) -> None:
        self._panel.tell(offer={"text": words, "what": _in_short(self._experiment), "actions": actions})


def _experiment_of(offer: dict[str, Any] | None) -> Experiment | None:
    """The experiment of an offer; None without an offer, or if another version of dlpar sent it."""
    try:
        return Experiment(**offer["experiment"]) if offer else None
    except Exception:
        return None


def _in_short(e: Experiment) -> str:
    cut = "" if e.split.kind == "data" else f"{split(e)}, "
    workers = f"{e.workers} worker{'s' * (e.workers != 1)}"
    return f"{e.model.name} on {e.data.name}, {cut}{scheme(e)}, {workers}, {e.cluster.world}"


_waiting: WeakSet[Offer] = WeakSet()
_guard, _looking = Lock(), []


def _look_for(offer: Offer) -> None:
    """Show an offer when one arrives; without a hub, none can arrive."""
    if "JUPYTERHUB_USER" not in os.environ:
        return
    with _guard:
        _waiting.add(offer)
        if not _looking:
            _looking.append(Thread(target=_look, name="dlpar offers", daemon=True))
            _looking[0].start()


def _look() -> None:
    while True:
        present = offers.present()
        with _guard:
            shown = list(_waiting)
        for one in shown:
            one.see(present)
        del shown
        time.sleep(LOOK)
