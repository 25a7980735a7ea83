"""Widgets in notebook cells: a cell that runs again replaces its widget, and a running cell does not block it."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import ipywidgets as widgets

from dlpar.config.schema import BadExperiment

_of_cell: dict[str, list[tuple[str, widgets.Widget]]] = defaultdict(list)
"""``(execution, panel)`` by the cell that made it, so that running a cell again closes what it showed before."""


def answer_while_busy(widget: widgets.Widget) -> None:
    """Let `widget` hear the page even while a cell runs, if the kernel has subshells.

    JupyterLab sends widget messages to a subshell, a second thread. ipykernel 7.4 sends
    those of any widget made in the main thread back to it, and a running cell occupies it.
    Without this call, neither Stop nor the first drawing would work during ``job.wait()``.
    """
    if widget.comm is not None:
        widget.comm._reply_subshell_for = None


def button(label: str, icon: str, meaning: str, pressed: Callable[[], None]) -> widgets.Button:
    """A button with its meaning as a tooltip."""
    made = widgets.Button(description=label, icon=icon, tooltip=meaning, layout={"width": "auto"})
    made.on_click(lambda _button: pressed())
    return made


def heading(title: str, question: str) -> widgets.HTML:
    """Title of a panel, and the question it answers."""
    asked = f"<p>{html.escape(question)}</p>" if question else ""
    return widgets.HTML(f"<h3>{html.escape(title)}</h3>{asked}").add_class("dlpar-head")


class JobWidget(widgets.VBox):
    """A widget that starts jobs; it is replaced when its cell runs again, and shows errors instead of raising them."""

    def __init__(self) -> None:
        super().__init__()
        self._alert = widgets.HTML().add_class("dlpar-message")

    def close(self) -> None:
        """Remove the widget and all its children from the page."""
        for widget in self._everything():
            if widget is not self:
                widget.close()
        super().close()

    def _everything(self) -> list[widgets.Widget]:
        """This widget and all its children."""
        return all_below(self)

    def _fill(self, children: Sequence[widgets.Widget]) -> None:
        """Show `children`, and close what the same cell showed when it ran before."""
        self.children = tuple(children)
        self.add_class("dlpar-panel")
        for widget in self._everything():
            answer_while_busy(widget)
        found = this_cell()
        if found is None:
            return
        cell, execution = found
        for made_in, earlier in _of_cell[cell]:
            if made_in != execution:
                earlier.close()
        same = [(made_in, panel) for made_in, panel in _of_cell[cell] if made_in == execution]
        _of_cell[cell] = [*same, (execution, self)]

    def _message(self, sentence: str) -> None:
        self._alert.value = f'<p role="alert">{html.escape(sentence)}</p>' if sentence else ""

    def _pressed(self, action: Callable[[], Any]) -> None:
        """Act on a press of a button, and show an error, because an exception in a callback is invisible."""
        try:
            action()
        except Exception as error:
            known = isinstance(error, BadExperiment)
            self._message(str(error) if known else f"{type(error).__name__}: {error}")

    def _beside(self, action: Callable[[], Any]) -> None:
        """Act on another thread: ending a job takes a moment, in which the page must still be answered."""
        Thread(target=self._pressed, args=(action,), daemon=True).start()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        Thread(target=_prepare, name="dlpar prepare", daemon=True).start()
        return super()._repr_mimebundle_(**kwargs)


def this_cell() -> tuple[str, str] | None:
    """``(cell, execution)`` ids of the running cell; None outside JupyterLab.

    If the same cell runs again, the cell's id stays and the execution's differs.
    """
    try:
        from IPython import get_ipython

        parent = get_ipython().kernel.get_parent("shell")
        return parent["metadata"]["cellId"], parent["header"]["msg_id"]
    except (ImportError, AttributeError, KeyError, TypeError):
        return None


def all_below(*roots: widgets.Widget) -> list[widgets.Widget]:
    """Widgets and all their children."""
    return [widget for root in roots for widget in (root, *all_below(*getattr(root, "children", ())))]


def _prepare() -> None:
    """Start the fork server ahead of the first press of Run."""
    try:
        from dlpar.jobs.fork_server import prepare

        prepare()
    except Exception:  # only a head start: the launch itself reports errors
        pass
