"""From a name or a file to a platform."""

from __future__ import annotations

import os
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from dlpar.paths import runs_folder
from dlpar.platforms.files import fields_of, is_path
from dlpar.platforms.named import PLATFORMS, SEPARATOR
from dlpar.platforms.platform import Platform
from dlpar.schema import BadExperiment, shown

FIELD = "cluster.platform"

HERE = "here"
"""Name of this machine as a platform."""

CHANGED_PIECEWISE = ("device", "inside", "between", "timing")
"""Fields of which a file that extends a platform may give a part."""


def names() -> list[str]:
    """Every name :func:`platform` knows; ``here`` is this machine, known once it was measured."""
    return [HERE, *PLATFORMS]


def here_file() -> Path:
    """Where the figures of this machine are kept: beside the runs."""
    return runs_folder().parent / "here.json"


def platform(which: str) -> Platform:
    """A platform by its name, or from a JSON or TOML file with the fields of :class:`Platform`.

    In a file, ``extends`` names a platform or another file, beside which only what differs need be given.

    Parameters
    ----------
    which : str
        One of :func:`names`, or a path: it ends in .json or .toml, or has a slash.

    Raises
    ------
    BadExperiment
        ``cluster.platform: …``, if there is none, or the file says something that is not allowed.
    """
    return _found(which, ())


def _found(which: str, extending: tuple[str, ...]) -> Platform:
    """The platform; `extending` are the files on the way to it."""
    if which in PLATFORMS:
        return PLATFORMS[which]
    if which == HERE:
        if not here_file().is_file():
            done = "once `dlpar doctor --calibrate` has measured this machine"
            raise BadExperiment(f"{FIELD}: got {HERE!r}, which is allowed {done}")
        return _read(str(here_file()), extending)
    if not is_path(which):
        allowed = f"one of {', '.join(names())}, or the path of a .json or .toml file"
        raise BadExperiment(f"{FIELD}: got {shown(which)}, allowed is {allowed}")
    return _read(which, extending)


def _read(path: str, extending: tuple[str, ...]) -> Platform:
    fields, real = fields_of(path, FIELD), os.path.realpath(os.path.expanduser(path))
    if real in extending:
        raise BadExperiment(
            f"{FIELD}: got {shown(Path(path).name)}, which extends itself; allowed is another platform"
        )
    base = fields.pop("extends", None)
    if base is None:
        fields.setdefault("source", f"read from {path}")
    else:
        if not isinstance(base, str):
            got = f"{shown(Path(path).name)}, where extends: got {shown(base)}"
            raise BadExperiment(f"{FIELD}: got {got}, allowed is a name or a path")
        beside = os.path.join(
            os.path.dirname(real), os.path.expanduser(base)
        )  # a path is as seen from its file
        extended = _found(beside if is_path(base) else base, (*extending, real))
        fields = _changed(extended, {"source": f"{extended.source}{SEPARATOR}changed in {path}", **fields})
    try:
        return Platform(**fields)
    except BadExperiment as error:
        raise BadExperiment(f"{FIELD}: got {shown(Path(path).name)}, where {error}") from None


def _changed(base: Platform, changes: dict[str, Any]) -> dict[str, Any]:
    """The fields of `base` with `changes`; of links, device and timing a part may be given."""
    fields = {name: getattr(base, name) for name in Platform.model_fields}
    for name, value in changes.items():
        before = fields.get(name)
        if name in CHANGED_PIECEWISE and isinstance(value, dict) and before is not None:
            value = {**(asdict(before) if is_dataclass(before) else before.model_dump()), **value}
        fields[name] = value
    return fields
