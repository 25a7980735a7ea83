"""A student's predictions before a run. A question never blocks a run."""

from __future__ import annotations

import html
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from dlpar.lab.captions import quantity
from dlpar.lab.exchange import is_shared, note, share_predictions
from dlpar.lab.page import Page, module
from dlpar.lab.theme import FAINT

UNSURE = "I don't know"

_answers: dict[str, Answer] = {}
"""Answers by key, so that a notebook that runs again keeps them."""

_all: WeakSet[Prediction] = WeakSet()


class Answer(NamedTuple):
    """A student's answer."""

    value: float | str | None = None
    """Number or choice; None if there is none."""
    unsure: bool = False
    """Whether the answer was "I don't know"."""
    reason: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return UNSURE if self.unsure else "not answered"
        return self.value if isinstance(self.value, str) else quantity(self.value)


class Prediction(Page):
    """Question and its answer: a choice if `choices` are given, else a number.

    Parameters
    ----------
    key : str
        Identifies the prediction. A question with the same key keeps its answer.
    question : str
        Text of the question.
    choices : sequence of str, optional
        Answers to choose from. "I don't know" is always added.
    unit : str, default ""
        Unit of the number, such as ``"times"`` or ``"samples/s"``.
    low, high : float, optional
        Bounds of a sensible number.
    """

    _esm = module("plotly", "link", "prediction")

    def __init__(
        self,
        key: str,
        question: str,
        choices: Sequence[str] = (),
        unit: str = "",
        low: float = -math.inf,
        high: float = math.inf,
    ) -> None:
        super().__init__()
        self.key, self.question, self.choices, self.unit = key, question, list(choices), unit
        self._low, self._high = low, high
        self._allowed = f"a number from {low:g} to {high:g}".replace(" from -inf", "").replace(" to inf", "")
        kept = self.answer.value
        self._typed = "" if kept is None or choices else f"{kept:g}"
        asked = {"question": question, "choices": self.choices, "unit": unit, "unknown": UNSURE}
        self.tell(**asked, allowed=self._allowed)
        _all.add(self)
        self._say()

    @property
    def answer(self) -> Answer:
        """The current answer."""
        return _answers.get(self.key, Answer())

    @property
    def value(self) -> float | str | None:
        """Predicted number or choice. None without an answer or for "I don't know"."""
        return self.answer.value

    def reveal(self, found: float | str, how: str = "measured") -> Reveal:
        """Compare the prediction with the result. Call this in the last line of a cell.

        Parameters
        ----------
        found : float or str
            Result: a number, or one of the choices.
        how : str, default ``"measured"``
            Source of the result, such as ``"paced"``, ``"simulated"`` or ``"computed"``.
        """
        return Reveal(self, found, how)

    def hear(self, message: dict[str, Any]) -> None:
        """Process a full or partial answer, or the agreement to share."""
        answer = self.answer
        match message:
            case {"share": agrees}:
                share_predictions(bool(agrees))
                for other in _all:
                    other._say()
                    other.flush()
            case {"reason": reason}:
                answer = answer._replace(reason=str(reason).strip())
            case {"unsure": unsure}:
                answer = answer._replace(value=None if unsure else self._number(), unsure=bool(unsure))
            case {"value": value} if self.choices:
                answer = answer._replace(value=value if value in self.choices else None, unsure=value is None)
            case {"value": typed}:
                self._typed = str(typed).strip().removesuffix(self.unit)
                answer = answer._replace(value=None if answer.unsure else self._number())
        _answers[self.key] = answer
        self._say()

    def _number(self) -> float | None:
        """Return the typed number, if it is within bounds."""
        try:
            # "1,234" is a thousand and more, as a lab prints it; "1,5" is one and a half.
            by_thousands = re.fullmatch(r"\s*-?[1-9]\d{0,2}(,\d{3})+(\.\d*)?\s*", self._typed)
            value = float(self._typed.replace(",", "" if by_thousands else "."))
        except ValueError:
            return None
        return value if math.isfinite(value) and self._low <= value <= self._high else None

    def _say(self) -> None:
        answer = self.answer
        if self._typed.strip() and answer.value is None and not answer.unsure:
            text = f"{self._typed.strip()!r} is not {self._allowed}."
        elif answer.value is not None or answer.unsure:
            unit = "" if answer.value is None else self.unit
            text = f"Noted: {_with_unit(str(answer), unit)}. You may still change it."
        else:
            text = "No prediction yet; the lab continues without one."
        share = is_shared() if "JUPYTERHUB_USER" in os.environ else None
        self.tell(note=text, share=share, typed=self._typed)
        self.tell(answer=answer.value, unsure=answer.unsure, reason=answer.reason)


