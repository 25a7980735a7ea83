"""Small files a user writes: a platform or a workload, in JSON or TOML."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from dlpar.schema import BadExperiment, shown

LARGEST = 1 << 20
"""Bytes of such a file at most: a description is small, and whatever is larger is something else."""


def is_path(which: str) -> bool:
    """Whether a name is meant as the path of a file: it ends in .json or .toml, or has a slash."""
    return which.endswith((".json", ".toml")) or "/" in which


def fields_of(path: str, field: str) -> dict[str, Any]:
    """The mapping a file holds; a `name` it lacks is the file's own.

    Parameters
    ----------
    path : str
        Of a .toml file; any other is read as JSON.
    field : str
        Whose value the path is, for the message.

    Raises
    ------
    BadExperiment
        If it cannot be read, or holds no mapping.
    """
    file, got = Path(os.path.expanduser(path)), f"{field}: got {shown(path, limit=200)}"
    text = _text(file, f"{got}, allowed is a file that can be read")
    kind, read = ("TOML", tomllib.loads) if file.suffix == ".toml" else ("JSON", json.loads)
    try:
        fields = read(text)
    except (ValueError, RecursionError) as error:
        raise BadExperiment(f"{got}, allowed is a file of {kind} ({error})") from None
    if not isinstance(fields, dict):
        raise BadExperiment(f"{got}, allowed is a file with a mapping of fields to values")
    return {"name": file.stem, **fields}


def _text(file: Path, refusal: str) -> str:
    try:
        if not file.is_file():  # a pipe or a device might keep us waiting for ever
            raise BadExperiment(f"{refusal} (there is none)")
        if file.stat().st_size > LARGEST:
            raise BadExperiment(f"{refusal} (it has more than {LARGEST:,} bytes)")
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, BadExperiment):
            raise
        why = getattr(error, "strerror", None) or "it is not text"
        raise BadExperiment(f"{refusal} ({why})") from None
