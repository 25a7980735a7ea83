"""Tables for the terminal: rows under column headings, and pairs of label and text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dlpar.cli import flags, printable
from dlpar.lab.captions import quantity

NONE = "–"
"""A cell without a value."""

STYLES = {"done": "green", "failed": "red", "lost": "red", "stopped": "yellow"}
"""Colours of the states of a run."""


def console() -> Console:
    """Return a console that uses colours only in a terminal and never wraps lines elsewhere."""
    found = Console(highlight=False, markup=False, emoji=False)
    return found if found.is_terminal else Console(highlight=False, markup=False, emoji=False, width=200)


def table(heads: Mapping[str, str | Text], rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return rows as a table without rules. Numbers are right-aligned.

    Parameters
    ----------
    heads : mapping
        Heading of each column, by the name of its values in the rows.
    rows : iterable of mapping
        Text, or numbers by name: shares, seconds of a step, others; None if there is none.
    """
    cells = [[cell(name, row.get(name)) for name in heads] for row in rows]
    made = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for head, column in zip(heads.values(), zip(*cells)):
        is_number = all(re.fullmatch(rf"{NONE}|([\d.,]+(e[+-]\d+)?%?)?", str(cell)) for cell in column)
        made.add_column(head, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in cells:
        made.add_row(*row)
    return made


def cell(name: str, value: Any) -> str | Text:
    """Format a value for a table according to the value's name."""
    if value is None or value == {}:
        return NONE
    if name == "status":
        return Text(str(value), style=STYLES.get(str(value), ""))
    if isinstance(value, float) and name in ("accuracy", "efficiency"):
        return f"{value:.1%}"
    if isinstance(value, float):
        return quantity(1e3 * value if name.endswith("step_s") else value)
    return value if isinstance(value, Text) else printable(flags.written(value))


def ages(staleness: Mapping[str, Any]) -> str:
    """Describe the staleness in a summary."""
    return f"{quantity(staleness['mean'])} on average, {staleness['max']} at most"


def print_pairs(pairs: list[tuple[str, str]]) -> None:
    """Print pairs of label and text, one pair per line."""
    wide = max(len(label) for label, _ in pairs)
    for label, text in pairs:
        print(f"{label:{wide}}  {printable(str(text))}")
