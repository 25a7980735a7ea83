"""What a teacher has sent to everybody, in a panel: taken by a press, and given back by another."""

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
from dlpar.lab.controls import button
from dlpar.lab.labels import scheme, split

if TYPE_CHECKING:
    from dlpar.lab.controls import Controls

LOOK = 2.0
"""Seconds between two looks for an offer, of all panels of a kernel together; only on a hub."""


class Offer(widgets.HBox):
    """The offer and its buttons; hidden where there is none.

    Parameters
    ----------
    controls : Controls
        Of the panel: they say what was sent after a press of "Take it", and what they said before after "Undo".
    """

    def __init__(self, controls: Controls) -> None:
        self._controls, self._id = controls, None
        self._taken, self._before = False, {}
        self._says = widgets.HTML()
        self._take = button(
            "Take it", "download", "Set the controls as your teacher has; nothing runs yet", self.take
        )
        self._undo = button("Undo", "undo", "Set the controls as you had them", self.undo)
        self._no = button("Not now", "times", "Put it away", self.away)
        super().__init__([self._says, self._take, self._undo, self._no])
        self.add_class("dlpar-offer")
        self.away()
        _look_for(self)

    def see(self, offer: dict[str, Any] | None) -> None:
        """The present offer; one that was seen before changes nothing."""
        if (offer and offer["id"]) == self._id:
            return
        self._id = offer and offer["id"]
        self._experiment = _experiment_of(offer)
        if self._experiment is not None:
            who = html.escape(offer["by"])
            self._says.value = f"Your teacher ({who}) sent: <b>{html.escape(_in_short(self._experiment))}</b>"
            self._show(self._take, *([self._undo] if self._taken else []), self._no)
        elif self._taken:
            self._says_taken()
        else:
            self.away()

    def take(self) -> None:
        """Set the panel's controls."""
        if not self._taken:
            self._taken, self._before = True, self._controls.values()
        self._controls.show(self._experiment)
        self._says_taken()

    def undo(self) -> None:
        """Set the controls as they were before the first press of "Take it"; a present offer is there again."""
        self._controls.restore(self._before)
        self.away()
        if self._experiment is not None:
            self._says.value = (
                f"As before. Your teacher sent: <b>{html.escape(_in_short(self._experiment))}</b>"
            )
            self._show(self._take, self._no)

    def away(self) -> None:
        """Hide it; what was taken stays."""
        self._taken = False
        self.layout.display = "none"

    def _says_taken(self) -> None:
        self._says.value = "The controls are as your teacher sent them. Press Run to run it."
        self._show(self._undo, self._no)

    def _show(self, *buttons: widgets.Button) -> None:
        for one in (self._take, self._undo, self._no):
            one.layout.display = None if one in buttons else "none"
        self.layout.display = None


def _experiment_of(offer: dict[str, Any] | None) -> Experiment | None:
    """What is offered; None without an offer, or for one of another version of dlpar."""
    try:
        return Experiment(**offer["experiment"]) if offer else None
    except Exception:
        return None


def _in_short(e: Experiment) -> str:
    cut = "" if e.split.kind == "data" else f"{split(e)}, "
    several = "" if e.workers == 1 else "s"
    return (
        f"{e.model.name} on {e.data.name}, {cut}{scheme(e)}, {e.workers} worker{several}, {e.cluster.world}"
    )


_waiting: WeakSet[Offer] = WeakSet()
_guard, _looking = Lock(), []


def _look_for(offer: Offer) -> None:
    """Show an offer when it comes; where there is no hub, none can come."""
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
