"""The students' version of the labs: no solutions, no hidden tests, no results.

``python -m dlpar.classroom.grading.release LABS RELEASE [OWN]``; OWN is a student's copy, brought up to date as
:mod:`dlpar.classroom.hub.copies` says.  Where nothing has changed it takes a moment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dlpar.classroom.hub.copies import bring, digest_of, read_record, write

if TYPE_CHECKING:
    from dlpar.classroom.grading.exercise import Notebook


STUB = "raise NotImplementedError"
"""Stands for a solution; :func:`dlpar.lab.check` and its kin call what raises this "to do"."""

MARK = "### BEGIN SOLUTION"
"""By this a lab is known as a master."""

RECORD = ".released.json"
"""File in the release: ``{name: digest of the file it was made from}``."""


def is_master(labs: Path) -> bool:
    """Whether a folder of labs holds solutions."""
    return any(MARK in path.read_text("utf-8", errors="replace") for path in labs.glob("*.ipynb"))


def release(labs: Path, into: Path) -> list[str]:
    """Make or update the students' version.

    Parameters
    ----------
    labs : Path
        Folder of the masters.  Its notebooks are released, and what lies in its subfolders is copied.
    into : Path
        Made if missing, for everybody to read.  What was released there and is in `labs` no more is removed.

    Returns
    -------
    list of str
        Names written or removed.
    """
    into.mkdir(parents=True, exist_ok=True)
    sources = {str(path.relative_to(labs)): path for path in _released(labs)}
    contents = {name: path.read_bytes() for name, path in sources.items()}
    digests = {name: digest_of(content) for name, content in contents.items()}
    before = read_record(into / RECORD)
    changed = [n for n, digest in digests.items() if before.get(n) != digest or not (into / n).exists()]
    for name in changed:
        content = contents[name]
        write(into / name, _students(content) if name.endswith(".ipynb") else content, 0o644, 0o755)
    gone = [name for name in before if name not in digests]
    for name in gone:
        (into / name).unlink(missing_ok=True)
    if changed or gone:
        write(into / RECORD, json.dumps(digests, indent=1).encode(), 0o644, 0o755)
    return changed + gone


def _released(labs: Path) -> list[Path]:
    """Notebooks, and all files of subfolders: a teacher's guide beside the labs is not for students."""
    names = [path.relative_to(labs) for path in labs.rglob("*") if path.is_file()]
    shown = [name for name in names if not any(part.startswith((".", "__")) for part in name.parts)]
    return sorted(labs / name for name in shown if len(name.parts) > 1 or name.suffix == ".ipynb")


def _students(content: bytes) -> bytes:
    import nbformat

    return (nbformat.writes(students(nbformat.reads(content.decode(), 4))) + "\n").encode()


def students(master: Notebook) -> Notebook:
    """A lab without solutions, hidden tests and results, its checks locked: by nbgrader's own preprocessors.

    Raises
    ------
    OSError
        If nbgrader is not installed.
    """
    try:
        from nbgrader import preprocessors
        from traitlets.config import Config
    except ModuleNotFoundError:
        raise OSError("nbgrader is not installed; `pip install 'dlpar[grading]'` brings it") from None

    config = Config({"ClearSolutions": {"code_stub": {"python": STUB}}})
    steps = (
        "LockCells",
        "ClearSolutions",
        "ClearOutput",
        "CheckCellMetadata",
        "ClearHiddenTests",
        "ComputeChecksums",
    )
    resources: dict = {}
    for name in steps:
        master, resources = getattr(preprocessors, name)(config=config).preprocess(master, resources)
    return master


if __name__ == "__main__":
    masters, released, *own = map(Path, sys.argv[1:])
    release(masters, released)
    for folder in own:
        for written in bring(released, folder):
            print(f"new: {folder / written}")
