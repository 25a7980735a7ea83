"""A deck as a page and as a PDF: everything fits, nothing is fetched, and the panel has left its picture."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from importlib import import_module

import pytest
from browser.jupyter import find_browser

from slides.decks import ROOT, of_slides

DECK = "01_mapreduce"

pytestmark = [pytest.mark.slow, pytest.mark.browser]

NOT_WHOLE = """() => {
  const slide = document.querySelector("section.now"), frame = slide.getBoundingClientRect();
  const parts = [...slide.querySelectorAll("h1, h2, p, li, td, img")].filter(part => part.offsetParent);
  return parts.filter(part => {
    const box = part.getBoundingClientRect();
    return box.bottom > frame.bottom || box.right > frame.right || box.left < frame.left || box.top < frame.top;
  }).map(part => part.textContent || part.alt);
}"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    if not find_browser():
        pytest.skip("no Chrome or Chromium was found")
    into = tmp_path_factory.mktemp("slides")
    command = [sys.executable, str(ROOT / "slides" / "export.py"), DECK, "--into", str(into)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return into


@pytest.fixture(scope="module")
def page(exported, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 720})
    page.asked, page.wrong = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda said: page.wrong.append(said.text) if said.type == "error" else None)
    page.goto((exported / f"{DECK}.html").as_uri())
    yield page
    page.close()


def test_a_page_asks_for_nothing_but_itself_and_each_slide_fits_its_frame(page):
    for number in range(1, page.locator("section").count() + 1):
        assert page.locator("section:visible").count() == 1 and page.url.endswith(
            f"#{number}" if number > 1 else "l"
        )
        assert page.evaluate(NOT_WHOLE) == [], number
        page.keyboard.press("ArrowRight")
    assert {url.split(":")[0] for url in page.asked} <= {"file", "data"} and page.wrong == []
    assert len([url for url in page.asked if url.startswith("file")]) == 1


def test_a_panel_has_left_a_picture_of_its_run_that_says_what_it_shows(page):
    picture = page.locator("section.live img")
    assert picture.evaluate("image => image.naturalWidth") > 500
    assert re.match(
        r"In 200 of 200 steps the training loss fell from", unescape(picture.get_attribute("alt"))
    )


def test_the_pdf_has_a_page_for_each_slide(exported):
    pages = len(re.findall(rb"/Type\s*/Page\b", (exported / f"{DECK}.pdf").read_bytes()))
    assert pages == len(of_slides(f"{DECK}.ipynb"))


def test_where_there_is_no_browser_one_sentence_says_so(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "slides")
    monkeypatch.setenv("PATH", "")
    assert import_module("export").main([DECK]) == 2
    said = capsys.readouterr().err
    assert said == "Slides are drawn and printed by Chrome or Chromium, and there is none: install one.\n"
