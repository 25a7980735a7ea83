"""A tick by which a student agrees that her predictions count in the class's figures; off until she sets it."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

import ipywidgets as widgets

from dlpar.lab.ledger import is_shared, share

MEANS = (
    "Your prediction and what you measured then count in the figures your teacher shows, without your name and "
    "your reasons, together with at least four others. For all labs; untick it to take it back."
)

_ticks: WeakSet[Agreement] = WeakSet()


class Agreement(widgets.Checkbox):
    """The tick; shown on a hub only, where there is a class.  All of a notebook say the same."""

    def __init__(self) -> None:
        here = "JUPYTERHUB_USER" in os.environ
        super().__init__(
            value=is_shared(),
            description="count my predictions in the class's figures, without my name",
            tooltip=MEANS,
            indent=False,
            layout={"width": "auto", "display": None if here else "none"},
        )
        _ticks.add(self)
        self.observe(self._ticked, names="value")

    def _ticked(self, change: dict[str, Any]) -> None:
        share(change["new"])
        for tick in list(_ticks):
            tick.value = change["new"]
