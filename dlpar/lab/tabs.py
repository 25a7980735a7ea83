"""A tab for each figure of a board."""

from __future__ import annotations

import ipywidgets as widgets


class Tabs(widgets.Tab):
    """Figures by name, one in front."""

    def show(self, plots: dict[str, widgets.Widget]) -> None:
        """Show these; the one in front stays there if it can."""
        if self.titles == tuple(plots):
            return
        front = self.titles[self.selected_index] if self.selected_index is not None else ""
        self.selected_index = None
        self.children = tuple(plots.values())
        self.titles = tuple(plots)  # in a message of its own: the page forgets titles that come with the children
        self.selected_index = list(plots).index(front) if front in plots else 0
