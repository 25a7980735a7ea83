"""A student's own copy of the shared labs, and what an update of the labs does to it.  Standard library only.

Nothing she has changed is ever overwritten.  Of every file of the labs:

    she has none                      it is copied (to get a fresh lab, delete or rename the old one)
    she has it as it was delivered    it is replaced by the new version
    she has changed it                hers stays; a new version arrives beside it as ``NAME (new).ipynb``,
                                      once, and is itself replaced by later versions until she changes it

To run a notebook is to change it: its results are hers, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

DELIVERED = ".delivered.json"
"""File beside the labs: ``{name: digest of the version last delivered under that name}``."""


def bring(labs: Path, own: Path) -> list[str]:
    """Bring a student's folder up to date; runs in her account.

    Parameters
    ----------
    labs : Path
        The shared labs, only read.
    own : Path
        Her folder, made if missing, closed to others.

    Returns
    -------
    list of str
        Names written.
    """
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    record, written = own / DELIVERED, []
    delivered = read_record(record)
    for source in sorted(labs.rglob("*")):
        name = source.relative_to(labs)
        if not source.is_file() or any(part.startswith((".", "__")) for part in name.parts):
            continue
        content = source.read_bytes()
        target = _place(own, name, content, delivered)
        if target is not None:
            write(own / target, content)
            written.append(target)
    if written or not record.exists():
        write(record, json.dumps(delivered, indent=1).encode())
    return written


def untouched(own: Path) -> list[str]:
    """Names of the files in a student's folder that are as they were delivered."""
    delivered = read_record(own / DELIVERED)
    return [
        name
        for name, digest in delivered.items()
        if (own / name).is_file() and digest_of((own / name).read_bytes()) == digest
    ]


def _place(own: Path, name: Path, content: bytes, delivered: dict[str, str]) -> str | None:
    """Where a version of a lab is to be written, noted in `delivered`; None if it need not be."""
    digest = digest_of(content)
    if delivered.get(str(name)) == digest and (own / name).exists():
        return None  # nothing new since
    place, number = name, 0
    while (own / place).exists():
        has = digest_of((own / place).read_bytes())
        if has == digest:
            delivered[str(place)] = delivered[str(name)] = digest
            return None
        if has == delivered.get(str(place)):
            break  # as it was delivered: she has not touched it
        number += 1
        place = name.with_name(f"{name.stem} (new{f' {number}' if number > 1 else ''}){name.suffix}")
        if delivered.get(str(place)) == digest:
            return None  # she has had this version, and changed or deleted it
    delivered[str(place)] = digest
    return str(place)


def digest_of(content: bytes) -> str:
    """What tells one version of a file from another."""
    return hashlib.sha256(content).hexdigest()


def read_record(record: Path) -> dict[str, str]:
    """Names and digests in a record; none where it is missing or damaged."""
    try:
        found = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(path: Path, content: bytes, mode: int = 0o600, folder_mode: int = 0o700) -> None:
    """All or nothing, and never through a link; the modes are those of the file, and of its folder if that is made."""
    path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
