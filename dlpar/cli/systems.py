"""``dlpar systems`` lists published systems and compares their figures with runs here."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dlpar.cli import FAILED, AsJSON, BadRequest, Failed
from dlpar.cli.tables import console, table

AXES = ("name", "title", "year", "consistency", "parameters", "training", "missing")


def systems(which: Annotated[str | None, typer.Argument()] = None, as_json: AsJSON = False) -> int:
    """List published systems, or run one beside its published figures.

    Parameters
    ----------
    which : NAME
        Name of a system.
    """
    from dlpar.jobs.launch import JobFailed
    from dlpar.systems import SYSTEMS, BadSystem, compare, find, run

    if which is None:
        _print([{name: getattr(system, name) for name in AXES} for system in SYSTEMS], as_json)
        return 0
    try:
        system = find(which, SYSTEMS)
    except BadSystem as error:
        raise BadRequest(str(error)) from None
    try:
        found = compare(system, run(system))
    except JobFailed as error:
        raise Failed(str(error)) from None
    figures = [each._asdict() for each in found]
    if as_json:
        about = {name: getattr(system, name) for name in (*AXES, "source", "mechanism")}
        print(json.dumps(about | {"figures": figures}, indent=1))
    else:
        print(f"{system.title} ({system.year}): {system.mechanism}.\nSource: {system.source}.\n")
        said = {True: "yes", False: "no", None: "not judged"}
        _print([figure | {"held": said[figure["held"]]} for figure in figures], False)
        if system.missing:
            print(f"\nDoes not run here: {system.missing}.")
    return FAILED if any(each.held is False for each in found) else 0


def _print(rows: list[dict], as_json: bool) -> None:
    print(json.dumps(rows, indent=1)) if as_json else console().print(table({n: n for n in rows[0]}, rows))
