"""The labs' terms in English and Chinese: as a table, and explained where a notebook's text uses them.

The systems the labs teach are described in Chinese articles, too; who reads both needs one name
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

if TYPE_CHECKING:
    from IPython.display import HTML


HERE = Path(__file__).parent


class Term(NamedTuple):
    """One entry; an `everyday` word means something else, too, so it is explained only where a text emphasises it."""

    name: str
    zh: str
    means: str
    lab: str
    everyday: bool = False


class Tooltips(anywidget.AnyWidget):
    """Dots each term's first place in the notebook it is shown in: pointed at, tapped or in focus, it is explained.

    All is done in the page; the kernel is not asked again.
    """

    _esm, _css = ((HERE / name).read_text(encoding="utf-8") for name in ("terms.js", "terms.css"))
    terms = traitlets.List(help="Entries of the glossary, as mappings.").tag(sync=True)
    says = traitlets.Unicode(
        "Dotted words say what they mean, in English and Chinese: point at one, tap it, or reach it by Tab."
    ).tag(sync=True)


@cache
def terms() -> dict[str, Term]:
    """All of them, by their English names."""
    kept = tomllib.loads((HERE / "terms.toml").read_text(encoding="utf-8"))
    return {
        name: Term(name, **entry) for name, entry in sorted(kept.items(), key=lambda item: item[0].lower())
    }


def tooltips() -> Tooltips:
    """Explain terms in this notebook's text and panels; to be shown near its top."""
    return Tooltips(terms=[entry._asdict() for entry in terms().values()])


def tooltip(name: str) -> str:
    """What a term means, with its Chinese name; empty if it is none."""
    found = terms().get(name)
    return f"{found.zh}. {found.means}" if found else ""


def term(name: str) -> HTML:
    """A term to be shown, which says what it means where one points at it.

    Raises
    ------
    ValueError
        If it is not in the glossary.
    """
    from IPython.display import HTML

    if name not in terms():
        raise ValueError(f"term: got {name!r}, allowed is one of {', '.join(terms())}")
    return HTML(f'<abbr title="{html.escape(tooltip(name))}">{html.escape(name)}</abbr>')


def glossary(lab: str = "") -> HTML:
    """The terms as a table; of one lab, such as ``"02"``, those it introduces.

    Raises
    ------
    ValueError
        If there is no term of that lab.
    """
    from IPython.display import HTML

    chosen = [found for found in terms().values() if lab in ("", found.lab)]
    if not chosen:
        labs = sorted({found.lab for found in terms().values()})
        raise ValueError(f"lab: got {lab!r}, allowed is one of {', '.join(labs)}")
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left">{html.escape(t.name)}</th><td lang="zh" style="text-align:left">'
        f'{t.zh}</td><td style="text-align:left;white-space:normal">{html.escape(t.means)}</td><td>{t.lab}</td></tr>'
        for t in chosen
    )
    head = "".join(
        f'<th scope="col" style="text-align:left">{name}</th>' for name in ("term", "中文", "meaning", "lab")
    )
    return HTML(
        f"<table><caption>Terms of the labs</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )
