"""Conversion of a pydantic schema into sentences that a student can act on.

Error messages, ``--help`` and the panel's tooltips all use this module to describe allowed values.
"""

from __future__ import annotations

import importlib
import math
import os
import types
import typing
from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

LINE = r"^[^\x00-\x1f\x7f]{1,4096}$"
"""Pattern of a path or a name: one line of text, not empty, without terminal control characters."""

Share = Annotated[float, Field(gt=0, le=1)]


class BadExperiment(ValueError):
    """Error: an experiment cannot be run. The message names the field, the value and the allowed values."""


class BadData(ValueError):
    """Error: data cannot be read. The message names the file, the searched folder and the expected form."""


class OneOf:
    """Marker for a text field that allows the words of a collection. Plug-ins may add words.

    Parameters
    ----------
    words : collection of str
        Read at every check of a value.
    """

    def __init__(self, words: Collection[str]) -> None:
        self.words = words

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, word: str) -> str:
        if word not in self.words:
            raise PydanticCustomError("one_of", "not one of those allowed")
        return word


class Only:
    """Marker for a field that has an effect only with certain values of another field.

    Parameters
    ----------
    beside : str
        Path of the other field: ``sync.consistency``.
    values : str
        Values of the other field with which this field has an effect.
    """

    def __init__(self, beside: str, *values: str) -> None:
        self.beside, self.values = beside, values


