"""``dlpar rehearse`` runs every preset of the labs before a class does."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Annotated

import typer

from dlpar.cli import AsJSON, BadRequest, Stops
from dlpar.cli.doctor import BROKEN, COSTS, GOOD, Finding, diagnose, look
from dlpar.course.curriculum import labs as known_labs
from dlpar.course.rehearse import Result
from dlpar.course.rehearse import rehearse as run_rows
from dlpar.jobs.control_groups import cores

A_LAB = 45.0
"""Seconds that a whole lab may take on two cores. A class should see recordings of longer presets."""

BROWSERS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge",
)  # fmt: skip
"""Programs that take pictures of slides and run the browser tests."""

NOTEBOOK = ("jupyterlab", "ipykernel", "ipywidgets", "anywidget")
"""Packages that every lab needs."""


def rehearse(labs: Annotated[list[str] | None, typer.Argument()] = None, as_json: AsJSON = False) -> int:
    """Run every preset of the labs before a class does.

    The command prints what this machine lacks, then a line for each preset: its world, its seconds, and
    whether it shows what the lab says. This takes about three minutes on two quiet cores. Ctrl-C ends it and
    leaves nothing. Exit status 1: something failed.

    Parameters
    ----------
    labs : LAB
        Numbers of labs, such as 00 03; default: all.
    """
    names = [name.zfill(2) for name in labs or ()]
    if unknown := [name for name in names if name not in known_labs()]:
        raise BadRequest(f"LAB: got {unknown[0]!r}, allowed is any of {', '.join(known_labs())}")
    from dlpar.course.labs import rows  # this import loads every figure

    with Stops(interrupting=True):
        lacks = list(machine_lacks())
        if not as_json:
            for f in lacks:
                print(f"{f.level:6}  {f.subject}: {f.said}{f.mend and f'; {f.mend}'}")
        results = []
        for result in run_rows(rows(names)):
            results.append(result)
            if not as_json:
                how = "held" if result.held else "FAILED"
                took = f"{result.world:16} {result.seconds:5.1f} s  {result.belief}: {result.said}"
                print(f"{how:6}  {result.lab} {result.preset:24} {took}", flush=True)
    failed = sum(not each.held for each in results)
    broken = sum(finding.level == BROKEN for finding in lacks)
    if as_json:
        told = {"held": len(results) - failed, "failed": failed}
        told["seconds"] = round(sum(each.seconds for each in results), 1)
        told["machine"] = [finding._asdict() for finding in lacks]
        told["presets"] = [each._asdict() for each in results]
        print(json.dumps(told, indent=1, ensure_ascii=False))
    else:
        verdict = f"{len(results) - failed} of {len(results)} presets show what their labs say"
        if broken:
            verdict += f"; {broken} thing{'s' * (broken != 1)} on this machine must be mended, see above"
        print("\n".join(["", *slow(results), f"{verdict}."]))
    return 1 if failed or broken else 0


def slow(results: Sequence[Result]) -> list[str]:
    """Return a sentence for each lab with presets that take longer than the whole lab should."""
    took: dict[str, float] = defaultdict(float)
    for each in results:
        took[each.lab] += each.seconds
    advice = f"more than {A_LAB:.0f}: show recordings, or use a machine with more cores"
    return [f"lab {lab} took {s:.0f} s here, {advice}" for lab, s in took.items() if s > A_LAB]


def machine_lacks() -> Iterator[Finding]:
    """Return faults that the doctor finds, and missing components that a class may need.

    This takes as long as :func:`~dlpar.cli.doctor.look`.
    """
    yield from (finding for finding in diagnose(look()) if finding.level != GOOD)
    if missing := [name for name in NOTEBOOK if find_spec(name) is None]:
        yield Finding(BROKEN, "notebook", f"{', '.join(missing)}: not installed", "pip install '.[lab]'")
    if find_spec("jupyterhub") is None:
        yield Finding(COSTS, "hub", "jupyterhub is not installed: no `dlpar hub`", "pip install '.[hub]'")
    else:
        from dlpar.classroom.hub.classroom import NoProxy, proxy_command  # this import loads JupyterHub

        try:
            proxy_command()
        except NoProxy as error:
            yield Finding(COSTS, "hub", *str(error).split("; ", 1))
    if not any(map(shutil.which, BROWSERS)):
        said = "no Chrome or Chromium: slides get no pictures"
        yield Finding(COSTS, "browser", said, "install one of them")
    waiting = os.getloadavg()[0]
    if waiting > 1.5 * cores():
        said = f"{waiting:.1f} programs want {cores()} cores: times below are longer than in a quiet hour"
        yield Finding(COSTS, "load", said, "end other programs")
