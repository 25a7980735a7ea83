"""What stands where in a panel."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

import ipywidgets as widgets

from dlpar.lab.controls import Controls


def button(label: str, icon: str, means: str, pressed: Callable[[], None]) -> widgets.Button:
    """A button that says what it is for where one points at it."""
    made = widgets.Button(description=label, icon=icon, tooltip=means, layout={"width": "auto"})
    made.on_click(lambda _button: pressed())
    return made


def first_screen(
    controls: Controls, names: tuple[str, ...], question: str, title: str, buttons: Sequence[widgets.Button]
) -> list[widgets.Widget]:
    """Heading and question, and the controls called `names` with the buttons beside them.

    Raises
    ------
    ValueError
        If a name is no control.
    """
    unknown = [name for name in names if name not in controls.widgets]
    if unknown:
        raise ValueError(f"controls: got {unknown[0]!r}, allowed are {', '.join(controls.widgets)}")
    asked = f"<p>{html.escape(question)}</p>" if question else ""
    head = widgets.HTML(f"<h3>{html.escape(title)}</h3>{asked}").add_class("dlpar-head")
    chosen = [controls.widgets[name] for name in names]
    for widget in chosen:
        widget.style.description_width, widget.layout.width = "initial", "auto"
    return [head, widgets.Box([*chosen, *buttons]).add_class("dlpar-controls")]


def more(controls: Controls, shown: tuple[str, ...], others: dict[str, widgets.Widget]) -> widgets.Accordion:
    """All other controls, by their part, and what else is not on the first screen."""
    groups = [
        widgets.VBox([widgets.HTML(f"<h4>{name}</h4>"), widgets.Box(found).add_class("dlpar-fields")])
        for name, found in controls.groups(shown).items()
    ]
    return widgets.Accordion([widgets.VBox(groups), *others.values()], titles=("More settings", *others))
