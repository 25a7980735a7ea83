"""A tab for each figure of a board."""

from __future__ import annotations

import ipywidgets as widgets


class Tabs(widgets.Tab):
    """Figures by name, one in front: at the beginning `first`, or the first of them; ValueError if it is none."""

    def __init__(self, plots: dict[str, widgets.Widget], first: str = "") -> None:
        if first and first not in plots:
            raise ValueError(f"first: got {first!r}, allowed is one of {', '.join(plots)}")
        super().__init__()
        self._first = first
        self.show(plots)

    def show(self, plots: dict[str, widgets.Widget]) -> None:
        """Show these; the one in front stays there if it can."""
        if self.titles == tuple(plots):
            return
        front = self.titles[self.selected_index] if self.selected_index is not None else self._first
        self.selected_index = None
        self.children = tuple(plots.values())
        self.titles = tuple(
            plots
        )  # in a message of its own: the page forgets titles that come with the children
        self.selected_index = list(plots).index(front) if front in plots else 0
