"""The labs' terms in English and Chinese: as a table, and explained where a notebook's text uses them.

The systems in the labs are described in Chinese articles, too.  A student who reads both needs one name
for one thing.
"""

from __future__ import annotations

import html
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anywidget
import traitlets

from dlpar.course import html_table

if TYPE_CHECKING:
    from IPython.display import HTML


HERE = Path(__file__).parent


class Term(NamedTuple):
    """One entry; a word that is also `everyday` language is explained only where a text emphasises it."""

    name: str
    zh: str
    means: str
    lab: str
    everyday: bool = False


class Tooltips(anywidget.AnyWidget):
    """Dot each term where the notebook first uses it, and explain it when it is pointed at, tapped or in focus.

    The page does all of it; the kernel is not asked again.
    """

    _esm, _css = ((HERE / name).read_text(encoding="utf-8") for name in ("terms.js", "terms.css"))
    terms = traitlets.List(help="Entries of the glossary, as mappings.").tag(sync=True)
    says = traitlets.Unicode(
        "Dotted words say what they mean, in English and Chinese: point at one, tap it, or reach it by Tab."
    ).tag(sync=True)


@cache
def terms() -> dict[str, Term]:
    """Terms by their English names."""
    kept = tomllib.loads((HERE / "terms.toml").read_text(encoding="utf-8"))
    return {name: Term(name, **kept[name]) for name in sorted(kept, key=str.lower)}


def tooltips() -> Tooltips:
    """Explain terms in this notebook's text and panels; shown near its top."""
    return Tooltips(terms=[entry._asdict() for entry in terms().values()])


def term(name: str) -> HTML:
    """Show a term that is explained when it is pointed at.

    Raises
    ------
    ValueError
        If it is not in the glossary.
    """
    from IPython.display import HTML

    if name not in terms():
        raise ValueError(f"term: got {name!r}, allowed is one of {', '.join(terms())}")
    means = html.escape(f"{terms()[name].zh}. {terms()[name].means}")
    return HTML(f'<abbr title="{means}">{html.escape(name)}</abbr>')


def glossary(lab: str = "") -> HTML:
    """Show the terms as a table: all, or those that one lab, such as ``"02"``, introduces.

    Raises
    ------
    ValueError
        If there is no term of that lab.
    """
    chosen = [found for found in terms().values() if lab in ("", found.lab)]
    if not chosen:
        labs = sorted({found.lab for found in terms().values()})
        raise ValueError(f"lab: got {lab!r}, allowed is one of {', '.join(labs)}")
    zh = '<span lang="zh">{}</span>'.format
    rows = [(html.escape(t.name), zh(t.zh), html.escape(t.means), t.lab) for t in chosen]
    return html_table("Terms of the labs", ("term", "中文", "meaning", "lab"), rows)
