"""Controls of a panel: an experiment's fields for a page, made from its schema."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from dlpar.config.experiment import Experiment, missing
from dlpar.config.schema import Part, allowed, choices, is_optional, kinds, unwrap
from dlpar.lab.figure import require
from dlpar.worlds.platforms import WORKLOADS
from dlpar.worlds.platforms import names as platform_names
from dlpar.worlds.platforms.lookup import USUAL

ONLY_MEANT = {
    "split.redundancy", "split.async_allreduce", "sync.staleness_aware", "sync.edges", "cluster.stand_in_for",
    "cluster.messages", "cluster.device", "cluster.carrier", "cluster.graphs", "cluster.hostfile", "cluster.platform",
}  # fmt: skip
"""Fields that must be unset if they have no effect with other values. Hidden ones count as unset."""


class Controls:
    """Values of all fields by their paths, such as ``workers`` or ``model.width``.

    If a part has several kinds, only the fields of the chosen kind are shown. The values of the other fields
    are kept.  A field that kinds define differently has a value for each kind, at first its default.

    Parameters
    ----------
    experiment : Experiment
        Initial values.
    first : sequence of str
        Fields on the first screen, by path or name.

    Attributes
    ----------
    values : dict of str to object
        Values as a page shows them: text for a field that is typed.

    Raises
    ------
    ValueError
        If a name in `first` is not a field.
    """

    def __init__(self, experiment: Experiment, first: Sequence[str] = ()) -> None:
        self.settings = {setting.path: setting for setting in settings(experiment)}
        self.values = {path: _as_shown(setting, setting.value) for path, setting in self.settings.items()}
        self._own = experiment.sync
        self._kept: dict[tuple[str, Any], Any] = {}  # values of fields that several kinds define differently
        self.first = [self.path_of(name) for name in first]

    def experiment(self) -> Experiment:
        """Experiment that the values describe. Raises `BadExperiment` if it is impossible."""
        given: dict[str, Any] = {}
        for path, setting in self.settings.items():
            part, _, name = path.rpartition(".")
            if self._of_chosen_kind(setting) and (path not in ONLY_MEANT or self._is_meant(path)):
                (given.setdefault(part, {}) if part else given)[name] = _as_typed(setting, self.values[path])
        if given["sync"]["scheme"] == "own":
            given["sync"] = self._own  # a user cannot type its code
        return Experiment(**given)

    def set(self, path: str, value: Any) -> None:
        """Set a field. If it chooses a part's kind, also set the fields that kinds define differently."""
        before, self.values[path] = self.values[path], value
        if self.settings[path].is_head:
            for other, setting in self.settings.items():
                if setting.differs and _part(other) == _part(path):
                    self._kept[other, before] = self.values[other]
                    if field := setting.by_head.get(value):
                        self.values[other] = self._kept.get((other, value), field.get_default())

    def show(self, experiment: Experiment) -> None:
        """Adopt the values of an experiment. Values of unused kinds stay."""
        for setting in sorted(settings(experiment), key=lambda setting: not setting.is_head):
            if setting.path in self.settings and self._of_chosen_kind(setting):
                self.values[setting.path] = _as_shown(setting, setting.value)

    def path_of(self, name: str) -> str:
        """Find the path of a field by its path, its title or its name, such as ``world``."""
        called = [p for p, s in self.settings.items() if name in (s.field.title, p.rpartition(".")[2])]
        if name in self.settings:
            return name
        require(len(called) == 1, f"controls: got {name!r}, allowed are {', '.join(self.settings)}")
        return called[0]

    def fields(self) -> list[dict[str, Any]]:
        """Describe each field for the page. Fields of the first screen come first."""
        heads = {_part(path): self.values[path] for path, setting in self.settings.items() if setting.is_head}
        found = []
        for path in dict.fromkeys([*self.first, *self.settings]):
            setting = self.settings[path]
            now = setting._replace(field=setting.by_head.get(heads.get(_part(path)), setting.field))
            found.append(_drawn(now, path in self.first))
        return found

    def hidden(self) -> list[str]:
        """Fields without effect under the chosen values."""
        settings = self.settings.items()
        return [p for p, setting in settings if not (self._of_chosen_kind(setting) and self._is_meant(p))]

    def _of_chosen_kind(self, setting: Setting) -> bool:
        if setting.is_head or not setting.by_head:
            return True
        head = next(s for s in self.settings.values() if s.is_head and _part(s.path) == _part(setting.path))
        return self.values[head.path] in setting.by_head

    def _is_meant(self, path: str) -> bool:
        return missing(path, self.values.__getitem__) is None


def settings(experiment: Experiment) -> Iterator[Setting]:
    """Yield all fields that can be set."""
    for name, field in type(experiment).model_fields.items():
        value = getattr(experiment, name)
        if isinstance(value, Part):
            yield from _of_part(name, field, value)
        else:
            yield Setting(name, field, value)


