"""Predictions of a class, counted so that nobody can tell whose they are.

A question is shown from `LOT` answers on, and changes only when as many again have come or gone.  So nobody's answer
can be seen arriving from one look to the next.  Names are not kept, and nothing is written to a disk.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
from collections import Counter
from typing import Any

LOT = 5
"""Answers a question needs before it is shown, and by which it changes."""

BARS = 6
"""Ranges into which predicted numbers are sorted."""

LARGEST = 1e300
"""Largest number that counts, so that differences are finite."""


class Answers:
    """Answers of all who agreed to share them."""

    def __init__(self) -> None:
        self._salt = os.urandom(16)
        self._of: dict[bytes, dict[str, dict[str, Any]]] = {}
        self._shown: dict[str, dict[bytes, dict[str, Any]]] = {}

    def heard(self, name: str, answers: list[Any] | None) -> None:
        """Replace a student's answers; None: she does not agree, or no longer."""
        student = hashlib.sha256(self._salt + name.encode()).digest()
        self._of.pop(student, None)
        if answers is not None:
            self._of[student] = {answer["key"]: answer for answer in answers if _is_answer(answer)}

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each question: ``{key, question, answers, predicted: [[label, count]…], found}``."""
        keys = {key for answers in self._of.values() for key in answers} | {*self._shown}
        return [_row(key, list(shown.values())) for key in sorted(keys) if (shown := self._lot(key))]

    def _lot(self, key: str) -> dict[bytes, dict[str, Any]]:
        """Return the answers to a question that may be shown."""
        now = {student: answers[key] for student, answers in self._of.items() if key in answers}
        if len(now) < LOT:
            return {}  # what was shown is kept, or the next to come could be told from the others
        before = self._shown.get(key, {})
        if sum(now.get(student) != before.get(student) for student in {*now, *before}) >= LOT:
            self._shown[key] = now
        return self._shown.get(key, {})


def _is_answer(found: Any) -> bool:
    """Tell whether it has an answer's fields: it comes from a file that a student can write to."""
    if not isinstance(found, dict):
        return False
    texts = [found.get(name) for name in ("key", "question", "how", "unit")]
    predicted = found.get("predicted", math.nan)
    is_one = predicted is None or _is_value(predicted)
    return is_one and _is_value(found.get("found")) and all(isinstance(text, str) for text in texts)


def _is_value(found: Any) -> bool:
    return isinstance(found, str) or (type(found) in (int, float) and abs(found) < LARGEST)  # NaN is not


def _row(key: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    first, unit = answers[0], f" {answers[0]['unit']}" if answers[0]["unit"] else ""
    known = [answer["predicted"] for answer in answers if answer["predicted"] is not None]
    numbers = [value for value in known if isinstance(value, (int, float))]
    if numbers:
        predicted = _ranges(numbers, unit)
    else:
        predicted = [[label, count] for label, count in sorted(Counter(known).items())]
    if len(known) < len(answers):
        predicted.append(["I don't know", len(answers) - len(known)])
    measured = [answer["found"] for answer in answers if isinstance(answer["found"], (int, float))]
    found = str(first["found"])
    if measured:
        found = f"{statistics.median(measured):.3g}{unit}, {first['how']} (median)"
    row = {"key": key, "question": first["question"], "answers": len(answers)}
    return row | {"predicted": predicted, "found": found}


def _ranges(numbers: list[float], unit: str) -> list[list[Any]]:
    """Count numbers in equal ranges, each named by its bounds; the outer ones are rounded outwards."""
    low, high = min(numbers), max(numbers)
    step = float(f"{(high - low) / (BARS - 1):.1g}")
    if not step:
        return [[f"about {low:.2g}{unit}", len(numbers)]]
    first = int(low // step)
    counts = Counter(int(value // step) for value in numbers)
    bins = range(first, max(counts) + 1)
    return [[f"{i * step:.4g} to {(i + 1) * step:.4g}{unit}", counts[i]] for i in bins]
