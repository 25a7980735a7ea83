"""A widget in its notebook cell: which cell shows it, and what it replaces there."""

from __future__ import annotations

from collections import defaultdict
from threading import Thread

import ipywidgets as widgets

_of_cell: dict[str, list[tuple[str, widgets.Widget]]] = defaultdict(list)
"""Panels by the cell that made them, so that running a cell again closes what it showed before."""


def this_cell() -> tuple[str, str] | None:
    """``(cell, execution)`` ids of the running cell, or None outside JupyterLab.

    The same cell run again has the same first and another second id.
    """
    try:
        from IPython import get_ipython

        parent = get_ipython().kernel.get_parent("shell")
        return parent["metadata"]["cellId"], parent["header"]["msg_id"]
    except (ImportError, AttributeError, KeyError, TypeError):
        return None


def all_below(widget: widgets.Widget) -> list[widgets.Widget]:
    """A widget and all it contains."""
    below = [w for child in getattr(widget, "children", ()) for w in all_below(child)]
    return [widget, *below]


def take_place_of_earlier(panel: widgets.Widget) -> None:
    """Close what the same cell showed when it was run before."""
    found = this_cell()
    if found is None:
        return
    cell, execution = found
    for made_in, earlier in _of_cell[cell]:
        if made_in != execution:
            earlier.close()
    _of_cell[cell] = [(made_in, p) for made_in, p in _of_cell[cell] if made_in == execution] + [
        (execution, panel)
    ]


def prepare_in_background() -> None:
    """Have the fork server started by the time somebody presses Run."""
    Thread(target=_prepare, name="dlpar prepare", daemon=True).start()


def _prepare() -> None:
    try:
        from dlpar.jobs.fork_server import prepare

        prepare()
    except Exception:  # only a head start: the launch itself says what is wrong
        pass
