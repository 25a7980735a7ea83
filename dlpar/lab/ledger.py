"""What a student predicted, and what was found: kept in her own folder, and hers to delete.

On a hub she may agree that the class sees how predictions spread: her answers then count, without her name and
her reasons (:mod:`dlpar.classroom.hub.answers`), until she takes that back.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlpar.config.paths import private_folder, runs_folder

if TYPE_CHECKING:
    import pandas as pd

SHARED = {"key", "question", "predicted", "found", "how", "unit"}
"""What of an entry the class may see."""

COLUMNS = ["lab", "question", "predicted", "found", "how", "unit", "because", "at"]


def ledger() -> Path:
    """The file: a line for each prediction that was revealed."""
    return runs_folder().with_name("predictions.jsonl")


def note(key: str, question: str, answer: Any, found: float | str, how: str, unit: str = "") -> None:
    """Keep one prediction beside what was found; nothing is kept of a question that was not answered.

    Parameters
    ----------
    key : str
        Of the question, such as ``"02-stale"``: the lab first.
    answer : Answer
        Of :mod:`dlpar.lab.prediction`.
    found : float or str
        A number, or the right choice.
    how : str
        ``measured``, ``simulated``, …
    """
    if answer.value is None and not answer.unsure:
        return
    private_folder(ledger().parent)
    line = {
        "key": key,
        "question": question,
        "predicted": answer.value,
        "unsure": answer.unsure,
        "found": found,
        "how": how,
        "unit": unit,
        "because": answer.reason,
        "at": time.time(),
    }
    file = os.open(ledger(), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        os.write(file, json.dumps(line, ensure_ascii=False).encode() + b"\n")
    finally:
        os.close(file)


def entries() -> dict[str, dict[str, Any]]:
    """The latest line of each question."""
    try:
        lines = ledger().read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            entry = json.loads(line)
            found[entry["key"]] = entry
        except (ValueError, KeyError, TypeError):  # torn by a full disk
            continue
    return found


def predictions() -> pd.DataFrame:
    """Your predictions, a row for each question: what you said, and what was found.

    Nobody else sees them, unless you tick that they count in the class's figures; :func:`forget_predictions`
    deletes them.
    """
    import pandas as pd

    rows = [
        {
            **entry,
            "lab": key.partition("-")[0],
            "predicted": "I don't know" if entry["unsure"] else entry["predicted"],
            "at": pd.Timestamp(entry["at"], unit="s"),
        }
        for key, entry in sorted(entries().items())
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def forget_predictions() -> None:
    """Delete all of them."""
    ledger().unlink(missing_ok=True)


def _agreement() -> Path:
    return ledger().with_name("predictions-are-shared")


def is_shared() -> bool:
    """Whether she has agreed."""
    return _agreement().exists()


def share(agrees: bool) -> None:
    """Note whether she agrees that her answers count in the class's figures."""
    private_folder(ledger().parent)
    _agreement().touch(0o600) if agrees else _agreement().unlink(missing_ok=True)


def shared_answers() -> list[dict[str, Any]] | None:
    """What counts in the class's figures: no reasons, no times; None if she does not agree."""
    if not is_shared():
        return None
    return [{name: entry[name] for name in SHARED} for entry in entries().values() if SHARED <= entry.keys()]
