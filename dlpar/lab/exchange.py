"""Files in a student's folder: her predictions with results, and her teacher's experiment.

On a hub she may agree to share her predictions with the class. Then her answers count in the class's figures, without
her name and her reasons (:mod:`dlpar.classroom.hub.teacher`), until she withdraws.

An offer is ``{"id", "by", "at", "experiment"}``: its id, the teacher's name, the time of sending in seconds since
1970, and the fields of an :class:`~dlpar.config.experiment.Experiment`. A panel only shows the offer, and she
decides.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlpar.config.paths import open_plain, private_folder, runs_folder, write_whole

if TYPE_CHECKING:
    import pandas as pd

SHARED = {"key", "question", "predicted", "found", "how", "unit"}
"""Fields of an entry that the class may see."""

COLUMNS = ["lab", "question", "predicted", "found", "how", "unit", "because", "at"]


def ledger() -> Path:
    """Return the file that has one line for each revealed prediction."""
    return runs_folder().with_name("predictions.jsonl")


def note(key: str, question: str, answer: Any, found: float | str, how: str, unit: str = "") -> None:
    """Append a prediction and its result to the ledger. Skip a question that was not answered.

    Parameters
    ----------
    key : str
        Key of the question, which begins with the lab, such as ``"02-stale"``.
    question : str
        Text of the question.
    answer : Answer
        Answer, of :mod:`dlpar.lab.prediction`.
    found : float or str
        Result: a number, or the right choice.
    how : str
        Source of the result: ``measured``, ``simulated``, …
    unit : str, default ""
        Unit of the numbers.
    """
    if answer.value is None and not answer.unsure:
        return
    private_folder(ledger().parent)
    line = {"key": key, "question": question, "found": found, "how": how, "unit": unit, "at": time.time()}
    line |= {"predicted": answer.value, "unsure": answer.unsure, "because": answer.reason}
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with open(os.open(ledger(), flags, 0o600), "wb") as file:
        file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def entries() -> dict[str, dict[str, Any]]:
    """Return each question's latest entry."""
    found: dict[str, dict[str, Any]] = {}
    with suppress(OSError), open_plain(ledger()) as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError):  # cut off by a full disk
                entry = json.loads(line)
                found[entry["key"]] = entry
    return found


def predictions() -> pd.DataFrame:
    """Return your predictions and their results, with one row for each question.

    Nobody else sees them unless you share them with the class. :func:`forget_predictions` deletes them.
    """
    import pandas as pd

    rows = [entry | {"lab": key.partition("-")[0]} for key, entry in sorted(entries().items())]
    for row in rows:
        row["at"] = pd.Timestamp(row["at"], unit="s")
        if row["unsure"]:
            row["predicted"] = "I don't know"
    return pd.DataFrame(rows, columns=COLUMNS)


def forget_predictions() -> None:
    """Delete all your predictions."""
    ledger().unlink(missing_ok=True)


def _agreement() -> Path:
    return ledger().with_name("predictions-are-shared")


def is_shared() -> bool:
    """Return whether the student shares her answers with the class."""
    return _agreement().exists()


def share_predictions(agrees: bool) -> None:
    """Record whether the student shares her answers with the class."""
    private_folder(ledger().parent)
    _agreement().touch(0o600) if agrees else _agreement().unlink(missing_ok=True)


def shared_answers() -> list[dict[str, Any]] | None:
    """Return entries for the class's figures, without reasons and times.

    Return None if the student does not share.
    """
    if not is_shared():
        return None
    return [{name: entry[name] for name in SHARED} for entry in entries().values() if SHARED <= entry.keys()]


# ---- what the teacher sends ----------------------------------------------------------

OFFER_LASTS = 3 * 3600
"""Seconds after which an offer no longer counts."""

LONGEST = 64 << 10
"""Maximum bytes of an offer."""


def _offered() -> Path:
    return runs_folder().with_name("offer.json")


def put_offer(offer: dict[str, Any] | None) -> None:
    """Replace the current offer. None removes it.

    Raises
    ------
    ValueError
        If the argument is not an offer or is too long.
    """
    if offer is None:
        _offered().unlink(missing_ok=True)
        return
    text = json.dumps(offer)
    if not _is_offer(offer) or len(text) > LONGEST:
        allowed = f"id, by, at and experiment, in {LONGEST >> 10} kB at most, with a scheme of dlpar's"
        raise ValueError(f"offer: allowed are {allowed}")
    private_folder(_offered().parent)
    write_whole(_offered(), text.encode())


def current_offer() -> dict[str, Any] | None:
    """Return the current offer, or None if there is none or if it is too old."""
    try:
        offer = json.loads(_offered().read_bytes())
    except (OSError, ValueError):
        return None
    return offer if _is_offer(offer) and abs(time.time() - offer["at"]) < OFFER_LASTS else None


def _is_offer(found: Any) -> bool:
    match found:
        case {"id": str(), "by": str(), "at": int() | float(), "experiment": {"sync": {"scheme": scheme}}}:
            return scheme != "own"  # this is a user's code
    return False
