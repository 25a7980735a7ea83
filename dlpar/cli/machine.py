"""What to know of this machine before a class: what is broken, what costs, and which parts are missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import NamedTuple

from dlpar.cli.doctor.checks import BROKEN, COSTS, GOOD
from dlpar.jobs.control_groups import cores

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
"""Programs that can take pictures of slides and run the browser tests."""

NOTEBOOK = ("jupyterlab", "ipykernel", "ipywidgets", "anywidget")
"""Packages without which no lab opens."""


class Note(NamedTuple):
    """One sentence about the machine; `level` as of the doctor's findings."""

    level: str
    subject: str
    said: str


def notes() -> list[Note]:
    """What the doctor has to find fault with, and what is missing; takes some seconds, for two ranks are started."""
    from dlpar.cli import doctor

    found = doctor.diagnose(doctor.look()).findings
    told = [
        Note(f.level, f.subject, f"{f.said}; {f.mend}" if f.mend else f.said)
        for f in found
        if f.level != GOOD
    ]
    return [*told, *parts(), *load()]


def parts() -> Iterator[Note]:
    """Parts that not every class needs, and the notebook that every one does."""
    if missing := [name for name in NOTEBOOK if find_spec(name) is None]:
        yield Note(
            BROKEN, "notebook", f"{', '.join(missing)}: not installed; `make setup`, or pip install '.[lab]'"
        )
    if find_spec("jupyterhub") is None:
        yield Note(
            COSTS, "hub", "jupyterhub: not installed, so there is no `dlpar hub`; pip install '.[hub]'"
        )
    else:
        from dlpar.classroom.hub.settings import NoProxy, proxy_command

        try:
            proxy_command()
        except NoProxy as error:
            yield Note(COSTS, "hub", str(error))
    if not any(map(shutil.which, BROWSERS)):
        yield Note(
            COSTS, "browser", "no Chrome or Chromium here: slides get no pictures, browser tests are skipped"
        )


def load() -> Iterator[Note]:
    """Whether other programs keep the cores busy."""
    waiting = os.getloadavg()[0]
    if waiting > 1.5 * cores():
        said = f"{waiting:.1f} programs want {cores()} cores: what is timed below comes out slower than in a quiet hour"
        yield Note(COSTS, "load", said)