def _of_part(part: str, field: FieldInfo, value: Part) -> Iterator[Setting]:
    """Return a part's head, if the part has several kinds, and the fields of all kinds.

    Shared fields appear once.
    """
    several = [kind for kind in kinds(field) if kind.listed or isinstance(value, kind)]
    head, has_kinds = several[0].head(), len(several) > 1
    fields_of = {str(word): k.model_fields for k in several for word in choices(k.model_fields[head])}
    if has_kinds:
        of_head = several[0].model_fields[head]
        words = dict.fromkeys(fields_of, of_head)
        yield Setting(f"{part}.{head}", of_head, getattr(value, head), words, is_head=True)
    for name in dict.fromkeys(name for kind in several if kind.listed for name in kind.model_fields):
        if not has_kinds or name != head:
            of = {word: fields[name] for word, fields in fields_of.items() if name in fields}
            usual = next(iter(of.values()), several[0].model_fields.get(name))
            inner = of.get(str(getattr(value, head)), usual)
            now = getattr(value, name, inner.get_default())
            yield Setting(f"{part}.{name}", inner, now, of if has_kinds else {})


def _part(path: str) -> str:
    """Return the part of a path: ``split`` for ``split.kind``, or empty for a field of the experiment."""
    return path.rpartition(".")[0]


UNSET = "default"

WITH_UNIT = {
    "bucket_mb": "bucket (MB)", "timeout": "timeout (s)", "delay_ms": "mean delay (ms)", "stall": "stall (s)",
    "zero": "ZeRO stage",
}  # fmt: skip
"""Labels of fields whose names do not contain units."""

ZERO = re.compile(r"; 0: (none|all)\b")
"""Part of a description that says what 0 means, for the label."""


class Setting(NamedTuple):
    """Field that can be set.

    Attributes
    ----------
    path : str
        ``workers``, ``model.width``.
    field : FieldInfo
        Type, bounds and description.
    value : object
        Current value, or the default if the current kind of its part has no such field.
    by_head : dict of str to FieldInfo
        Field of each kind that has it, by the head of the kind. Empty if the part has only one kind.
    is_head : bool
        Whether the field itself chooses the kind of its part.
    """

    path: str
    field: FieldInfo
    value: Any
    by_head: Mapping[str, FieldInfo] = {}
    is_head: bool = False

    @property
    def differs(self) -> bool:
        """Return whether kinds define the field with different defaults."""
        return len({repr(field.get_default()) for field in self.by_head.values()}) > 1


NAMED: dict[str, tuple[str, Callable[[], Sequence[str]]]] = {
    "cluster.platform": (f"{UNSET} ({USUAL})", platform_names),
    "cluster.stand_in_for": ("the model itself", lambda: list(WORKLOADS)),
}
"""Text fields whose usual values have names: label of an unset field, and names."""


def _drawn(setting: Setting, first: bool) -> dict[str, Any]:
    """Describe a field for the page: label, meaning, and type of widget."""
    path, field, kind = setting.path, setting.field, unwrap(setting.field.annotation)
    meaning = f"one of {', '.join(setting.by_head)}" if setting.is_head else allowed(field)
    words = (field.title or WITH_UNIT.get(name := path.rpartition(".")[2]) or name).replace("_", " ")
    zero = ZERO.search(field.description or "")
    found = {"path": path, "label": f"{words} (0: {zero[1]})" if zero else words, "kind": "text"}
    found |= {"means": f"{field.description} Allowed: {meaning}."}
    found |= {"group": _part(path) or "experiment", "first": first}
    unset = [(UNSET, None)] if is_optional(field.annotation) else []
    if path in NAMED:
        usual, known = NAMED[path]
        return found | {"kind": "choice", "choices": [(usual, ""), *((name, name) for name in known())]}
    if named := setting.by_head if setting.is_head else choices(field):
        return found | {"kind": "choice", "choices": [*unset, *((str(value), value) for value in named)]}
    if kind is bool:
        return found | {"kind": "flag"}
    if kind in (int, float) and not unset:
        return found | {"kind": "number"}
    examples = {dict: "1=4.0 (rank 1, four times)", tuple: "0-1,1-2"}
    return found | {"placeholder": UNSET if unset else examples.get(typing.get_origin(kind), "")}


def _as_shown(setting: Setting, value: Any) -> Any:
    """Return a value as a page shows it.

    A choice or a flag is unchanged. Other values are shown as typed (``1=4``, ``0-1,1-2``).
    """
    if setting.is_head or choices(setting.field) or unwrap(setting.field.annotation) is bool:
        return value
    if isinstance(value, dict):
        return ",".join(f"{key}={str(number).removesuffix('.0')}" for key, number in value.items())
    if isinstance(value, tuple):
        return ",".join(f"{a}-{b}" for a, b in value)
    return "" if value is None else str(value)


def _as_typed(setting: Setting, value: Any) -> Any:
    """Convert a typed value to the field's type if possible, so that a message shows 0 instead of '0'."""
    if not isinstance(value, str):
        return value
    value, kind = value.strip(), unwrap(setting.field.annotation)
    if value == "" and is_optional(setting.field.annotation):
        return None
    for number in (int, float) if kind in (int, float) else ():
        with suppress(ValueError):
            return number(value)
    return value
