"""A student's prediction, asked for before a run; it never blocks anything."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import ipywidgets as widgets

from dlpar.lab.captions import quantity
from dlpar.lab.cell import answer_while_busy
from dlpar.lab.ledger import is_shared, note, share
from dlpar.lab.theme import FAINT

UNSURE = "I don't know"

_answers: dict[str, Answer] = {}
"""Answers by key, so that running a notebook again does not forget them."""


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


class Prediction(widgets.VBox):
    """A question with its answer, made by :func:`predict`; ``value`` and ``answer`` may be read at any time."""

    def __init__(
        self,
        key: str,
        question: str,
        choices: Sequence[str],
        unit: str,
        low: float | None,
        high: float | None,
    ) -> None:
        self.key, self.question, self.choices, self.unit = key, question, list(choices), unit
        self.low, self.high = low, high
        kept = _answers.get(key, Answer())
        self._reason = widgets.Text(
            value=kept.reason, placeholder="in one line", description="because", layout={"width": "36em"}
        )
        self._note = widgets.HTML()
        self._input = self._choice(kept) if choices else self._number(kept)
        super().__init__(
            [
                widgets.HTML(f"<b>{html.escape(question)}</b>"),
                self._input,
                self._reason,
                self._note,
                Agreement(),
            ]
        )
        self.add_class("dlpar-predict")
        for widget in (self, self._input, *getattr(self._input, "children", ()), *self.children[2:]):
            answer_while_busy(widget)
        self._reason.observe(self._changed, names="value")
        self._say()

    @property
    def answer(self) -> Answer:
        """The current answer."""
        return _answers.get(self.key, Answer())

    @property
    def value(self) -> float | str | None:
        """Predicted number or choice; None without an answer or for "I don't know"."""
        return self.answer.value

    def reveal(self, found: float | str, how: str = "measured") -> Reveal:
        """Compare the prediction with the result, as the last line of a cell.

        Parameters
        ----------
        found : float or str
            Result: a number, or one of the choices.
        how : str, default ``"measured"``
            Source of the result, such as ``"paced"``, ``"simulated"`` or ``"computed"``.
        """
        return Reveal(self, found, how)

    def _choice(self, kept: Answer) -> widgets.Widget:
        shown = UNSURE if kept.unsure else kept.value if kept.value in self.choices else None
        radio = widgets.RadioButtons(options=[*self.choices, UNSURE], value=shown, layout={"width": "auto"})
        radio.observe(self._changed, names="value")
        return radio

    def _number(self, kept: Answer) -> widgets.Widget:
        text = "" if kept.value is None else f"{kept.value:g}"
        self._text = widgets.Text(
            value=text, placeholder=self._allowed(), description="prediction", layout={"width": "20em"}
        )
        self._unsure = widgets.Checkbox(
            value=kept.unsure, description=UNSURE, indent=False, layout={"width": "auto"}
        )
        for widget in (self._text, self._unsure):
            widget.observe(self._changed, names="value")
        return widgets.HBox([self._text, widgets.Label(self.unit), self._unsure])

    def _allowed(self) -> str:
        if self.low is None or self.high is None:
            return "a number"
        return f"a number from {self.low:g} to {self.high:g}"

    def _changed(self, _change: Any) -> None:
        if self.choices:
            value, unsure = self._input.value, self._input.value == UNSURE
            value = None if unsure else value
        else:
            value, unsure = self._parsed(), self._unsure.value
            value = None if unsure else value
        _answers[self.key] = Answer(value, unsure, self._reason.value.strip())
        self._say()

    def _parsed(self) -> float | None:
        """The number typed, if it is one and within bounds."""
        try:
            value = float(self._text.value.replace(",", "."))
        except ValueError:
            return None
        inside = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        return value if inside else None

    def _say(self) -> None:
        answer = self.answer
        typed = not self.choices and self._text.value.strip()
        if typed and answer.value is None and not answer.unsure:
            text = f"{typed!r} is not {self._allowed()}."
        elif answer.value is not None or answer.unsure:
            unit = "" if answer.value is None else self.unit
            text = f"Noted: {_with_unit(str(answer), unit)}. You may still change it."
        else:
            text = "No prediction yet; the lab goes on without one."
        self._note.value = html.escape(text)


class Reveal:
    """Comparison of a prediction with its result: a sentence and, for numbers, a drawing of both."""

    def __init__(self, prediction: Prediction, found: float | str, how: str) -> None:
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
        """A number line from 0: dashed is the prediction, solid a measurement, broad and faint a simulation."""
        if not isinstance(self.answer.value, float) or isinstance(self.found, str):
            return ""
        values = {"predicted": self.answer.value, self.how: float(self.found)}
        low, high = min(0.0, *values.values()), max(0.0, *values.values())
        place = {name: 20 + 400 * (value - low) / ((high - low) or 1.0) for name, value in values.items()}
        zero = 20 - 400 * low / ((high - low) or 1.0)
        marks = ""
        for y, (name, x) in zip((16, 38), place.items()):
            dash, colour = ('stroke-dasharray="5 4"', "#BF8300") if name == "predicted" else ("", "#0072B2")
            look = f'stroke-width="8" stroke-opacity="{FAINT}"' if name == "simulated" else 'stroke-width="4"'
            said = f"{name} {quantity(values[name])}"
            marks += (
                f'<path d="M{zero:.1f},{y} H{x:.1f}" stroke="{colour}" {look} {dash}/>'
                f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{colour}"/>'
                f'<text x="{x + 10:.1f}" y="{y + 5}" fill="var(--jp-ui-font-color1, #222)">{said}</text>'
            )
        size = 'viewBox="0 0 620 54" width="620" style="max-width: 100%"'
        return f'<svg {size} aria-hidden="true" font-size="14">{marks}</svg>'


def predict(
    key: str,
    question: str,
    choices: Sequence[str] = (),
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
) -> Prediction:
    """Ask for a prediction: a choice if `choices` are given, else a number.

    Parameters
    ----------
    key : str
        Identifies the prediction; a question with the same key keeps its answer.
    question : str
        Text of the question.
    choices : sequence of str, optional
        Answers to choose from; "I don't know" is always added.
    unit : str, default ""
        Unit of the number, such as ``"times"`` or ``"samples/s"``.
    low, high : float, optional
        Bounds of a sensible number.
    """
    return Prediction(key, question, choices, unit, low, high)


def _with_unit(text: str, unit: str) -> str:
    return f"{text} {unit}".strip()


def _apart(predicted: float, measured: float) -> str:
    if predicted <= 0 or measured <= 0:
        return f", {quantity(abs(predicted - measured))} apart"
    ratio = predicted / measured
    if 0.9 <= ratio <= 1.1:
        return ", within 10 %"
    return f": {quantity(ratio if ratio > 1 else 1 / ratio)} times too {'high' if ratio > 1 else 'low'}"


MEANING = (
    "Your predictions and results then count in the figures your teacher shows, without your name and "
    "your reasons, together with at least four others. For all labs; untick it to withdraw."
)

_ticks: WeakSet[Agreement] = WeakSet()


class Agreement(widgets.Checkbox):
    """Checkbox to share predictions, shown only on a hub; all of a notebook have the same value."""

    def __init__(self) -> None:
        here = "JUPYTERHUB_USER" in os.environ
        super().__init__(
            value=is_shared(),
            description="count my predictions in the class's figures, without my name",
            tooltip=MEANING,
            indent=False,
            layout={"width": "auto", "display": None if here else "none"},
        )
        _ticks.add(self)
        self.observe(self._ticked, names="value")

    def _ticked(self, change: dict[str, Any]) -> None:
        share(change["new"])
        for tick in list(_ticks):
            tick.value = change["new"]
