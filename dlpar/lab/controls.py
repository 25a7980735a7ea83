"""Widgets for the fields of an experiment, made from its schema."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ipywidgets as widgets
from pydantic.fields import FieldInfo

from dlpar.config.experiment import Experiment, missing
from dlpar.config.schema import Part, allowed, choices, is_optional, kinds, unwrap
from dlpar.lab.cell import heading
from dlpar.worlds.platforms import WORKLOADS
from dlpar.worlds.platforms import names as platform_names
from dlpar.worlds.platforms.lookup import USUAL

ONLY_MEANT = {
    "split.redundancy", "sync.staleness_aware", "sync.edges", "cluster.stand_in_for",
    "cluster.messages", "cluster.device", "cluster.carrier", "cluster.hostfile",
}  # fmt: skip
"""Fields that may not be set beside values with which they have no effect; hidden, they count as unset."""


class Controls:
    """One widget for every field, by its path: ``workers``, ``model.width``.

    If a part has several kinds, only the fields of the chosen kind
    are shown; the values of the others are kept. A field that kinds
    define differently has a value for each kind, at first its default.

    Parameters
    ----------
    experiment : Experiment
        Values of the widgets at first.
    changed : callable
        Called without arguments after any change.
    """

    def __init__(self, experiment: Experiment, changed: Callable[[], None]) -> None:
        self.settings = {setting.path: setting for setting in settings(experiment)}
        self.widgets = {path: control(setting) for path, setting in self.settings.items()}
        self._first, self._changed, self._turning = experiment, changed, False
        self._of_kind = {
            path: {head: field.get_default() for head, field in setting.by_head.items()}
            for path, setting in self.settings.items()
        }
        self._show()
        for path, widget in self.widgets.items():
            if self.settings[path].is_head:
                widget.observe(lambda change, path=path: self._turn(path, change), names="value")
            widget.observe(lambda _change: self._tell(), names="value")

    def experiment(self) -> Experiment:
        """The experiment that the widgets describe; raises `BadExperiment` if it is impossible."""
        given: dict[str, Any] = {}
        for path, setting in self.settings.items():
            part, _, name = path.rpartition(".")
            if self._of_chosen_kind(setting) and (path not in ONLY_MEANT or self._is_meant(path)):
                (given.setdefault(part, {}) if part else given)[name] = value_of(
                    self.widgets[path], setting.field
                )
        if given["sync"]["scheme"] == "own":
            given["sync"] = self._first.sync  # its code cannot be typed into a widget
        return Experiment(**given)

    def show(self, experiment: Experiment) -> None:
        """Set the widgets to the values of an experiment; those of kinds it does not use stay."""
        self._turning = True
        try:
            for setting in sorted(settings(experiment), key=lambda setting: not setting.is_head):
                if setting.path in self.widgets and self._of_chosen_kind(setting):
                    show(self.widgets[setting.path], setting.path, setting.value)
        finally:
            self._turning = False
        self._tell()

    def values(self) -> dict[str, Any]:
        """Values of all widgets, for :meth:`restore`."""
        return {path: widget.value for path, widget in self.widgets.items()}

    def restore(self, values: dict[str, Any]) -> None:
        """Set all widgets to earlier values."""
        self._turning = True
        for path in sorted(values, key=lambda path: not self.settings[path].is_head):
            self.widgets[path].value = values[path]
        self._turning = False
        self._tell()

    def path_of(self, name: str) -> str | None:
        """Path of a field, by its path or its title (``world``); None if there is no such field."""
        if name in self.widgets:
            return name
        called = [p for p, s in self.settings.items() if name in (s.field.title, p.rpartition(".")[2])]
        return called[0] if len(called) == 1 else None

    def groups(self, without: tuple[str, ...]) -> dict[str, list[widgets.Widget]]:
        """Other widgets by part: ``experiment`` first, then model, data, …"""
        found: dict[str, list[widgets.Widget]] = {"experiment": []}
        for path, widget in self.widgets.items():
            if path not in without:
                found.setdefault(_part(path) or "experiment", []).append(widget)
        return found

    def _turn(self, head: str, change: dict[str, Any]) -> None:
        """Switch a part to another kind: fields that it defines differently show their value for that kind."""
        before, self._turning = self._turning, True  # between two kinds, values belong to neither
        for path, setting in self.settings.items():
            if setting.by_head and _part(path) == _part(head):
                widget, values = self.widgets[path], self._of_kind[path]
                if change["old"] in values:
                    values[change["old"]] = widget.value
                if change["new"] in values:
                    field = setting.by_head[change["new"]]
                    widget.value = values[change["new"]]
                    widget.description, widget.tooltip = label(path, field), tooltip(field)
        self._turning = before

    def _tell(self) -> None:
        if not self._turning:
            self._show()
            self._changed()

    def _show(self) -> None:
        """Hide fields that have no effect with the chosen values."""
        for path, setting in self.settings.items():
            display = None if self._of_chosen_kind(setting) and self._is_meant(path) else "none"
            if self.widgets[path].layout.display != display:
                self.widgets[path].layout.display = display

    def _of_chosen_kind(self, setting: Setting) -> bool:
        if setting.is_head or not setting.heads:
            return True
        head = next(s for s in self.settings.values() if s.is_head and _part(s.path) == _part(setting.path))
        return self.widgets[head.path].value in setting.heads

    def _is_meant(self, path: str) -> bool:
        return missing(path, lambda beside: self.widgets[beside].value) is None


def settings(experiment: Experiment) -> Iterator[Setting]:
    """All fields that can be set."""
    for name, field in type(experiment).model_fields.items():
        value = getattr(experiment, name)
        if isinstance(value, Part):
            yield from _of_part(name, field, value)
        else:
            yield Setting(name, field, value)


def _of_part(part: str, field: FieldInfo, value: Part) -> Iterator[Setting]:
    """The head of a part, if it has several kinds, and the fields of all kinds; shared fields once."""
    several = [kind for kind in kinds(field) if kind.listed or isinstance(value, kind)]
    head = several[0].head()
    heads = {kind: tuple(map(str, choices(kind.model_fields[head]))) for kind in several}
    every = tuple(word for kind in several for word in heads[kind])
    if len(several) > 1:
        of_head = several[0].model_fields[head]
        yield Setting(f"{part}.{head}", of_head, getattr(value, head), every, is_head=True)
    names = dict.fromkeys(name for kind in several if kind.listed for name in kind.model_fields)
    for name in names:
        if len(several) > 1 and name == head:
            continue
        of = {
            word: kind.model_fields[name]
            for kind in several
            if name in kind.model_fields
            for word in heads[kind]
        }
        inner = of.get(str(getattr(value, head)), next(iter(of.values())))
        differs = any(field.get_default() != inner.get_default() for field in of.values())
        now = getattr(value, name, inner.get_default())
        having = tuple(of) if tuple(of) != every else ()
        yield Setting(f"{part}.{name}", inner, now, having, by_head=of if differs else {})


def _part(path: str) -> str:
    """``split`` of ``split.kind``; empty for a field of the experiment itself."""
    return path.rpartition(".")[0]


UNSET = "default"

WITH_UNIT = {
    "bucket_mb": "bucket (MB)", "timeout": "timeout (s)", "delay_ms": "mean delay (ms)", "stall": "stall (s)",
    "zero": "ZeRO stage",
}  # fmt: skip
"""Labels of fields whose name does not contain their unit."""

ZERO, ALL = "; 0: ", " (0: all)"
"""Part of a description in which 0 means as many as there are, and the same for a label."""


class Setting(NamedTuple):
    """One field that can be set.

    Attributes
    ----------
    path : str
        ``workers``, ``model.width``.
    field : FieldInfo
        Type, bounds and description.
    value : object
        Current value; the default if the current kind of its part has no such field.
    heads : tuple of str
        Allowed values of a head; for another field, the heads it belongs to, empty if to all.
    is_head : bool
        Whether the field chooses the kind of its part.
    by_head : dict of str to FieldInfo
        Field of each head, if kinds of its part define it differently, for example with other defaults.
    """

    path: str
    field: FieldInfo
    value: Any
    heads: tuple[str, ...] = ()
    is_head: bool = False
    by_head: Mapping[str, FieldInfo] = {}


def control(setting: Setting) -> widgets.Widget:
    """The widget for one field; its tooltip has the field's meaning and allowed values."""
    field, value = setting.field, setting.value
    meaning = f"one of {', '.join(setting.heads)}" if setting.is_head else None
    shared = {
        "description": label(setting.path, field),
        "tooltip": tooltip(field, meaning),
        "style": {"description_width": "7.5em"},
        "layout": {"width": "17em"},
    }
    if setting.is_head:
        return widgets.Dropdown(options=list(setting.heads), value=value, **shared)
    kind, named = unwrap(field.annotation), choices(field)
    if named:
        unset = [(UNSET, None)] if is_optional(field.annotation) else []
        return widgets.Dropdown(options=unset + [(str(c), c) for c in named], value=value, **shared)
    if kind is bool:
        return widgets.Checkbox(value=value, **shared)
    if setting.path in NAMED:
        unset, known = NAMED[setting.path]
        names = dict.fromkeys([*known(), *([value] if value else [])])
        return widgets.Dropdown(options=[(unset, ""), *zip(names, names)], value=value or "", **shared)
    if is_optional(field.annotation) or kind not in (int, float):
        return widgets.Text(value=written(value), placeholder=_placeholder(field), **shared)
    # Unbounded entry on purpose: a value out of range is explained, not silently moved into it.
    if kind is int:
        return widgets.IntText(value=value, **shared)
    return widgets.FloatText(value=value, step=0.01, **shared)


