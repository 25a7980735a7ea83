"""Conversion between an experiment's schema or values and command-line flags.

Fields of parts are flat flags: ``--width`` is ``model.width``.  The title of a part's head field names its
flag: ``--sync ring`` is ``sync.scheme``.  A part of several kinds, which differ in their heads, gives one
head flag and the fields of every kind.
"""

from __future__ import annotations

import copy
import json
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial, reduce
from inspect import Parameter
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from dlpar.cli import BadRequest
from dlpar.config.experiment import Experiment, missing
from dlpar.config.paths import LARGEST, read_plain
from dlpar.config.rules import ABSENT, value_at
from dlpar.config.schema import BadExperiment, Part, allowed, choices, is_optional, kinds, shown, unwrap
from dlpar.worlds import platforms  # noqa: F401 (adds the rule of platforms)

OWN_PANEL = "Training"
"""Title of fields without a part."""


@dataclass(frozen=True)
class Flag:
    """Command-line flag of one field of the schema.

    Attributes
    ----------
    path : tuple of str
        Path of the field: ``("workers",)`` or ``("model", "width")``.
    spelling : str
        The flag: ``--workers``, ``--width``.
    field : FieldInfo
        Type, bounds, default and description.
    kinds : tuple of str
        For a head: all its values.  For another field: the heads that use it, empty if all do.
    is_head : bool
        Whether the field's value chooses the kind of its part.
    defaults : tuple of (str, object)
        For a field whose default differs among kinds: each head and its default.
    """

    path: tuple[str, ...]
    spelling: str
    field: FieldInfo
    kinds: tuple[str, ...] = ()
    is_head: bool = False
    defaults: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Name of the field in the schema's messages, such as ``model.width``."""
        return ".".join(self.path)

    @property
    def parameter(self) -> str:
        """Python parameter of the flag, such as ``model_width``."""
        return "_".join(self.path)

    @property
    def is_switch(self) -> bool:
        """Return whether the flag takes no value: ``--overlap`` and ``--no-overlap``."""
        return unwrap(self.field.annotation) is bool

    @property
    def has_commas(self) -> bool:
        """Return whether the flag's value is a comma-separated list."""
        kind = typing.get_origin(unwrap(self.field.annotation))
        return kind in (dict, tuple) or self.path in (("split", "order"), ("split", "partition"))

    @property
    def allowed(self) -> str:
        """Allowed values of the flag, in words."""
        if self.is_head:
            return f"one of {', '.join(self.kinds)}"
        return allowed(self.field).removesuffix(", or nothing")


@cache
def flags(schema: type[Part] = Experiment) -> tuple[Flag, ...]:
    """Return all flags of a schema, in the order of fields. No two flags have the same spelling."""
    found: list[Flag] = []
    for name, field in schema.model_fields.items():
        parts = [kind for kind in kinds(field) if kind.listed]
        found += _flags_of(name, parts) if parts else [Flag((name,), _spelled(name), field)]
    spellings = [flag.spelling for flag in found]
    doubled = sorted({s for s in spellings if spellings.count(s) > 1})
    assert not doubled, f"two fields of {schema.__name__} share a flag: {', '.join(doubled)}"
    return tuple(found)


def _flags_of(part: str, several: list[type[Part]]) -> list[Flag]:
    """Return the flags of one part: the head, then the fields of each kind.

    A field that kinds share gives one flag.
    """
    head = several[0].head()
    heads = {kind: tuple(map(str, choices(kind.model_fields[head]))) for kind in several}
    every = tuple(value for kind in several for value in heads[kind])
    field = several[0].model_fields[head]
    found = [Flag((part, head), _spelled(field.title or head), field, every, is_head=bool(every))]
    for name in dict.fromkeys(name for kind in several for name in kind.model_fields if name != head):
        those = [kind for kind in several if name in kind.model_fields]
        field = those[0].model_fields[name]
        defaults = {value: kind.model_fields[name].get_default() for kind in those for value in heads[kind]}
        having = () if tuple(defaults) == every else tuple(defaults)
        differing = tuple(defaults.items()) if len(set(map(str, defaults.values()))) > 1 else ()
        found.append(Flag((part, name), _spelled(field.title or name), field, having, False, differing))
    return found


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-").replace(" ", "-")


# ---- from flags to an experiment ---------------------------------------------


