"""One field of an experiment as it can be set, and the widget that fits it."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ipywidgets as widgets
from pydantic.fields import FieldInfo

from dlpar.schema import allowed, choices, is_optional, unwrap

UNSET = "default"

WITH_UNIT = {
    "bucket_mb": "bucket (MB)", "timeout": "timeout (s)", "delay_ms": "mean delay (ms)", "stall": "stall (s)",
    "zero": "ZeRO stage",
}  # fmt: skip
"""What fields are called whose name does not tell their unit."""

ZERO, ALL = "; 0: ", " (0: all)"
"""Where a description says that 0 stands for as many as there are, and how a label says it."""


class Setting(NamedTuple):
    """One field as it can be set.

    Attributes
    ----------
    path : str
        ``workers``, ``model.width``.
    field : FieldInfo
        Type, bounds and description.
    value : object
        What it is now; the default where the present kind of its part has no such field.
    heads : tuple of str
        Of a head: all it may say.  Of another field: the heads it belongs to, empty if to all.
    is_head : bool
        Whether it chooses the kind of its part.
    by_head : dict of str to FieldInfo
        Of a field that kinds of its part define differently, such as its default: the field of each head.
    """

    path: str
    field: FieldInfo
    value: Any
    heads: tuple[str, ...] = ()
    is_head: bool = False
    by_head: Mapping[str, FieldInfo] = {}


def control(setting: Setting) -> widgets.Widget:
    """The widget that fits one field; its tooltip says what the field means and allows."""
    field, value = setting.field, setting.value
    means = f"one of {', '.join(setting.heads)}" if setting.is_head else None
    shared = {
        "description": label(setting.path, field),
        "tooltip": tooltip(field, means),
        "style": {"description_width": "7.5em"},
        "layout": {"width": "17em"},
    }
    if setting.is_head:
        return widgets.Dropdown(options=list(setting.heads), value=value, **shared)
    kind, named = unwrap(field.annotation), choices(field)
    if named is not None:
        unset = [(UNSET, None)] if is_optional(field.annotation) else []
        return widgets.Dropdown(options=unset + [(str(c), c) for c in named], value=value, **shared)
    if kind is bool:
        return widgets.Checkbox(value=value, **shared)
    if setting.path in NAMED:
        unset, known = NAMED[setting.path]()
        options = [
            (unset, ""),
            *((n, n) for n in known + [value] * (value is not None and value not in known)),
        ]
        return widgets.Dropdown(options=options, value=value or "", **shared)
    if is_optional(field.annotation) or kind not in (int, float):
        return widgets.Text(value=written(value), placeholder=_placeholder(field), **shared)
    # Unbounded entry on purpose: a value out of range is explained, not silently moved into it.
    return (
        widgets.IntText(value=value, **shared)
        if kind is int
        else widgets.FloatText(value=value, step=0.01, **shared)
    )


def label(path: str, field: FieldInfo) -> str:
    """How a field is called beside its widget."""
    name = path.rpartition(".")[2]
    words = (field.title or WITH_UNIT.get(name) or name).replace("_", " ")
    return words + ALL * (ZERO in (field.description or ""))


def tooltip(field: FieldInfo, means: str | None = None) -> str:
    """What a field means and allows."""
    return f"{field.description} Allowed: {means or allowed(field)}."


def _platforms() -> tuple[str, list[str]]:
    from dlpar.platforms import names
    from dlpar.platforms.home import USUAL

    return f"{UNSET} ({USUAL})", names()


def _workloads() -> tuple[str, list[str]]:
    from dlpar.platforms import WORKLOADS

    return "the model itself", list(WORKLOADS)


NAMED: dict[str, Callable[[], tuple[str, list[str]]]] = {
    "cluster.platform": _platforms, "cluster.stand_in_for": _workloads,
}  # fmt: skip
"""Text fields of which the usual values have names, to choose from; what none of them is called, and the names.

A file is among them if the experiment came with it.
"""


def _placeholder(field: FieldInfo) -> str:
    kind = typing.get_origin(unwrap(field.annotation))
    return (
        UNSET if is_optional(field.annotation) else {dict: "none, or 1=4.0", tuple: "0-1,1-2"}.get(kind, "")
    )


def written(value: Any) -> str:
    """A value as it is typed into a text box: ``1=4``, ``0-1,1-2``; empty for none."""
    if isinstance(value, dict):
        return ",".join(f"{key}={number:g}" for key, number in value.items())
    if isinstance(value, tuple):
        return ",".join(f"{a}-{b}" for a, b in value)
    return "" if value is None else str(value)


def value_of(widget: widgets.Widget, field: FieldInfo) -> Any:
    """What a widget says, for pydantic to judge; an empty text means unset."""
    value = widget.value.strip() if isinstance(widget, widgets.Text) else widget.value
    return None if value == "" and is_optional(field.annotation) else value


def show(widget: widgets.Widget, path: str, value: Any) -> None:
    """Let a widget say a value of its field."""
    if isinstance(widget, widgets.Text):
        widget.value = written(value)
    elif path in NAMED:
        if value and value not in dict(widget.options).values():
            widget.options = [*widget.options, (value, value)]
        widget.value = value or ""
    else:
        widget.value = value
