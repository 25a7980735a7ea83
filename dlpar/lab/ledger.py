"""A student's predictions and the results, in a file of her own that she may delete.

On a hub she may agree to share them with the class. Then her answers count in the class's figures, without her name
and her reasons (:mod:`dlpar.classroom.hub.teacher`), until she withdraws.
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
"""Fields of an entry that the class may see."""

COLUMNS = ["lab", "question", "predicted", "found", "how", "unit", "because", "at"]


def ledger() -> Path:
    """File with one line for each prediction that was revealed."""
    return runs_folder().with_name("predictions.jsonl")


def note(key: str, question: str, answer: Any, found: float | str, how: str, unit: str = "") -> None:
    """Append a prediction and its result to the ledger, unless the question was not answered.

    Parameters
    ----------
    key : str
        Key of the question, such as ``"02-stale"``, which begins with the lab.
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
    file = os.open(ledger(), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        os.write(file, json.dumps(line, ensure_ascii=False).encode() + b"\n")
    finally:
        os.close(file)


def entries() -> dict[str, dict[str, Any]]:
    """The latest entry of each question."""
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
    """Your predictions and the results, one row for each question.

    Nobody else sees them unless you share them with the class; :func:`forget_predictions` deletes them.
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


def share(agrees: bool) -> None:
    """Note whether the student shares her answers with the class."""
    private_folder(ledger().parent)
    _agreement().touch(0o600) if agrees else _agreement().unlink(missing_ok=True)


def shared_answers() -> list[dict[str, Any]] | None:
    """Entries that count in the class's figures, without reasons and times; None if the student does not share."""
    if not is_shared():
        return None
    return [{name: entry[name] for name in SHARED} for entry in entries().values() if SHARED <= entry.keys()]
