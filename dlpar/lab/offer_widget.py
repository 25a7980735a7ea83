"""The experiment a teacher has sent to everybody, in a panel: one button accepts it, another undoes that."""

from __future__ import annotations

import html
import os
import time
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import ipywidgets as widgets

from dlpar.config.experiment import Experiment
from dlpar.lab import offers
from dlpar.lab.cell import button
from dlpar.lab.labels import scheme, split

if TYPE_CHECKING:
    from dlpar.lab.controls import Controls

LOOK = 2.0
"""Seconds between two checks for an offer, for all panels of a kernel together; only on a hub."""


class Offer(widgets.HBox):
    """The offer and its buttons; hidden if there is none.

    Parameters
    ----------
    controls : Controls
        Controls of the panel; "Take it" sets them to the offer, "Undo" to their values before.
    """

    def __init__(self, controls: Controls) -> None:
        self._controls, self._id = controls, None
        self._taken, self._before = False, {}
        self._text = widgets.HTML()
        take = "Set the controls as your teacher has; nothing runs yet"
        self._take = button("Take it", "download", take, self.take)
        self._undo = button("Undo", "undo", "Set the controls as you had them", self.undo)
        self._no = button("Not now", "times", "Hide the offer", self.away)
        super().__init__([self._text, self._take, self._undo, self._no])
        self.add_class("dlpar-offer")
        self.away()
        _look_for(self)

    def see(self, offer: dict[str, Any] | None) -> None:
        """Show the current offer; an offer that was shown before changes nothing."""
        if (offer and offer["id"]) == self._id:
            return
        self._id = offer and offer["id"]
        self._experiment = _experiment_of(offer)
        if self._experiment is not None:
            self._show_offer(f"Your teacher ({offer['by']}) sent", *([self._undo] if self._taken else []))
        elif self._taken:
            self._show_taken()
        else:
            self.away()

    def take(self) -> None:
        """Set the panel's controls."""
        if not self._taken:
            self._taken, self._before = True, self._controls.values()
        self._controls.show(self._experiment)
        self._show_taken()

    def undo(self) -> None:
        """Set the controls as they were before the first press of "Take it", and show the offer again."""
        self._controls.restore(self._before)
        self.away()
        if self._experiment is not None:
            self._show_offer("As before. Your teacher sent")

    def away(self) -> None:
        """Hide the offer; controls that were set stay."""
        self._taken = False
        self.layout.display = "none"

    def _show_offer(self, words: str, *buttons: widgets.Button) -> None:
        self._text.value = f"{html.escape(words)}: <b>{html.escape(_in_short(self._experiment))}</b>"
        self._show(self._take, *buttons, self._no)

    def _show_taken(self) -> None:
        self._text.value = "The controls are as your teacher sent them. Press Run to run it."
        self._show(self._undo, self._no)

    def _show(self, *buttons: widgets.Button) -> None:
        for one in (self._take, self._undo, self._no):
            one.layout.display = None if one in buttons else "none"
        self.layout.display = None


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
