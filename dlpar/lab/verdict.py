"""Checks an exercise: names the first thing that differs, then gives one hint more each time."""

from __future__ import annotations

import copy
import html
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

_failed: Counter[str] = Counter()
"""How often each exercise was answered wrongly: that many hints are shown."""


class Verdict:
    """What a check found; true if the exercise is solved."""

    def __init__(self, status: str, sentence: str, hints: Sequence[str] = ()) -> None:
        self.status, self.sentence, self.hints = status, sentence, list(hints)

    def __bool__(self) -> bool:
        return self.status == "solved"

    def __repr__(self) -> str:
        return "\n".join(
            [
                f"{self.status}: {self.sentence}",
                *(f"hint {i}: {h}" for i, h in enumerate(self.hints, start=1)),
            ]
        )

    def _repr_html_(self) -> str:
        sign, colour = {"solved": ("✔", "#009E73"), "to do": ("✎", "#0072B2")}.get(
            self.status, ("✘", "#D55E00")
        )
        hints = "".join(f"<li>{html.escape(h)}</li>" for h in self.hints)
        return (
            f'<div role="status" style="border-left: 4px solid {colour}; padding: 0.3em 0.8em">'
            f"<b>{sign} {self.status}</b><br>"
            f'<span style="white-space: pre-wrap">{html.escape(self.sentence)}</span>'
            + (f"<p>Hints so far:</p><ol>{hints}</ol>" if hints else "")
            + "</div>"
        )


def check(
    student: Callable | None,
    cases: Sequence[tuple[Any, Any]],
    hints: Sequence[str] = (),
    tolerance: float = 1e-6,
) -> Verdict:
    """Compare a student's function with what is expected; never raises for what the student wrote.

    Parameters
    ----------
    student : callable or None
        The function; None, ``...``, a ``NotImplementedError`` or a function that
        returns None where something is expected counts as not written yet.
    cases : sequence of (arguments, expected)
        Arguments as a mapping of names (``{"rank": 2, "step": 0}``), which the
        message repeats, or as a tuple; `expected` is a number, text, array,
        tensor, or list, tuple or mapping of these.
    hints : sequence of str
        From gentle to plain: a wrong answer shows one more of them each time.
    tolerance : float
        Largest relative difference of numbers.
    """
    name = getattr(student, "__name__", "the function")
    for arguments, expected in cases:
        given, where = copy.deepcopy(arguments), _call(name, arguments)
        if not callable(student):
            return Verdict("to do", "The function is not written yet.")
        try:
            got = student(**given) if isinstance(given, Mapping) else student(*given)
        except NotImplementedError:
            return Verdict("to do", f"{name} is not written yet.")
        except Exception as error:
            return wrong(name, hints, f"{where} raised {type(error).__name__}: {error}{_line(error)}")
        if (got is None or got is ...) and expected is not None:
            return Verdict("to do", f"{name} returns nothing yet: {where} should give {short(expected)}.")
        differs = difference(got, expected, tolerance)
        if differs:
            return wrong(name, hints, f"{where}: {differs}.")
    _failed.pop(name, None)
    return Verdict("solved", f"{name} is right in all {len(cases)} cases.")


def difference(got: Any, expected: Any, tolerance: float = 1e-6, where: str = "") -> str:
    """The first place where `got` is not as `expected`, in words; empty if they agree."""
    at = f"{where} " if where else "it "
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping) or set(got) != set(expected):
            return f"{at}is {short(got)}, expected a mapping with the keys {', '.join(map(str, expected))}"
        inner = (difference(got[k], expected[k], tolerance, f"{where}[{k!r}]") for k in expected)
        return next((d for d in inner if d), "")
    if isinstance(expected, str) or expected is None or isinstance(expected, bool):
        return "" if got == expected else f"{at}is {short(got)}, expected {short(expected)}"
    try:
        mine, right = np.asarray(got), np.asarray(expected)
        numbers = mine.dtype.kind in "biufc" and right.dtype.kind in "biufc"
    except (TypeError, ValueError, RuntimeError):  # ragged, or a tensor that needs a gradient
        return _items(got, expected, tolerance, where)
    if not numbers:
        return _items(got, expected, tolerance, where)
    if mine.shape != right.shape:
        return f"{at}has shape {mine.shape}, expected {right.shape}"
    wrong = ~np.isclose(mine, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    if not wrong.any():
        return ""
    if not right.shape:
        return f"{at}is {mine[()]}, expected {right[()]}"
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f"value {index[0]}" if len(index) == 1 else f"value {index}"
    place = f"{where}, {place}" if where else place
    return f"{place} is {mine[index]}, expected {right[index]} ({wrong.sum()} of {wrong.size} differ)"


def _items(got: Any, expected: Any, tolerance: float, where: str) -> str:
    detach = getattr(got, "detach", None)
    if detach:
        return difference(detach().numpy(), expected, tolerance, where)
    try:
        mine, right = list(got), list(expected)
    except TypeError:
        return "" if got == expected else f"{where or 'it'} is {short(got)}, expected {short(expected)}"
    if len(mine) != len(right):
        return f"{where or 'it'} has {len(mine)} items, expected {len(right)}"
    inner = (difference(m, r, tolerance, f"{where}[{i}]") for i, (m, r) in enumerate(zip(mine, right)))
    return next((d for d in inner if d), "")


def wrong(name: str, hints: Sequence[str], sentence: str) -> Verdict:
    """The verdict on a wrong answer, with one hint more than last time."""
    _failed[name] += 1
    return Verdict("not yet", sentence, hints[: _failed[name]])


def _call(name: str, arguments: Any) -> str:
    if isinstance(arguments, Mapping):
        return f"{name}({', '.join(f'{k}={short(v)}' for k, v in arguments.items())})"
    return f"{name}({', '.join(map(short, arguments))})"


def short(value: Any, limit: int = 60) -> str:
    """A value in one line that is not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _line(error: Exception) -> str:
    """The student's own line that raised."""
    own = traceback.extract_tb(error.__traceback__)[1:]
    return f"\n  in your line {own[0].lineno}: {own[0].line}" if own and own[0].line else ""