def label(path: str, field: FieldInfo) -> str:
    """Label of a field beside its widget."""
    name = path.rpartition(".")[2]
    words = (field.title or WITH_UNIT.get(name) or name).replace("_", " ")
    return words + ALL * (ZERO in (field.description or ""))


def tooltip(field: FieldInfo, meaning: str | None = None) -> str:
    """Meaning and allowed values of a field."""
    return f"{field.description} Allowed: {meaning or allowed(field)}."


NAMED: dict[str, tuple[str, Callable[[], Sequence[str]]]] = {
    "cluster.platform": (f"{UNSET} ({USUAL})", platform_names),
    "cluster.stand_in_for": ("the model itself", lambda: list(WORKLOADS)),
}
"""Text fields whose usual values have names: the label of an unset field, and the names.

The file of an experiment is added to the names.
"""


def _placeholder(field: FieldInfo) -> str:
    kind = typing.get_origin(unwrap(field.annotation))
    return (
        UNSET if is_optional(field.annotation) else {dict: "none, or 1=4.0", tuple: "0-1,1-2"}.get(kind, "")
    )


def written(value: Any) -> str:
    """A value as typed into a text box: ``1=4``, ``0-1,1-2``; empty for None."""
    if isinstance(value, dict):
        return ",".join(f"{key}={number:g}" for key, number in value.items())
    if isinstance(value, tuple):
        return ",".join(f"{a}-{b}" for a, b in value)
    return "" if value is None else str(value)


