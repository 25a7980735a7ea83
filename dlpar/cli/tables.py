"""Tables of the terminal: rows under heads, and labels beside words."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

NONE = "–"
"""A cell without a value."""

STYLES = {"done": "green", "failed": "red", "lost": "red", "stopped": "yellow"}


def console() -> Console:
    """Colours in a terminal only; elsewhere lines are as long as they need to be."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=200)


def table(
    heads: Iterable[str | Text], rows: Iterable[Iterable[str | Text]], right: Collection[str] = ()
) -> Table:
    """Rows under heads, without lines; `right` names the columns of numbers, which do not wrap."""
    made = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for head in heads:
        number = str(head) in right
        made.add_column(head, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def status(word: str) -> Text:
    """How a run stands, in its colour."""
    return Text(word or NONE, style=STYLES.get(word, ""))


def print_pairs(pairs: list[tuple[str, str]]) -> None:
    """Labels and words, one pair a line."""
    wide = max(len(label) for label, _ in pairs)
    for label, text in pairs:
        print(f"{label:{wide}}  {text}")
