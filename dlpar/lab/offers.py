"""The experiment that a teacher sends to everybody, stored in a student's own folder. Standard library only.

An offer is ``{"id", "by", "at", "experiment"}``: its own name, the teacher's name, the time it was sent in
seconds since 1970, and the fields of an :class:`~dlpar.config.experiment.Experiment`. A panel only shows it; the
student decides.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from dlpar.config.paths import private_folder, runs_folder

LASTS = 3 * 3600
"""Seconds after which an offer no longer counts."""

LONGEST = 64 << 10
"""Most bytes of an offer."""


def place() -> Path:
    """File of the current offer."""
    return runs_folder().with_name("offer.json")


def put(offer: dict[str, Any] | None) -> None:
    """Replace the current offer; None removes it.

    Raises
    ------
    ValueError
        If it is not an offer, or too long.
    """
    if offer is None:
        place().unlink(missing_ok=True)
        return
    text = json.dumps(offer)
    if not _is_offer(offer) or len(text) > LONGEST:
        allowed = f"id, by, at and experiment, in {LONGEST >> 10} kB at most, with a scheme of dlpar's"
        raise ValueError(f"offer: allowed are {allowed}")
    private_folder(place().parent)
    new = place().with_suffix(".new")
    new.write_text(text)
    os.replace(new, place())


def present() -> dict[str, Any] | None:
    """The current offer; None if there is none, or if it is too old."""
    try:
        offer = json.loads(place().read_bytes())
    except (OSError, ValueError):
        return None
    return offer if _is_offer(offer) and abs(time.time() - offer["at"]) < LASTS else None


def _is_offer(found: Any) -> bool:
    kinds = {"id": str, "by": str, "at": (int, float), "experiment": dict}
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key), kind) for key, kind in kinds.items()
    ):
        return False
    sync = found["experiment"].get("sync")
    return isinstance(sync, dict) and sync.get("scheme") != "own"  # which is somebody's code
