"""An executed deck as one HTML page: text as it stands, figures as pictures, nothing fetched from anywhere."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbconvert.filters import markdown2html

HERE = Path(__file__).parent
PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
WAS_LIVE = (
    '<p class="was-live">A picture of the panel after its run. In JupyterLab it can be changed and run.</p>'
)
NOTHING_FROM_OUTSIDE = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)


@dataclass
class Slide:
    """One slide: the section it begins, and its parts, HTML or plotly's JSON of a figure with its sentence."""

    section: str
    parts: list[str | tuple[dict[str, Any], str]] = field(default_factory=list)


def slides_of(notebook: Mapping[str, Any]) -> list[Slide]:
    """The slides of an executed deck.

    Raises
    ------
    ValueError
        If a cell shows something that cannot be on a page: all but figures, Markdown and widgets.
    """
    slides: list[Slide] = []
    for cell in notebook["cells"]:
        kind = cell["metadata"].get("slideshow", {}).get("slide_type")
        if kind == "skip":
            continue
        if kind == "slide":
            slides.append(Slide(cell["metadata"]["tags"][0]))
        if cell["cell_type"] == "markdown":
            slides[-1].parts.append(markdown2html(cell["source"]))
        else:
            slides[-1].parts += [
                part for output in cell["outputs"] if (part := _part(output, cell["id"])) is not None
            ]
    return slides


def _part(output: Mapping[str, Any], cell: str) -> str | tuple[dict[str, Any], str] | None:
    data = output.get("data", {})
    if PLOTLY in data:
        return _at_rest(data[PLOTLY]), data.get("text/plain", "")
    if "text/markdown" in data:
        kind = "found works" if data["text/markdown"].startswith(("| system", "| figure")) else "found"
        return f'<div class="{kind}">{markdown2html(data["text/markdown"])}</div>'
    # A panel's picture follows it; a figure's own words stand below it; a sweep that is done has no progress.
    if WIDGET in data or any(mark in data.get("text/html", "") for mark in ("dlpar-caption", "<progress")):
        return None
    raise ValueError(
        f"cell {cell}: shows {', '.join(data) or output['output_type']}, allowed are figures and Markdown"
    )


def _at_rest(figure: dict[str, Any]) -> dict[str, Any]:
    """A figure without the slider that a picture cannot have, nor the room for it."""
    if figure["layout"].pop("sliders", None):
        figure["layout"]["margin"]["b"] = 54
    return figure


def page(title: str, slides: list[Slide], drawn: list[str] | None = None) -> str:
    """The deck as one HTML page.

    Parameters
    ----------
    title : str
    slides : list of Slide
    drawn : list of str, optional
        The figures in order, as data URLs; default: only the room for them.
    """
    pictures, sections = iter(drawn or ()), []
    for number, slide in enumerate(slides, 1):
        parts = [
            part if isinstance(part, str) else _figure(part[1], next(pictures, "")) for part in slide.parts
        ]
        if slide.section == "live":
            parts.append(WAS_LIVE)
        where = f'class="{slide.section}" data-number="{number} / {len(slides)}"'
        sections.append(f"<section {where}>{''.join(parts)}</section>")
    css, js = ((HERE / name).read_text() for name in ("page.css", "page.js"))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{NOTHING_FROM_OUTSIDE}"><style>{css}</style></head>'
        f"<body>{''.join(sections)}<script>{js}</script></body></html>"
    )


def figures(slides: list[Slide]) -> list[dict[str, Any]]:
    """plotly's JSON of all figures, in order."""
    return [part[0] for slide in slides for part in slide.parts if not isinstance(part, str)]


def _figure(says: str, source: str) -> str:
    told = html.escape(says)
    picture = f'<img src="{source}" alt="{told}">' if source else ""
    return f'<figure><div class="drawn">{picture}</div><figcaption>{told}</figcaption></figure>'
