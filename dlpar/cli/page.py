"""A figure as a page of its own, with its sentence and its table: nothing in it is fetched from anywhere."""

from __future__ import annotations

import html
from pathlib import Path

import pandas as pd

from dlpar.lab.figure import Figure, say, table

STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --line: #ddd; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #111; --line: #444; } }
body { margin: 1em auto; max-width: 1200px; padding: 0 1em; color: var(--text); background: var(--page);
       font: 15px/1.45 system-ui, sans-serif; }
.main-svg text:not(.hoverlayer text) { fill: var(--text) !important; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 2px 10px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
"""


def write(file: str, figure: Figure, title: str) -> None:
    """Write a figure to an HTML file; `title` heads the page."""
    plot = figure.to_html(
        full_html=False, include_plotlyjs=True, config={"responsive": True, "displaylogo": False}
    )
    rows: pd.DataFrame = table(figure)
    numbers = rows.to_html(index=False, border=0, na_rep="", float_format="{:.5g}".format)
    Path(file).write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1><p>{html.escape(say(figure))}</p>"
        f"{plot}{numbers}</body></html>",
        encoding="utf-8",
    )
