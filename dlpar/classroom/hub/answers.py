"""What students of a class predicted, put together so that nobody can tell who said what.

A question is shown from `LOT` answers on, and changes only when as many again have come or gone: from one look
to the next nobody's answer can be seen arriving.  Names are not kept, and nothing is written to a disk.
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
"""Of numbers that count, so that their differences are finite."""


class Answers:
    """Answers of all who agreed."""

    def __init__(self) -> None:
        self._salt = os.urandom(16)
        self._of: dict[bytes, dict[str, dict[str, Any]]] = {}
        self._shown: dict[str, dict[bytes, dict[str, Any]]] = {}

    def heard(self, name: str, answers: list[Any] | None) -> None:
        """What a student's server says, of which only answers count; None: she does not agree, or no more."""
        who = hashlib.sha256(self._salt + name.encode()).digest()
        self._of.pop(who, None)
        if answers is not None:
            self._of[who] = {answer["key"]: answer for answer in answers if _is_answer(answer)}

    def table(self) -> list[dict[str, Any]]:
        """A row for each question: ``{key, question, answers, predicted: [[label, count]…], found}``."""
        return [_row(key, list(shown.values())) for key in self._questions() if (shown := self._lot(key))]

    def _questions(self) -> list[str]:
        return sorted({key for answers in self._of.values() for key in answers} | set(self._shown))

    def _lot(self, key: str) -> dict[bytes, dict[str, Any]]:
        """Answers of a question that may be shown."""
        now = {who: answers[key] for who, answers in self._of.items() if key in answers}
        if (
            len(now) < LOT
        ):  # what was shown is kept: against nothing, the next to come could be told from the others
            return {}
        before = self._shown.get(key, {})
        if sum(now.get(who) != before.get(who) for who in {*now, *before}) >= LOT:
            self._shown[key] = now
        return self._shown.get(key, {})


def _is_answer(found: Any) -> bool:
    """Whether it has an answer's fields: it comes from a file that a student can write to."""
    if not isinstance(found, dict):
        return False
    texts = [found.get(name) for name in ("key", "question", "how", "unit")]
    predicted = found.get("predicted", math.nan)
    is_one = predicted is None or _is_value(predicted)
    return is_one and _is_value(found.get("found")) and all(isinstance(text, str) for text in texts)


def _is_value(found: Any) -> bool:
    return isinstance(found, str) or (type(found) in (int, float) and abs(found) < LARGEST)  # NaN is not


def _row(key: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    first = answers[0]
    known = [answer["predicted"] for answer in answers if answer["predicted"] is not None]
    numbers = [value for value in known if isinstance(value, (int, float))]
    unit = f" {first['unit']}" if first["unit"] else ""
    counted = (
        _ranges(numbers, unit)
        if numbers
        else [[str(label), n] for label, n in sorted(Counter(known).items())]
    )
    unsure = len(answers) - len(known)
    found = [answer["found"] for answer in answers if isinstance(answer["found"], (int, float))]
    return {
        "key": key,
        "question": first["question"],
        "answers": len(answers),
        "predicted": counted + ([["I don't know", unsure]] if unsure else []),
        "found": f"{statistics.median(found):.3g}{unit}, {first['how']} (median)"
        if found
        else str(first["found"]),
    }


def _ranges(numbers: list[float], unit: str) -> list[list[Any]]:
    """Counts in equal ranges, each named by its bounds; the outer ones are rounded outwards."""
    low, high = min(numbers), max(numbers)
    step = float(f"{(high - low) / (BARS - 1):.1g}")
    if not step:
        return [[f"about {low:.2g}{unit}", len(numbers)]]
    first = int(low // step)
    counts = Counter(int(value // step) - first for value in numbers)
    return [
        [f"{(first + i) * step:.4g} to {(first + i + 1) * step:.4g}{unit}", counts[i]]
        for i in range(max(counts) + 1)
    ]