def value_of(widget: widgets.Widget, field: FieldInfo) -> Any:
    """Value of a widget, for pydantic to check; an empty text means unset."""
    value = widget.value.strip() if isinstance(widget, widgets.Text) else widget.value
    return None if value == "" and is_optional(field.annotation) else value


def show(widget: widgets.Widget, path: str, value: Any) -> None:
    """Set a widget to a value of its field."""
    if isinstance(widget, widgets.Text):
        widget.value = written(value)
    elif path in NAMED:
        if value and value not in dict(widget.options).values():
            widget.options = [*widget.options, (value, value)]
        widget.value = value or ""
    else:
        widget.value = value


def first_screen(
    controls: Controls, names: tuple[str, ...], question: str, title: str, buttons: Sequence[widgets.Button]
) -> list[widgets.Widget]:
    """Heading and question, and the controls `names` with the buttons beside them.

    Raises
    ------
    ValueError
        If a name is no control.
    """
    unknown = [name for name in names if name not in controls.widgets]
    if unknown:
        raise ValueError(f"controls: got {unknown[0]!r}, allowed are {', '.join(controls.widgets)}")
    chosen = [controls.widgets[name] for name in names]
    for widget in chosen:
        widget.style.description_width, widget.layout.width = "initial", "auto"
    return [heading(title, question), widgets.Box([*chosen, *buttons]).add_class("dlpar-controls")]


def more(controls: Controls, shown: tuple[str, ...], others: dict[str, widgets.Widget]) -> widgets.Accordion:
    """All other controls, by their part, and other sections that are not on the first screen."""
    groups = [
        widgets.VBox([widgets.HTML(f"<h4>{name}</h4>"), widgets.Box(found).add_class("dlpar-fields")])
        for name, found in controls.groups(shown).items()
    ]
    return widgets.Accordion([widgets.VBox(groups), *others.values()], titles=("More settings", *others))
