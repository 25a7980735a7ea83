"""The course: a table of runs for each lab, exercises and their judge, the glossary and the map of labs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.display import HTML


def platform_file(name: str) -> str:
    """Return the path of a cluster of the labs, a small file in `platforms`, as `cluster.platform` takes it."""
    return str(Path(__file__).with_name("platforms") / f"{name}.toml")


def html_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> HTML:
    """A table for a notebook; cells are HTML, and the first of a row is its head."""
    from IPython.display import HTML

    left = 'style="text-align:left;white-space:normal"'
    head = "".join(f'<th scope="col" {left}>{name}</th>' for name in heads)
    body = ""
    for first, *rest in rows:
        cells = "".join(f"<td {left}>{cell}</td>" for cell in rest)
        body += f'<tr><th scope="row" {left}>{first}</th>{cells}</tr>'
    head = f"<caption>{caption}</caption><thead><tr>{head}</tr></thead>"
    return HTML(f"<table>{head}<tbody>{body}</tbody></table>")
