"""Export decks to HTML and PDF that need no network:  python slides/export.py [--into FOLDER] [DECK ...]

Each deck is executed, each panel in it run, and every figure drawn as a picture by Chrome or Chromium.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell
from pages import HERE, Slide, figures, page, slides_of

from dlpar.cli.rehearse import BROWSERS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CELL = 120
"""Seconds a cell may take."""

WINDOW = {"width": 1280, "height": 720}

DRAW = """
async figures => {
  const LARGER = 1.15;  // than in a lab, for the back row
  const pictures = [];
  for (const [number, place] of [...document.querySelectorAll(".drawn")].entries()) {
    const {data, layout} = figures[number], [width, height] = [place.offsetWidth / LARGER, place.offsetHeight / LARGER];
    const sized = {...layout, width, height, autosize: false, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff"};
    pictures.push(await Plotly.toImage({data, layout: sized}, {format: "png", width, height, scale: 2.5}));
  }
  return pictures;
}
"""

OVERFLOWING = """
() => [...document.querySelectorAll("section")].flatMap((slide, number) =>
  slide.scrollHeight > slide.clientHeight || slide.scrollWidth > slide.clientWidth
  || [...slide.querySelectorAll(".drawn")].some(box => box.offsetHeight < 180) ? [number + 1] : [])
"""


def executed(deck: Path) -> Any:
    """The notebook `deck`, executed in its own folder; after each panel comes its picture."""
    notebook = nbformat.read(deck, 4)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "code" and "panel" in cell.metadata.get("tags", ()):
            cells.append(new_code_cell("panel.run()\npanel.wait(60)\npanel.picture()"))
    notebook.cells = cells
    where = {"metadata": {"path": str(deck.parent)}}
    quiet = ["--log-level=ERROR"]
    NotebookClient(
        notebook, timeout=CELL, store_widget_state=False, extra_arguments=quiet, resources=where
    ).execute()
    return notebook


def export(deck: Path, into: Path, browser: Browser) -> None:
    """Write ``NAME.html`` and ``NAME.pdf`` of a deck.

    Raises
    ------
    ValueError
        If something on a slide cannot be exported, does not fit, or asks for anything but the page itself.
    """
    notebook = executed(deck)
    title, slides = _title(notebook), slides_of(notebook)
    file = into / f"{deck.stem}.html"
    file.write_text(page(title, slides, _drawn(title, slides, browser)))
    shown, asked = browser.new_page(viewport=WINDOW), []
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(file.as_uri())
    if outside := [url for url in asked if not url.startswith(("file:", "data:"))]:
        raise ValueError(f"the page asks for {outside[0]}, allowed is nothing but the page itself")
    if full := shown.evaluate(OVERFLOWING):
        raise ValueError(f"slide {full[0]} holds more than fits")
    shown.pdf(path=into / f"{deck.stem}.pdf", prefer_css_page_size=True, print_background=True)
    shown.close()


def _title(notebook: Any) -> str:
    """The first heading."""
    headings = (c.source for c in notebook.cells if c.cell_type == "markdown" and c.source.startswith("# "))
    return next(headings).splitlines()[0].removeprefix("# ")


def _drawn(title: str, slides: list[Slide], browser: Browser) -> list[str]:
    """All figures as the data URLs of PNGs, each as large as the room its slide leaves it.

    PNG: as SVG, the hatched bars of a timeline make a PDF of tens of megabytes.
    """
    import plotly

    empty = browser.new_page(viewport=WINDOW, bypass_csp=True)
    empty.set_content(page(title, slides))
    empty.add_script_tag(path=Path(plotly.__file__).parent / "package_data" / "plotly.min.js")
    pictures = empty.evaluate(DRAW, figures(slides))
    empty.close()
    return pictures


def main(arguments: list[str] | None = None) -> int:
    """The command line; 2 if something cannot be exported."""
    parser = argparse.ArgumentParser(description="Export decks to HTML and PDF that need no network.")
    parser.add_argument(
        "decks", nargs="*", metavar="DECK", help="beginning of a deck's name, as 03 (default: all)"
    )
    parser.add_argument("--into", type=Path, default=HERE / "build", help="folder (default: slides/build)")
    chosen = parser.parse_args(arguments)
    every = sorted(HERE.glob("[0-9]*.ipynb"))
    if unknown := [name for name in chosen.decks if not any(deck.name.startswith(name) for deck in every)]:
        return _refuse(
            f"DECK: got {unknown[0]}, allowed is the beginning of one of {', '.join(d.stem for d in every)}"
        )
    decks = [deck for deck in every if not chosen.decks or deck.name.startswith(tuple(chosen.decks))]
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        return _refuse("Slides are drawn and printed by Chrome or Chromium, and there is none: install one.")
    chosen.into.mkdir(parents=True, exist_ok=True)
    return _export_all(decks, chosen.into, browser)


def _refuse(why: str) -> int:
    print(why, file=sys.stderr)
    return 2


def _export_all(decks: list[Path], into: Path, browser: str) -> int:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        os.environ["DLPAR_HOME"] = home  # runs made for pictures are not the user's own
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for deck in decks:
            began = time.monotonic()
            try:
                export(deck, into, chromium)
            except (CellExecutionError, ValueError) as error:
                return _refuse(f"{deck.name}: {error}")
            print(f"{into / deck.stem}.html and .pdf  ({time.monotonic() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