def parameters(several: bool = False) -> list[Parameter]:
    """Return the parameters with which typer offers every flag.

    With `several`, a flag may be repeated.

    Values stay text, because only the schema knows the allowed values.
    """
    found = []
    for flag in flags():
        commas = ",…" if several and not flag.has_commas else ""
        option = typer.Option(
            f"{flag.spelling}/--no-{flag.spelling[2:]}" if flag.is_switch else flag.spelling,
            help=_help(flag),
            metavar="" if flag.is_switch else _placeholder(flag) + commas,
            rich_help_panel=_panel(flag),
            show_default=False,
        )
        kind = bool if flag.is_switch else str
        typed = Annotated[(list[kind] if several else kind) | None, option]
        found.append(Parameter(flag.parameter, Parameter.KEYWORD_ONLY, default=None, annotation=typed))
    return found


def _panel(flag: Flag) -> str:
    if len(flag.path) == 1:
        return OWN_PANEL
    title, description = flag.path[0].capitalize(), Experiment.model_fields[flag.path[0]].description
    return f"{title}: {description[0].lower()}{description[1:].rstrip('.')}" if description else title


def _help(flag: Flag) -> str:
    """Return the description, the allowed values and the default."""
    parts = [(flag.field.description or "").strip().rstrip(".")]
    if not flag.is_switch and not flag.allowed.startswith("text"):
        parts.append(f"{flag.allowed[0].upper()}{flag.allowed[1:]}")
    if flag.kinds and not flag.is_head:
        parts.append(f"For {' and '.join(flag.kinds)}")
    default = flag.field.get_default()
    if flag.defaults:
        parts.append(f"Default: {', '.join(f'{written(value)} ({kind})' for kind, value in flag.defaults)}")
    elif default not in (None, "", (), {}):
        parts.append(f"Default: {written(default) if not flag.is_switch else 'on' if default else 'off'}")
    return ". ".join(parts) + "."


def _placeholder(flag: Flag) -> str:
    if choices(flag.field):
        return "NAME"
    kind = unwrap(flag.field.annotation)
    if typing.get_origin(kind) is dict:
        return "WORKER=X,…"
    usual = {int: "N", float: "X"}.get(kind, "PATH")
    return {"order": "AXES", "partition": "NUMBERS"}.get(flag.path[-1], usual)


def fields_in(file: str | None) -> dict[str, Any]:
    """Read the fields from the file of ``--experiment`` or from standard input.

    Return no fields if no file was named.

    Raises
    ------
    BadRequest
        If the file cannot be read, or is not a mapping in JSON.
    """
    if file is None:
        return {}
    try:
        fields = json.loads(sys.stdin.buffer.read(LARGEST) if file == "-" else read_plain(file))
    except OSError as error:
        wanted = f"allowed is a JSON file that can be read ({error.strerror})"
        raise BadRequest(f"--experiment: got {file!r}, {wanted}") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"--experiment: not valid JSON ({error})") from None
    if not isinstance(fields, dict):
        raise BadRequest(f"--experiment: got {shown(fields)}, allowed is a mapping of fields to values")
    return fields


def read(given: dict[str, Any], fields: Mapping[str, Any] | None = None) -> Experiment:
    """Build an experiment from the typed words.

    Parameters
    ----------
    given : dict
        Values by parameter name, as typer passes them; None if not typed.
    fields : mapping, optional
        All or some fields of an experiment, which flags override.

    Raises
    ------
    BadExperiment
        With the schema's sentence, in which flags replace the names of fields.
    """
    whole = copy.deepcopy(dict(fields or {}))
    typed = {flag: given[flag.parameter] for flag in flags() if given.get(flag.parameter) is not None}
    for flag, value in typed.items():
        within = whole if len(flag.path) == 1 else _part(whole, flag, value)
        within[flag.path[-1]] = value if flag.is_switch else _value(flag, value)
    try:
        return Experiment(**whole)
    except BadExperiment as error:
        # An error in the file names the file's own field.
        raise BadExperiment(as_flags(str(error), typed if fields else flags())) from None


