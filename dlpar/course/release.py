"""Labs for students: a version without solutions, and each student's own copy.

``dlpar release RELEASE --labs LABS --own OWN`` makes or updates the students' version of LABS in RELEASE, then a
student's copy in OWN.  If nothing has changed, this takes a moment.

An update never overwrites a student's changes.  For every file of the labs:

    she has no copy                   it is copied (to get a fresh lab, delete or rename the old one)
    she has it as it was delivered    it is replaced by the new version
    she has changed it                hers stays; a new version arrives beside it as ``NAME (new).ipynb``,
                                      once, and the same rules hold for that file

Running a notebook changes the file, because its results are also hers.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from dlpar.config.paths import write_whole

STUB = "raise NotImplementedError"
"""Code that replaces a solution. Checks report "to do" for a function that raises this error."""

CLEAR = {"code_stub": {"python": STUB}}
"""Settings of nbgrader's ClearSolutions."""

MARK = "### BEGIN SOLUTION"
"""Text that identifies a lab as a master."""

RELEASED = ".released.json"
"""File in the students' version: ``{name: digest of the file it was made from}``."""

DELIVERED = ".delivered.json"
"""File in a student's copy: ``{name: digest of the version last delivered under that name}``."""


def usual_labs() -> Path:
    """Return the folder of this checkout's labs."""
    return Path(__file__).resolve().parents[2] / "labs"


def is_master(labs: Path) -> bool:
    """Return whether a folder of labs holds solutions."""
    return any(MARK in path.read_text("utf-8", errors="replace") for path in labs.glob("*.ipynb"))


def release(labs: Path, into: Path) -> list[str]:
    """Make or update the students' version of a folder of masters.

    Parameters
    ----------
    labs : Path
        The masters.  Notebooks are released, and files in subfolders are copied.  Other files beside the
        notebooks, such as a teacher's guide, are not for students.
    into : Path
        The students' version, which everybody may read. It is created if missing.  A released file that is no
        longer in `labs` is removed.

    Returns
    -------
    list of str
        Names written or removed.
    """
    into.mkdir(parents=True, exist_ok=True)
    names = [name for name in _files(labs) if len(name.parts) > 1 or name.suffix == ".ipynb"]
    digests = {str(name): _digest(labs / name) for name in names}
    before = _read_record(into / RELEASED)
    changed = [n for n, digest in digests.items() if before.get(n) != digest or not (into / n).exists()]
    for name in changed:
        content = (labs / name).read_bytes()
        write_whole(into / name, students(content) if name.endswith(".ipynb") else content, 0o644)
    gone = [name for name in before if name not in digests]
    for name in gone:
        (into / name).unlink(missing_ok=True)
    if changed or gone:
        write_whole(into / RELEASED, json.dumps(digests, indent=1).encode(), 0o644)
    return changed + gone


def students(master: bytes) -> bytes:
    """Remove solutions, hidden tests and results from a lab and lock its checks.

    nbgrader's preprocessors do this.

    A picture that stands for a cell until it is run, tagged ``recording``, stays.

    Raises
    ------
    OSError
        If nbgrader is not installed.
    """
    try:
        import nbformat
        from nbgrader import preprocessors as steps
    except ModuleNotFoundError:
        raise OSError("nbgrader is not installed; `pip install 'dlpar[grading]'` installs it") from None

    notebook = nbformat.reads(master.decode(), 4)
    for cell in notebook.cells:
        if cell.get("outputs") and "recording" not in cell.metadata.get("tags", ()):
            cell.update(outputs=[], execution_count=None)
    done = [steps.LockCells(), steps.ClearSolutions(**CLEAR), steps.CheckCellMetadata()]
    for step in (*done, steps.ClearHiddenTests(), steps.ComputeChecksums()):
        notebook, _ = step.preprocess(notebook, {})
    return (nbformat.writes(notebook) + "\n").encode()


def bring(labs: Path, own: Path) -> list[str]:
    """Update a student's copy in her account.

    Parameters
    ----------
    labs : Path
        The shared labs, only read.
    own : Path
        Her folder, closed to others. It is created if missing.

    Returns
    -------
    list of str
        Names written.
    """
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    delivered, written = _read_record(own / DELIVERED), []
    for name in _files(labs):
        digest = _digest(labs / name)
        if (place := _place(own, name, digest, delivered)) is not None:
            write_whole(own / place, (labs / name).read_bytes())
            delivered[str(place)] = digest
            written.append(str(place))
    if written:
        write_whole(own / DELIVERED, json.dumps(delivered, indent=1).encode())
    return written


def _place(own: Path, name: Path, digest: str, delivered: dict[str, str]) -> Path | None:
    """Choose the file name for a version of a lab.

    Return None if she already received the version beside her own.
    """
    if not (own / name).exists():
        return name
    place = name
    while (before := delivered.get(str(place))) != digest:
        if not (own / place).exists() or _digest(own / place) in (before, digest):
            return place  # the folder has no file of hers
        place = place.with_name(f"{place.stem} (new){place.suffix}")
    return None


def _files(labs: Path) -> list[Path]:
    """Return the sorted names of a folder's files that are not hidden."""
    names = [path.relative_to(labs) for path in labs.rglob("*") if path.is_file()]
    return sorted(name for name in names if not any(part.startswith((".", "__")) for part in name.parts))


def _digest(file: Path) -> str:
    """Return a digest that distinguishes one version of a file from another."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _read_record(record: Path) -> dict[str, str]:
    """Read names and digests. Return no names if the record is missing or damaged."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(record.read_bytes()))
    return {}
