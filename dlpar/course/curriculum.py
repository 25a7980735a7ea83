"""The labs as a course: a map of them, and questions that test whether a student is ready for the next."""

from __future__ import annotations

import html
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import ipywidgets as widgets

from dlpar.lab.ledger import entries

if TYPE_CHECKING:
    from IPython.display import HTML


class Ask(NamedTuple):
    """A question, its choices, which of them is right, and why."""

    question: str
    choices: list[str]
    right: int
    because: str


class Lab(NamedTuple):
    """One lab; `core`: part of a short course; `asks`: questions about its prerequisites, `needs`."""

    number: str
    file: str
    title: str
    minutes: int
    core: bool
    needs: str
    shows: str
    asks: tuple[Ask, ...]


@cache
def labs() -> dict[str, Lab]:
    """Labs by number, in their order."""
    kept = tomllib.loads(Path(__file__).with_name("curriculum.toml").read_text(encoding="utf-8"))
    return {
        number: Lab(number, **{**fields, "asks": tuple(Ask(**ask) for ask in fields["asks"])})
        for number, fields in sorted(kept.items())
    }


def course() -> HTML:
    """Show the labs as a table: minutes, prerequisites, content, and the number of predictions revealed to you."""
    from IPython.display import HTML

    revealed = Counter(key.partition("-")[0] for key in entries())
    heads = ("lab", "minutes", "you need", "what it shows", "your predictions")
    head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in heads)
    rows = "".join(_row(each, revealed[each.number]) for each in labs().values())
    short = sum(each.minutes for each in labs().values() if each.core)
    whole = sum(each.minutes for each in labs().values())
    caption = f"★ short course, {short / 60:g} hours; all labs: {whole / 60:g} hours"
    return HTML(
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _row(each: Lab, revealed: int) -> str:
    left = 'style="text-align:left;white-space:normal"'
    means = "part of the short course"
    star = f' <span title="{means}" aria-label="{means}">★</span>' if each.core else ""
    link = f'<a href="{each.file}.ipynb">{each.number} · {html.escape(each.title)}</a>{star}'
    done = f"{revealed} revealed" if revealed else "none yet"
    return (
        f'<tr><th scope="row" {left}>{link}</th><td>{each.minutes}</td><td {left}>{html.escape(each.needs)}</td>'
        f"<td {left}>{html.escape(each.shows)}</td><td {left}>{done}</td></tr>"
    )


class SelfTest(widgets.VBox):
    """Questions that are checked as soon as they are answered; no answer is stored or sent."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.answers = [widgets.RadioButtons(options=ask.choices, value=None) for ask in lab.asks]
        self._says = [widgets.HTML() for _ in lab.asks]
        self._score = widgets.HTML()
        shown: list[widgets.Widget] = []
        for ask, answer, says in zip(lab.asks, self.answers, self._says):
            answer.layout.width = "auto"
            answer.observe(lambda _change: self._check(), names="value")
            shown += [widgets.HTML(f"<b>{html.escape(ask.question)}</b>"), answer, says]
        super().__init__([*shown, self._score])
        self.add_class("dlpar-predict")
        self._check()

    @property
    def right(self) -> int:
        """Number of right answers."""
        return sum(answer.index == ask.right for ask, answer in zip(self.lab.asks, self.answers))

    def _check(self) -> None:
        for ask, answer, says in zip(self.lab.asks, self.answers, self._says):
            if answer.index is not None:
                how = "Right." if answer.index == ask.right else "Not so; try another."
                why = (
                    f" {ask.because}"
                    if answer.index == ask.right
                    else f" Before this lab you need {self.lab.needs}."
                )
                says.value = f'<p role="status">{how}{html.escape(why)}</p>'
        if self.right == len(self.lab.asks):
            self._score.value = (
                f'<p role="status">All {self.right} right: you are ready for lab {self.lab.number}.</p>'
            )
        else:
            self._score.value = f"<p>{self.right} of {len(self.lab.asks)} right.</p>"


def self_test(lab: str) -> SelfTest:
    """Ask a few questions about the prerequisites of a lab, each checked at once.

    Parameters
    ----------
    lab : str
        Such as ``"03"``.

    Raises
    ------
    ValueError
        If there is no such lab.
    """
    if lab not in labs():
        raise ValueError(f"lab: got {lab!r}, allowed is one of {', '.join(labs())}")
    return SelfTest(labs()[lab])
