"""The labs as a course: a map of them, and questions that test whether a student is ready for the next."""

from __future__ import annotations

import html
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dlpar.course import html_table
from dlpar.lab.exchange import entries
from dlpar.lab.page import Page, module

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
    for fields in kept.values():
        fields["asks"] = tuple(Ask(**ask) for ask in fields["asks"])
    return {number: Lab(number, **fields) for number, fields in sorted(kept.items())}


def course() -> HTML:
    """Show the labs as a table: minutes, prerequisites, content, and the number of predictions revealed to you."""
    revealed = Counter(key.partition("-")[0] for key in entries())
    means = "part of the short course"
    star = f' <span title="{means}" aria-label="{means}">★</span>'
    rows = [
        (
            f'<a href="{each.file}.ipynb">{each.number} · {html.escape(each.title)}</a>{star * each.core}',
            each.minutes,
            html.escape(each.needs),
            html.escape(each.shows),
            f"{revealed[each.number]} revealed" if revealed[each.number] else "none yet",
        )
        for each in labs().values()
    ]
    whole = sum(each.minutes for each in labs().values())
    short = sum(each.minutes for each in labs().values() if each.core)
    caption = f"★ short course, {short / 60:g} hours; all labs: {whole / 60:g} hours"
    return html_table(caption, ("lab", "minutes", "you need", "what it shows", "your predictions"), rows)


class SelfTest(Page):
    """Questions that the page checks as soon as they are answered; no answer is stored or sent."""

    _esm = module("plotly", "link", "selftest")

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self.tell(asks=[ask._asdict() for ask in lab.asks], needs=lab.needs, lab=lab.number)


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
