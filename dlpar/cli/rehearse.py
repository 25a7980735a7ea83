"""``dlpar rehearse``: run every preset of the labs before a class does."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dlpar.cli.machine import Note
    from dlpar.course.rehearse import Result, Row

A_LAB = 45.0
"""Seconds a whole lab may take on two cores; of presets that take longer a class should see recordings."""


def rehearse(
    labs: Annotated[
        list[str] | None, typer.Argument(metavar="LAB", help="Such as 00 03; default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.", metavar="")] = False,
) -> int:
    """Run every preset of the labs before a class does, and say whether it shows what the lab says.

    First what this machine lacks; then a line for each preset: its world, seconds, and what was found or went wrong.
    Some three minutes on two quiet cores. Ctrl-C ends it and leaves nothing. Status 1 if anything failed.
    """
    from dlpar.cli import BadRequest
    from dlpar.cli.running import STOPS, Interrupts
    from dlpar.course.labs import rows

    try:
        chosen = rows([name.zfill(2) for name in labs or ()])
    except ValueError as error:
        raise BadRequest(f"LAB: {error}") from None
    with Interrupts() as stops:
        try:
            return _rehearsed(chosen, as_json)
        except KeyboardInterrupt:
            print(f"dlpar rehearse: stopped by {STOPS[stops.asked]}", file=sys.stderr)
            return 128 + stops.asked


def _rehearsed(chosen: Sequence[tuple[str, Row]], as_json: bool) -> int:
    from dlpar.cli.machine import BROKEN, notes
    from dlpar.course.rehearse import rehearse as every

    told = notes()
    if not as_json:
        for note in told:
            print(f"{note.level:6}  {note.subject}: {note.said}")
    results = []
    for result in every(chosen):
        results.append(result)
        if not as_json:
            print(line(result), flush=True)
    failed = sum(not each.held for each in results)
    broken = sum(note.level == BROKEN for note in told)
    if as_json:
        print(json.dumps(as_object(told, results), indent=1, ensure_ascii=False))
    else:
        print("\n".join(["", *slow(results), verdict(len(results), failed, broken)]))
    return 1 if failed or broken else 0


def line(result: Result) -> str:
    """One result in one line."""
    how = "held" if result.held else "FAILED"
    said = f"{result.belief}: {result.said}"
    return f"{how:6}  {result.lab} {result.preset:24} {result.world:16} {result.seconds:5.1f} s  {said}"


def slow(results: Sequence[Result]) -> list[str]:
    """A sentence for each lab whose presets take longer than the whole lab should."""
    took: dict[str, float] = {}
    for each in results:
        took[each.lab] = took.get(each.lab, 0.0) + each.seconds
    return [
        f"lab {lab} took {seconds:.0f} s here, more than {A_LAB:.0f}: show recordings, or use a machine with more cores"
        for lab, seconds in took.items()
        if seconds > A_LAB
    ]


def verdict(tried: int, failed: int, broken: int) -> str:
    """The last line."""
    machine = (
        f"; {broken} thing{'s' * (broken != 1)} on this machine must be mended, see above" if broken else ""
    )
    return f"{tried - failed} of {tried} presets show what their labs say{machine}."


def as_object(told: Sequence[Note], results: Sequence[Result]) -> dict[str, Any]:
    """Everything that was found, ready for JSON."""
    return {
        "held": sum(each.held for each in results),
        "failed": sum(not each.held for each in results),
        "seconds": round(sum(each.seconds for each in results), 1),
        "machine": [note._asdict() for note in told],
        "presets": [each._asdict() for each in results],
    }