predict = Prediction


class Reveal:
    """Comparison of a prediction with its result: a sentence and, for numbers, a drawing."""

    def __init__(self, prediction: Prediction, found: float | str, how: str) -> None:
        found = found.item() if hasattr(found, "item") else found  # a number of NumPy or torch
        self.answer, self.unit, self.found, self.how = prediction.answer, prediction.unit, found, how
        note(prediction.key, prediction.question, self.answer, found, how, prediction.unit)

    @property
    def sentence(self) -> str:
        """Sentence with the prediction, the result and the difference."""
        value, figure = self.answer.value, self.found
        shown = quantity(figure) if isinstance(figure, (int, float)) else str(figure)
        found = f"{self.how}: {_with_unit(shown, self.unit)}"
        if value is None:
            text = "You said you don't know" if self.answer.unsure else "No prediction was made"
            return f"{text}; {found}."
        if isinstance(value, str):
            return f"You predicted “{value}”; {found}." + (" That is right." if value == figure else "")
        predicted = _with_unit(quantity(value), self.unit)
        return f"You predicted {predicted}; {found}{_apart(value, float(figure))}."

    def __repr__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        reason = f"<br>Your reason: “{html.escape(self.answer.reason)}”" if self.answer.reason else ""
        said = f"<p>{html.escape(self.sentence)}{reason}</p>"
        return f'<div class="dlpar-reveal" role="status">{self._drawn()}{said}</div>'

    def _drawn(self) -> str:
        """Draw a number line from 0 with the prediction (dashed) and the result (solid or faint)."""
        if not isinstance(self.answer.value, float) or isinstance(self.found, str):
            return ""
        values = {"you said": self.answer.value, self.how: float(self.found)}
        low, high = min(0.0, *values.values()), max(0.0, *values.values())

        at = lambda value: 20 + 400 * (value - low) / ((high - low) or 1.0)
        marks = ""
        for y, (name, value) in zip((16, 38), values.items()):
            dash, colour = ('stroke-dasharray="5 4"', "#BF8300") if name == "you said" else ("", "#0072B2")
            look = f'stroke-width="8" stroke-opacity="{FAINT}"' if name == "simulated" else 'stroke-width="4"'
            said, x = f"{name} {quantity(value)}", at(value)
            marks += (
                f'<path d="M{at(0.0):.1f},{y} H{x:.1f}" stroke="{colour}" {look} {dash}/>'
                f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{colour}"/>'
                f'<text x="{x + 10:.1f}" y="{y + 5}" fill="var(--jp-ui-font-color1, #222)">{said}</text>'
            )
        size = 'viewBox="0 0 620 54" width="620" style="max-width: 100%"'
        return f'<svg {size} aria-hidden="true" font-size="14">{marks}</svg>'


def _with_unit(text: str, unit: str) -> str:
    return f"{text} {unit}".strip()


def _apart(predicted: float, measured: float) -> str:
    if predicted <= 0 or measured <= 0 or not math.isfinite(measured):
        return f", {quantity(abs(predicted - measured))} apart"
    ratio = predicted / measured
    if 0.9 <= ratio <= 1.1:
        return ", within 10 %"
    return f": {quantity(ratio if ratio > 1 else 1 / ratio)} times too {'high' if ratio > 1 else 'low'}"
