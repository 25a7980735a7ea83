"""Map of the labs as a course, questions about each lab's prerequisites, and terms.

Terms are in English and Chinese. Chinese articles describe the same systems, so a student who reads both
languages needs the same terms.
"""

from __future__ import annotations

import html
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import anywidget
import traitlets
from IPython.display import HTML

from dlpar.config.experiment import Experiment
from dlpar.lab.exchange import entries
from dlpar.lab.labels import flatten, labels, written
from dlpar.lab.page import Page, module

HERE = Path(__file__).parent


class Lab(NamedTuple):
    """One lab. If `core` is true, the lab is part of a short course.

    `asks` are questions about the prerequisites, `needs`.  Each has a question, choices, the right choice,
    and a reason.
    """

    number: str
    file: str
    title: str
    minutes: int
    core: bool
    needs: str
    question: str
    asks: list[dict[str, Any]]


def _table(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def labs() -> dict[str, Lab]:
    """Return the labs by their numbers, in ascending order."""
    return {number: Lab(number, **fields) for number, fields in sorted(_table("curriculum").items())}


def html_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> HTML:
    """Return a table for a notebook. Cells are HTML, and the first cell of a row is its label."""
    left = 'style="text-align:left;white-space:normal"'
    head = "".join(f'<th scope="col" {left}>{name}</th>' for name in heads)
    cells = ((first, "".join(f"<td {left}>{cell}</td>" for cell in rest)) for first, *rest in rows)
    body = "".join(f'<tr><th scope="row" {left}>{first}</th>{others}</tr>' for first, others in cells)
    head = f"<caption {left}>{caption}</caption><thead><tr>{head}</tr></thead>"
    return HTML(f"<table>{head}<tbody>{body}</tbody></table>")


def what_runs(experiments: Mapping[str, Experiment] | Sequence[Experiment]) -> HTML:
    """Show experiments' non-default settings.

    The caption lists shared settings. Each setting that differs has a row.
    """
    named = experiments if isinstance(experiments, Mapping) else dict(zip(labels(experiments), experiments))
    flat = [flatten(each) for each in named.values()]
    fields = ["sync.scheme", *(f for each in named.values() for f in flatten(each, exclude_defaults=True))]
    values = {f: [html.escape(written(each.get(f, ""))) for each in flat] for f in fields}
    rows = [[f"<code>{f}</code>", *found] for f, found in values.items() if len(set(found)) > 1]
    shared = ", ".join(f"{f} {found[0]}" for f, found in values.items() if len(set(found)) == 1)
    return html_table(f"All: {shared}", ["setting", *map(html.escape, named)], rows)


def deck() -> HTML:
    """Return the style of slides in JupyterLab's deck mode. Elsewhere the notebook stays unchanged."""
    return HTML(f"<style>{(HERE / 'deck.css').read_text()}</style>")


def course() -> HTML:
    """Show the labs as a table: minutes, prerequisites, content, and number of revealed predictions."""
    revealed = Counter(key.partition("-")[0] for key in entries())
    means = "part of the short course"
    star = f' <span title="{means}" aria-label="{means}">★</span>'
    rows = []
    for each in labs().values():
        name = f'<a href="{each.file}.ipynb">{each.number} · {html.escape(each.title)}</a>{star * each.core}'
        found = f"{revealed[each.number]} revealed" if revealed[each.number] else "none yet"
        rows.append((name, each.minutes, html.escape(each.needs), html.escape(each.question), found))
    hours = [sum(lab.minutes / 60 for lab in labs().values() if lab.core or every) for every in (False, True)]
    caption = f"★ short course, {hours[0]:g} hours; all labs: {hours[1]:.0f} hours"
    return html_table(caption, ("lab", "minutes", "you need", "question", "your predictions"), rows)


class SelfTest(Page):
    """Self-test on a lab's prerequisites. The page checks each answer and stores nothing.

    Parameters
    ----------
    lab : str
        Number of the lab, such as ``"03"``.

    Raises
    ------
    ValueError
        If there is no such lab.
    """

    _esm = module("plotly", "link", "selftest")

    def __init__(self, lab: str) -> None:
        if lab not in labs():
            raise ValueError(f"lab: got {lab!r}, allowed is one of {', '.join(labs())}")
        super().__init__()
        self.tell(asks=labs()[lab].asks, needs=labs()[lab].needs, lab=lab)


self_test = SelfTest


# ---- terms ---------------------------------------------------------------------------


class Term(NamedTuple):
    """Term of the course.

    A word that is also `everyday` language is explained only where a text emphasises it.
    """

    name: str
    zh: str
    means: str
    lab: str
    everyday: bool = False


class Tooltips(anywidget.AnyWidget):
    """Tooltips that explain terms. Each term has a dotted underline at its first use.

    An explanation appears on hover, tap or focus. The page does all this without the kernel.
    """

    _esm, _css = ((HERE / name).read_text(encoding="utf-8") for name in ("terms.js", "terms.css"))
    terms = traitlets.List(help="Entries of the glossary, as mappings.").tag(sync=True)


@cache
def terms() -> dict[str, Term]:
    """Return the terms by their English names."""
    kept = _table("terms")
    return {name: Term(name, **kept[name]) for name in sorted(kept, key=str.lower)}


def tooltips() -> Tooltips:
    """Explain terms in this notebook's text and panels. Call this function near the top."""
    return Tooltips(terms=[entry._asdict() for entry in terms().values()])


def glossary() -> HTML:
    """Show the terms as a table, and name the lab that introduces each term."""
    zh = '<span lang="zh">{}</span>'.format
    rows = [(html.escape(t.name), zh(t.zh), html.escape(t.means), t.lab) for t in terms().values()]
    return html_table("Terms of the labs", ("term", "中文", "meaning", "lab"), rows)
