"""Widgets for the fields of an experiment, made from its schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets as widgets
from pydantic.fields import FieldInfo

from dlpar.experiment import Experiment
from dlpar.lab.setting import Setting, control, label, show, tooltip, value_of
from dlpar.meaning import missing
from dlpar.schema import Part, choices, kinds

ONLY_MEANT = {
    "data.reading", "split.redundancy", "sync.staleness_aware", "sync.edges", "cluster.stand_in_for",
    "cluster.messages", "cluster.device", "cluster.carrier", "cluster.hostfile",
}  # fmt: skip
"""Fields that may not be set beside values with which they mean nothing: hidden, they are as if unset."""


class Controls:
    """One widget for every field, by its path: ``workers``, ``model.width``.

    Of a part that comes in several kinds, only the fields of the kind chosen
    are shown; what was set for the others is remembered.  A field that kinds
    define differently has a value for each kind, its default at first.

    Parameters
    ----------
    experiment : Experiment
        What the widgets show at first.
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
        """What the widgets say; raises `BadExperiment` naming the first fields that cannot be."""
        given: dict[str, Any] = {}
        for path, setting in self.settings.items():
            part, _, name = path.rpartition(".")
            if self._of_chosen_kind(setting) and (path not in ONLY_MEANT or self._is_meant(path)):
                (given.setdefault(part, {}) if part else given)[name] = value_of(
                    self.widgets[path], setting.field
                )
        if given["sync"]["scheme"] == "own":
            given["sync"] = self._first.sync  # its code is no text to type
        return Experiment(**given)

    def show(self, experiment: Experiment) -> None:
        """Let the widgets say what another experiment does; those of kinds it has not chosen stay."""
        self._turning = True
        try:
            for setting in sorted(settings(experiment), key=lambda setting: not setting.is_head):
                if setting.path in self.widgets and self._of_chosen_kind(setting):
                    show(self.widgets[setting.path], setting.path, setting.value)
        finally:
            self._turning = False
        self._tell()

    def values(self) -> dict[str, Any]:
        """What every widget says, for :meth:`restore`."""
        return {path: widget.value for path, widget in self.widgets.items()}

    def restore(self, values: dict[str, Any]) -> None:
        """Let every widget say what it said before."""
        self._turning = True
        for path in sorted(values, key=lambda path: not self.settings[path].is_head):
            self.widgets[path].value = values[path]
        self._turning = False
        self._tell()

    def path_of(self, name: str) -> str | None:
        """The path of a field, by that or by the name it goes by (``world``); None if there is no such field."""
        if name in self.widgets:
            return name
        titled = [path for path, setting in self.settings.items() if setting.field.title == name]
        return titled[0] if len(titled) == 1 else None

    def groups(self, without: tuple[str, ...]) -> dict[str, list[widgets.Widget]]:
        """The other widgets by part: ``experiment`` first, then model, data, …"""
        found: dict[str, list[widgets.Widget]] = {"experiment": []}
        for path, widget in self.widgets.items():
            if path not in without:
                found.setdefault(_part(path) or "experiment", []).append(widget)
        return found

    def _turn(self, head: str, change: dict[str, Any]) -> None:
        """Another kind of a part is chosen: fields it defines otherwise show what they were with it."""
        before, self._turning = self._turning, True  # what is shown meanwhile is of no kind
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
        """Hide what means nothing beside what was chosen."""
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
    """Everything that can be set."""
    for name, field in type(experiment).model_fields.items():
        value = getattr(experiment, name)
        if isinstance(value, Part):
            yield from _of_part(name, field, value)
        else:
            yield Setting(name, field, value)


def _of_part(part: str, field: FieldInfo, value: Part) -> Iterator[Setting]:
    """The head of a part, if there is a choice of kinds, and the fields of each kind; one of several kinds once."""
    several = [kind for kind in kinds(field) if kind.listed or isinstance(value, kind)]
    head = several[0].head()
    said = {kind: tuple(map(str, choices(kind.model_fields[head]))) for kind in several}
    every = tuple(word for kind in several for word in said[kind])
    if len(several) > 1:
        yield Setting(
            f"{part}.{head}", several[0].model_fields[head], getattr(value, head), every, is_head=True
        )
    names = dict.fromkeys(name for kind in several if kind.listed for name in kind.model_fields)
    for name in names:
        if len(several) > 1 and name == head:
            continue
        of = {
            word: kind.model_fields[name]
            for kind in several
            if name in kind.model_fields
            for word in said[kind]
        }
        inner = of.get(str(getattr(value, head)), next(iter(of.values())))
        differs = any(field.get_default() != inner.get_default() for field in of.values())
        now = getattr(value, name, inner.get_default())
        having = tuple(of) if tuple(of) != every else ()
        yield Setting(f"{part}.{name}", inner, now, having, by_head=of if differs else {})


def _part(path: str) -> str:
    """``split`` of ``split.kind``; empty for a field of the experiment itself."""
    return path.rpartition(".")[0]
