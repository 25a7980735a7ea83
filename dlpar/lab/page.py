"""Widgets on a page, one model each: it asks for its state when it is loaded, and then hears only what changed.

Nothing travels as widget state, so a page that is loaded again has one model to restore, whatever it shows.
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
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakValueDictionary

import anywidget
from traitlets import Unicode

from dlpar.config.schema import BadExperiment
from dlpar.lab.plot import Drawing

if TYPE_CHECKING:
    from IPython.display import HTML

HERE = Path(__file__).parent / "page"

_by_address: WeakValueDictionary[str, Page] = WeakValueDictionary()
"""Widgets by their addresses."""

_of_cell: dict[str, list[tuple[str, Page]]] = defaultdict(list)
"""``(execution, widget)`` by the cell that made it, so that running a cell again closes what it showed before."""


def module(*names: str) -> str:
    """Join ES modules that stand beside each other to one: imports between them and exports are taken out."""
    text = "\n".join((HERE / f"{name}.js").read_text() for name in names)
    return re.sub(r'^import .* from "\./.*";\n|^export (?!default)', "", text, flags=re.MULTILINE)


@lru_cache(maxsize=1)
def compressed_plotly() -> bytes:
    """plotly.js of the installed plotly package, gzip-compressed (1.5 MB)."""
    import plotly

    source = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    return gzip.compress(source.read_bytes(), 6)


class Page(anywidget.AnyWidget):
    """A widget whose page is told, from any thread, what has changed of its state and of its figures.

    Notes
    -----
    Nothing is sent before :meth:`flush`; a reader thread calls it at most ten times a second.
    """

    _css = (HERE / "lab.css").read_text()

    address = Unicode().tag(sync=True)
    """Name by which its page calls this widget beside all cells; empty where a running cell delays the call."""

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
        """Change the state; what is as before is not told again."""
        with self._guard:
            changed = {name: value for name, value in state.items() if self.state.get(name, ...) != value}
            self.state |= changed
            self._news |= changed

    def flush(self, alive: bool = False) -> bool:
        """Send what has changed or, with `alive`, a sign of life; returns whether it sent anything."""
        with self._guard:
            found = {title: each.changes() for title, each in self.figures.items()}
            figures = {title: change for title, change in found.items() if change}
            if not (figures or self._news or alive):
                return False
            state, self._news = self._news, {}
            self._deliver("changes", state, figures)
            return True

    def hear(self, message: dict[str, Any]) -> None:
        """Do what the page asks for."""

    def act(self, action: Callable[[], Any]) -> None:
        """Act on a press of a button, and show an error, because an exception in a callback is invisible."""
        try:
            action()
        except Exception as error:
            known = isinstance(error, BadExperiment)
            self.tell(message=str(error) if known else f"{type(error).__name__}: {error}")
        self.flush()

    def beside(self, action: Callable[[], Any]) -> None:
        """Act on another thread: ending a job takes a moment, in which the page must still be answered."""
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
        """Close what the same cell showed when it ran before."""
        if found := this_cell():
            cell, execution = found
            for made_in, earlier in _of_cell[cell]:
                if made_in != execution:
                    earlier.close()
            _of_cell[cell] = [*(each for each in _of_cell[cell] if each[0] == execution), (execution, self)]


def deck() -> HTML:
    """Style of a deck of slides in JupyterLab's deck mode; elsewhere the notebook stays as it is."""
    from IPython.display import HTML

    return HTML(f"<style>{(HERE / 'deck.css').read_text()}</style>")


def _kernel() -> Any:
    """The Jupyter kernel that this process is; None if it is none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None)


def this_cell() -> tuple[str, str] | None:
    """``(cell, execution)`` ids of the running cell; None outside JupyterLab.

    If the same cell runs again, the cell's id stays and the execution's differs.
    """
    try:
        parent = _kernel().get_parent("shell")
        return parent["metadata"]["cellId"], parent["header"]["msg_id"]
    except (AttributeError, KeyError, TypeError):
        return None


def answer_beside_cells() -> bool:
    """Answer pages on the thread of the kernel's control channel, which no cell blocks; False if it has none.

    Messages of widgets come on the shell channel, behind a running cell.  Whether a subshell takes them depends on
    JupyterLab's settings and on ipykernel's release.
    """
    handlers = getattr(_kernel(), "control_handlers", None)
    if handlers is None:
        return False

    def answer(_stream: Any, _ident: Any, message: dict[str, Any]) -> None:
        page = _by_address.get(message["content"]["address"])
        if page and page.comm:
            page._heard(message["content"]["data"])

    handlers["dlpar_msg"] = answer
    return True
