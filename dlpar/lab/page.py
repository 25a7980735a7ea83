"""Widgets on a page, each with one model. A page requests the state when it loads, then receives changes.

The data is not widget state, so a reloaded page has only one model to restore.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from threading import RLock, Thread
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

import anywidget
from traitlets import Unicode

from dlpar.config.schema import BadExperiment
from dlpar.lab.plot import Drawing

HERE = Path(__file__).parent / "page"

_by_address: WeakValueDictionary[str, Page] = WeakValueDictionary()
"""Widgets by their addresses."""

_of_cell: dict[str, list[tuple[str, Page]]] = defaultdict(list)
"""``(execution, widget)`` by the cell that made it, so that a cell that runs again closes its earlier widget."""


def module(*names: str) -> str:
    """Join the ES modules of one folder into one module, without exports or imports between them."""
    text = "\n".join((HERE / f"{name}.js").read_text() for name in names)
    return re.sub(r'^import .* from "\./.*";\n|^export (?!default)', "", text, flags=re.MULTILINE)


@lru_cache(maxsize=1)
def compressed_plotly() -> bytes:
    """Return plotly.js of the installed plotly package, gzip-compressed (1.5 MB)."""
    import plotly

    return gzip.compress((Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_bytes(), 6)


class Page(anywidget.AnyWidget):
    """Widget that sends changes of its state and figures to its page, from any thread.

    Notes
    -----
    Nothing is sent before :meth:`flush`. A reader thread calls this method at most ten times a second.
    """

    _css = (HERE / "lab.css").read_text()

    address = Unicode().tag(sync=True)
    """Name by which the page calls this widget while a cell runs. Empty if calls must wait for the cell."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.figures: Mapping[str, Drawing] = {}
        self._news: dict[str, Any] = {}
        self._sequence, self._guard = 0, RLock()
        super().__init__(address=uuid4().hex if answer_beside_cells() else "")
        _by_address[self.address] = self
        self.on_msg(lambda _widget, message, _buffers: self._heard(message))
        self._replace()

    def tell(self, **state: Any) -> None:
        """Change the state. Unchanged values are not sent again."""
        with self._guard:
            changed = {name: value for name, value in state.items() if self.state.get(name, ...) != value}
            self.state |= changed
            self._news |= changed

    def flush(self, alive: bool = False) -> bool:
        """Send changes or, with `alive`, a heartbeat. Return whether anything was sent."""
        with self._guard:
            found = {title: each.changes() for title, each in self.figures.items()}
            figures = {title: change for title, change in found.items() if change}
            if not (figures or self._news or alive):
                return False
            state, self._news = self._news, {}
            self._deliver("changes", state, figures)
            return True

    def hear(self, message: dict[str, Any]) -> None:
        """Handle a request from the page."""

    def act(self, action: Callable[[], Any]) -> None:
        """Handle a button press, and show errors.

        An exception in a callback would be invisible.
        """
        try:
            action()
        except Exception as error:
            known = isinstance(error, BadExperiment)
            self.tell(message=str(error) if known else f"{type(error).__name__}: {error}")
        self.flush()

    def beside(self, action: Callable[[], Any]) -> None:
        """Handle a button press on another thread, so that the page gets answers while a job ends."""
        Thread(target=self.act, args=(action,), daemon=True).start()

    def _heard(self, message: dict[str, Any]) -> None:
        if message.get("ask") == "plotly":
            return self.beside(lambda: self.send({"is": "plotly"}, [compressed_plotly()]))
        if message.get("ask") == "all":
            with self._guard:
                self._news, whole = {}, {title: each.snapshot() for title, each in self.figures.items()}
                return self._deliver("all", self.state, whole)
        return self.act(lambda: self.hear(message))

    def _deliver(self, kind: str, state: dict[str, Any], figures: Mapping[str, Any]) -> None:
        self._sequence += 1
        told = {title: news for title, (news, _) in figures.items()}
        buffers = [buffer for _, own in figures.values() for buffer in own]
        self.send({"is": kind, "sequence": self._sequence, "state": state, "figures": told}, buffers)

    def _replace(self) -> None:
        """Close the widget that the same cell displayed in its last run."""
        if found := this_cell():
            cell, execution = found
            for made_in, earlier in _of_cell[cell]:
                if made_in != execution:
                    earlier.close()
            _of_cell[cell] = [*(each for each in _of_cell[cell] if each[0] == execution), (execution, self)]


def kernel() -> Any:
    """Return the Jupyter kernel of this process, or None if there is none."""
    return getattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel", None)


def this_cell() -> tuple[str, str] | None:
    """Return the ids ``(cell, execution)`` of the running cell, or None outside JupyterLab.

    If the same cell runs again, its cell id is the same and its execution id differs.
    """
    try:
        parent = kernel().get_parent("shell")
        return parent["metadata"]["cellId"], parent["header"]["msg_id"]
    except (AttributeError, KeyError, TypeError):
        return None


def answer_beside_cells() -> bool:
    """Answer pages on the kernel's control thread, which no cell blocks. Return False if there is none.

    Messages of widgets use the shell channel, and wait for a running cell.  A subshell may take them, depending on
    JupyterLab's settings and on ipykernel's release.
    """
    if (handlers := getattr(kernel(), "control_handlers", None)) is None:
        return False

    def answer(_stream: Any, _ident: Any, message: dict[str, Any]) -> None:
        page = _by_address.get(message["content"]["address"])
        if page and page.comm:
            page._heard(message["content"]["data"])

    handlers["dlpar_msg"] = answer
    return True
