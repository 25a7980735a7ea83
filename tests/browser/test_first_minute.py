"""What somebody sees who opens lab 00 for the first time, and how many keys lead to a run of her own."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from browser.jupyter import TOKEN, Shown
from dlpar import Run
from dlpar.lab import presets

LABS = Path(__file__).parents[2] / "labs"
LAB = "00_first_parallel_run.ipynb"

READY = (
    "[...jupyterapp.shell.widgets('main')].some(w => w.sessionContext?.session?.kernel?.status === 'idle')"
)
"""Keys that are pressed before JupyterLab has its kernel are lost."""


@pytest.fixture
def opened(jupyter, chromium):
    """A page that was just asked for lab 00, and the moment of that."""
    shutil.copytree(LABS, jupyter.folder, dirs_exist_ok=True)
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    began = time.monotonic()
    page.goto(f"http://127.0.0.1:{jupyter.port}/lab/tree/{LAB}?token={TOKEN}")
    yield page, began
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    page.close()


@pytest.mark.timed
def test_something_moves_in_seconds_and_two_keys_and_a_press_lead_to_a_run(opened):
    page, began = opened
    picture = page.locator(".jp-OutputArea img")
    picture.wait_for(timeout=60_000)
    page.wait_for_function("document.querySelector('.jp-OutputArea img').complete")
    moves = time.monotonic() - began
    box = picture.bounding_box()
    assert box["y"] + box["height"] / 2 < 800, "half of what moves is above the fold"

    page.wait_for_function(READY, timeout=60_000)
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    panel = Shown(page, page.locator(".dlpar-panel"))
    panel.run.click(timeout=60_000)
    panel.words.filter(has_text=re.compile("^(step|done)")).wait_for(timeout=60_000)
    own = time.monotonic() - began
    assert picture.count() == 0
    print(f"something moves after {moves:.1f} s, and a run of one's own after {own:.1f} s")
    assert moves < 10 and own < 15, f"moves after {moves:.1f} s, own run after {own:.1f} s"


def test_the_recording_in_lab_00_moves_ends_and_can_be_played():
    picture = (LABS / "images" / "recording.png").read_bytes()
    at = picture.index(b"acTL") + 4
    frames, plays = (int.from_bytes(picture[at + i : at + i + 4], "big") for i in (0, 4))
    assert frames >= 8 and 1 <= plays <= 5
    run = Run(presets.RECORDING)
    assert run.status == "done" and run.summary["accuracy"] > 0.9 and 3 < run.curve["seconds"].iloc[-1] < 30
    assert run.experiment == presets.first_run()
    kept = "".join(file.read_text() for file in presets.RECORDING.iterdir())
    assert '"command"' not in kept and "/tmp" not in kept