def _part(fields: dict[str, Any], flag: Flag, typed: str | bool) -> dict[str, Any]:
    """Return the mapping in `fields` for a flag's part, and set its head.

    The head's flag comes first.
    """
    part = flag.path[0]
    field = Experiment.model_fields[part]
    head = next((each for each in flags() if each.is_head and each.path[0] == part), None)
    before = fields.get(part, {})
    if head is None:  # a part with only numbers
        return fields.setdefault(part, before) if isinstance(before, dict) else {}
    before = {head.path[1]: before} if isinstance(before, str) else before
    if not isinstance(before, dict):
        return {}  # the schema refuses the file's value later
    chosen = before.setdefault(head.path[1], str(field.get_default()))
    if flag.is_head and typed != chosen and len(kinds(field)) > 1:
        before = {}  # fields of the previous kind do not apply to this one
    elif flag.kinds and chosen in head.kinds and chosen not in flag.kinds and not flag.is_head:
        having = f"{head.spelling} {' or '.join(flag.kinds)}"
        raise BadExperiment(f"{flag.spelling}: got {typed}, allowed with {having}, not {chosen}")
    fields[part] = before
    return before


def _value(flag: Flag, text: str) -> Any:
    """Convert text to a number if the field is numeric.

    A message then shows the number as typed.
    """
    if text == "" and is_optional(flag.field.annotation):
        return None
    named = choices(flag.field)
    kind = type(named[0]) if named else unwrap(flag.field.annotation)
    for number in (int, float) if kind in (int, float) else ():
        with suppress(ValueError):
            return number(text)
    return text


def as_flags(message: str, named: Iterable[Flag] | None = None) -> str:
    """Replace names of fields in a schema's message with flags. With `named`, replace only these."""
    named = flags() if named is None else tuple(named)
    # The flag of a whole part has the name of its head.
    spellings = {flag.path[0]: flag.spelling for flag in named if flag.is_head}
    spellings |= {flag.name: flag.spelling for flag in named}

    def spell(match: re.Match) -> str:
        return match[1] + spellings.get(match[2], match[2]) + ":"

    return re.sub(r"(^|; )([a-z_]+(?:\.[a-z_]+)?):", spell, message)


@contextmanager
def named_as_flags() -> Iterator[None]:
    """Re-raise the block's `BadExperiment` errors with flags instead of field names."""
    try:
        yield
    except BadExperiment as error:
        raise BadExperiment(as_flags(str(error))) from None


def tell_idle(command: str, given: dict[str, Any], experiments: Sequence[Experiment]) -> None:
    """Warn on standard error about typed flags that affect no experiment.

    A sweep often has such flags.

    Threads are exempt, because they change the time of a simulation. A sweep's platform is exempt, because
    the sweep predicts for it.
    """
    spellings = {flag.name: flag.spelling for flag in flags()}
    for flag in flags():
        is_exempt = flag.name == "cluster.threads" or (command == "sweep" and flag.path[0] == "cluster")
        if is_exempt or given.get(flag.parameter) in (None, []):
            continue
        lacks = [missing(flag.name, partial(value_at, experiment)) for experiment in experiments]
        if all(lacks):
            beside, values = lacks[0]
            meant = f"it is meant with {spellings[beside]} {' or '.join(values)}"
            print(f"dlpar {command}: {flag.spelling} has no effect: {meant}", file=sys.stderr)


# ---- from an experiment to flags ---------------------------------------------


def to_flags(experiment: Experiment) -> list[str]:
    """Return the arguments of ``dlpar run`` that reproduce this experiment. Defaults are left out.

    >>> to_flags(Experiment(workers=2, sync={"overlap": True}))
    ['--workers', '2', '--overlap']
    """
    ordinary, words = Experiment(), []
    for flag in flags():
        value = value_at(experiment, flag.name)
        if value is ABSENT:
            continue
        part = reduce(getattr, flag.path[:-1], ordinary if flag.is_head else experiment)
        # Kinds may have different defaults of one field.
        if value == type(part).model_fields[flag.path[-1]].get_default(call_default_factory=True):
            continue
        if flag.is_switch:
            words.append(flag.spelling if value else f"--no-{flag.spelling[2:]}")
        else:
            words += [flag.spelling, "" if value is None else written(value)]
    return words


def written(value: Any) -> str:
    """Return a value as a user would type it. Floats have the fewest digits that restore them."""
    if isinstance(value, dict):
        return ",".join(f"{key}={written(number)}" for key, number in value.items())
    if isinstance(value, tuple):
        return ",".join(f"{a}-{b}" for a, b in value)
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
