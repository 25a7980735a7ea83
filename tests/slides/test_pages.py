"""What of a cell's outputs stands on a page of an exported deck."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from slides.decks import ROOT


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "slides"))
    monkeypatch.delitem(sys.modules, "pages", raising=False)
    return import_module("pages")


def deck(*outputs):
    """An executed deck of one slide, whose only cell shows these."""
    shown = [{"output_type": "display_data", "data": data} for data in outputs]
    meta = {"slideshow": {"slide_type": "slide"}, "tags": ["result"]}
    return {"cells": [{"cell_type": "code", "id": "c", "metadata": meta, "outputs": shown}]}


def test_only_figures_and_markdown_stand_on_a_page(pages):
    progress = {"text/html": "<progress max='4' value='4'></progress>", "text/plain": "[====] 4/4"}
    words = {"text/html": '<div class="dlpar-caption">It fell.</div>', "text/plain": "It fell."}
    figure = {pages.PLOTLY: {"data": [], "layout": {}}, "text/plain": "It fell."}
    (slide,) = pages.slides_of(deck(progress, figure, words, {"text/markdown": "**4** times"}))
    assert slide.parts[0] == ({"data": [], "layout": {}}, "It fell.") and len(slide.parts) == 2


def test_what_cannot_be_on_a_page_is_refused(pages):
    with pytest.raises(ValueError, match="cell c: shows text/html, allowed are figures and Markdown"):
        pages.slides_of(deck({"text/html": "<table></table>"}))
