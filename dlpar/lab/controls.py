"""Widgets for the fields of an experiment, made from its schema."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import ipywidgets as widgets
from pydantic.fields import FieldInfo

from dlpar.experiment import Experiment
from dlpar.schema import Part, allowed, choices, is_optional, unwrap

UNSET = "default"

WITH_UNIT = {"bucket_mb": "bucket (MB)", "timeout": "timeout (s)"}


class Controls:
    """One widget for every field, by its path: ``workers``, ``model.width``.

    Parameters
    ----------
    experiment : Experiment
        What the widgets show at first.
    changed : callable
        Called without arguments after any change.
    """

    def __init__(self, experiment: Experiment, changed: Callable[[], None]) -> None:
        self.widgets = {path: control(path, field, value) for path, field, value in fields(experiment)}
        for widget in self.widgets.values():
            widget.observe(lambda _change: changed(), names="value")

    def experiment(self) -> Experiment:
        """What the widgets say; raises `BadExperiment` naming the first fields that cannot be."""
        given: dict[str, Any] = {}
        for path, widget in self.widgets.items():
            part, _, name = path.rpartition(".")
            (given.setdefault(part, {}) if part else given)[name] = value_of(widget)
        return Experiment(**given)

    def groups(self, without: tuple[str, ...]) -> dict[str, list[widgets.Widget]]:
        """The other widgets by part: ``experiment`` first, then model, data, …"""
        found: dict[str, list[widgets.Widget]] = {"experiment": []}
        for path, widget in self.widgets.items():
            if path not in without:
                found.setdefault(path.rpartition(".")[0] or "experiment", []).append(widget)
        return found


def fields(experiment: Experiment) -> Iterator[tuple[str, FieldInfo, Any]]:
    """``(path, field, value)`` of everything that can be set."""
    for name, field in type(experiment).model_fields.items():
        value = getattr(experiment, name)
        if not isinstance(value, Part):
            yield name, field, value
            continue
        for inner, inner_field in type(value).model_fields.items():
            yield f"{name}.{inner}", inner_field, getattr(value, inner)


def control(path: str, field: FieldInfo, value: Any) -> widgets.Widget:
    """The widget that fits one field; its tooltip says what the field means and allows."""
    name = path.rpartition(".")[2]
    label = field.title or WITH_UNIT.get(name) or name.replace("_", " ")
    shared = {"description": label, "tooltip": f"{field.description} Allowed: {allowed(field)}.",
              "style": {"description_width": "7.5em"}, "layout": {"width": "17em"}}  # fmt: skip
    kind, named = unwrap(field.annotation), choices(field)
    if named is not None:
        unset = [(UNSET, None)] if is_optional(field.annotation) else []
        return widgets.Dropdown(options=unset + [(str(c), c) for c in named], value=value, **shared)
    if kind is bool:
        return widgets.Checkbox(value=value, **shared)
    if is_optional(field.annotation) or kind not in (int, float):
        shown = "" if value is None else str(value)
        return widgets.Text(value=shown, placeholder=UNSET if is_optional(field.annotation) else "", **shared)
    # Unbounded entry on purpose: a value out of range is explained, not silently moved into it.
    return (
        widgets.IntText(value=value, **shared)
        if kind is int
        else widgets.FloatText(value=value, step=0.01, **shared)
    )


def value_of(widget: widgets.Widget) -> Any:
    """What a widget says, for pydantic to judge; an empty text means unset."""
    if isinstance(widget, widgets.Text):
        return widget.value.strip() or None
    return widget.value