class Part(BaseModel):
    """Frozen part of an :class:`~dlpar.Experiment`. Unknown fields are rejected.

    A part may be written as its head field alone: ``sync="ring"`` means
    ``sync={"scheme": "ring"}``.  The head is the first field of the class.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    implementation: ClassVar[str] = ""
    """Module and name of the code of a part with several kinds, ``module:name``."""

    listed: ClassVar[bool] = True
    """Whether a user may choose this kind by the word of its head."""

    @classmethod
    def head(cls) -> str:
        """Return the name of the first field. This field stands for the whole part."""
        return next(iter(cls.model_fields))

    def __str__(self) -> str:
        return str(getattr(self, self.head()))

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, fields: Any) -> Any:
        """Read a bare word as the head. ``workers=True`` becomes a word and is rejected."""
        if isinstance(fields, str):
            return {cls.head(): fields}
        if not isinstance(fields, dict) or not any(isinstance(value, bool) for value in fields.values()):
            return fields
        numbers = {name for name, f in cls.model_fields.items() if unwrap(f.annotation) in (int, float)}
        return {k: str(v) if isinstance(v, bool) and k in numbers else v for k, v in fields.items()}


class FromFile(Part):
    """Part that a file may describe. A bad value raises `BadExperiment`, which names the field."""

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise BadExperiment(sentence(error, type(self))) from None


def load_plugins() -> None:
    """Import the comma-separated modules that ``$DLPAR_PLUGINS`` names.

    They add schemes, topologies, codecs or schedules. The processes of a job inherit the variable.
    """
    for module in filter(None, map(str.strip, os.environ.get("DLPAR_PLUGINS", "").split(","))):
        importlib.import_module(module)


def kinds(field: FieldInfo) -> list[type[Part]]:
    """Return the kinds of part that a field may hold: none for a plain field, several for a union."""
    annotation = unwrap(field.annotation)
    candidates = [annotation, *map(unwrap, typing.get_args(annotation))]
    return [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, Part)]


def unwrap(annotation: Any) -> Any:
    """Return the annotation without ``| None``."""
    left = [kind for kind in typing.get_args(annotation) if kind is not types.NoneType]
    return left[0] if is_optional(annotation) and len(left) == 1 else annotation


def is_optional(annotation: Any) -> bool:
    """Return whether an annotation allows ``None``."""
    return types.NoneType in typing.get_args(annotation)


def choices(field: FieldInfo) -> list[Any]:
    """Return the values that a ``Literal`` or :class:`OneOf` field allows. Any other field has none."""
    for mark in field.metadata:
        if isinstance(mark, OneOf):
            return list(mark.words)
    kind = unwrap(field.annotation)
    return list(typing.get_args(kind)) if typing.get_origin(kind) is Literal else []


def _limits(field: FieldInfo) -> str:
    """Describe the limits of a numeric field."""
    words = {Ge: "at least", Gt: "above", Le: "at most", Lt: "below"}
    found = {type(m): getattr(m, type(m).__name__.lower()) for m in field.metadata if type(m) in words}
    if Ge in found and Le in found:
        return f"from {_number(found[Ge])} to {_number(found[Le])}"
    return " and ".join(f"{words[kind]} {_number(limit)}" for kind, limit in found.items())


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else f"{value:g}"


def allowed(field: FieldInfo) -> str:
    """Describe the values that a field allows, as ``one of ring, ps`` or ``a whole number from 1 to 64``."""
    kind, several = unwrap(field.annotation), kinds(field)
    if several:
        fields = several[0].model_fields if len(several) == 1 else [several[0].head(), "its settings"]
        listed = [part.model_fields[part.head()] for part in several if part.listed]
        heads = [str(head) for each in listed for head in choices(each)]
        mapping = f"a mapping of {', '.join(fields)}"
        return f"one of {', '.join(heads)} (or {mapping})" if heads else mapping
    if named := choices(field):
        text = f"one of {', '.join(map(str, named))}"
    elif kind is bool:
        text = "true or false"
    elif typing.get_origin(kind) is dict:
        key, value = typing.get_args(kind)
        some = "ranks, such as 1=1.0,2=1.0" if key is int else f"of {', '.join(typing.get_args(key))}"
        text = f"numbers {_limits(FieldInfo.from_annotation(value))} for some {some}"
    elif typing.get_origin(kind) is tuple:
        text = "pairs of workers such as 0-1,1-2, or the path of a file with one pair a line"
    elif kind in (int, float):
        text = f"{'a whole number' if kind is int else 'a finite number'} {_limits(field)}".strip()
    else:
        is_line = any(getattr(mark, "pattern", None) == LINE for mark in field.metadata)
        text = "text on one line that is not empty" if is_line else "text"
    return text + (", or nothing" if is_optional(field.annotation) else "")


def shown(value: Any, limit: int = 60) -> str:
    """Return `value` as it was given, truncated to `limit` characters."""
    try:
        text = f"{value:g}" if isinstance(value, float) and math.isfinite(value) else repr(value)
    except ValueError:  # Python does not write out whole numbers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def sentence(error: ValidationError, schema: type[Part]) -> str:
    """Return all complaints of a pydantic error as one line. Each names field, value and allowed values."""
    said = []
    for item in error.errors(include_url=False):
        path, field, owner = _find(schema, item["loc"])
        name = ".".join(s if len(s) < 60 and s.replace("_", "0").isalnum() else shown(s) for s in path)
        got, fields = f"{name or 'experiment'}: got {shown(item['input'])}", ", ".join(owner.model_fields)
        if item["type"] == "union_tag_invalid" and field:
            head = kinds(field)[0].head()
            word = shown(item["input"][head])
            said.append(f"{name}.{head}: got {word}, allowed is {allowed(field).split(' (or')[0]}")
        elif item["type"] == "extra_forbidden":
            said.append(f"{got}, but there is no such field; allowed are {fields}")
        elif item["type"] == "missing":
            said.append(f"{name}: missing; allowed is {allowed(field)}" if field else f"{name}: missing")
        elif item["type"] == "value_error":
            why = item["ctx"]["error"]
            # A part that refuses its own fields does not know its path.
            said.append(f"{name}.{why}" if name and isinstance(why, BadExperiment) else str(why))
        elif field is not None:
            said.append(f"{got}, allowed is {allowed(field)}")
        else:
            said.append(f"{got}, allowed is a mapping of {fields}")
    return "; ".join(dict.fromkeys(said))


def _find(schema: type[Part], where: tuple[Any, ...]) -> tuple[list[str], FieldInfo | None, type[Part]]:
    """Return the path of a pydantic location, the field there, and the part that owns the field."""
    path: list[str] = []
    field, owner, several = None, schema, [schema]
    for step in map(str, where):
        if len(several) > 1:  # the location names the kind, which is not a field
            several = [kind for kind in several if step in choices(kind.model_fields[kind.head()])]
        elif several:
            path, owner = [*path, step], several[0]
            field = owner.model_fields.get(step)
            several = kinds(field) if field else []
        else:  # inside a value: the user can only change the field
            break
    return path, field, owner
