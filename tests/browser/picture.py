"""Make what shows the panel: its recording, its animation and its picture:  python tests/browser/picture.py

- ``dlpar/course/recordings/first_parallel_run``: the run that the panel of lab 00 plays until Run is pressed,
- ``labs/images/recording.png``: that panel while it plays, animated, for lab 00 before its first cell has run,
- ``labs/images/panel.png`` and ``running.png``: that panel after two runs, and during the second, for the README.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from playwright.sync_api import sync_playwright  # noqa: E402

from browser.jupyter import FLAGS, Jupyter, Notebook, Shown, find_browser  # noqa: E402
from dlpar import Run, launch  # noqa: E402
from dlpar.lab import presets  # noqa: E402

LAB = ROOT / "labs" / "00_first_parallel_run.ipynb"
IMAGES = ROOT / "labs" / "images"
RECORDING = ROOT / "dlpar" / "course" / "recordings" / "first_parallel_run"

EVERY, MOST, LASTS = 120, 24, 12
"""Milliseconds between frames at least, frames that are kept at most, and seconds of the recording, about."""

PLAYS = 3
"""Times the animation is played: nothing moves for ever beside a text."""


def record() -> None:
    """Run the preset of lab 00, and keep what the panel draws, without this machine's names."""
    run = launch(presets.first_run()).wait()
    shutil.rmtree(RECORDING, ignore_errors=True)
    RECORDING.mkdir(parents=True)
    for file in sorted(run.path.glob("*.jsonl")):
        kept = [json.dumps(short(json.loads(line)), separators=(",", ":")) for line in file.open()]
        (RECORDING / file.name).write_text("\n".join(kept) + "\n")
    for name in ("experiment.json", "summary.json"):
        (RECORDING / name).write_text(json.dumps(short(json.loads((run.path / name).read_text()))) + "\n")
    assert Run(RECORDING).status == "done"


def short(value: Any) -> Any:
    """A record in microseconds, without memory and without what names this machine."""
    if isinstance(value, dict):
        left_out = ("command", "memory", "pid")
        return {name: short(v) for name, v in value.items() if name not in left_out} | (
            {"host": "recorded"} if "host" in value else {}
        )
    if isinstance(value, list):
        return [short(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    """The chunks of a PNG: kind and data."""
    found, at = [], 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        found.append((png[at + 4 : at + 8], png[at + 8 : at + 8 + length]))
        at += 12 + length
    return found


def animated(frames: list[tuple[float, int, int, bytes]]) -> bytes:
    """Join PNGs to an animated one.

    Parameters
    ----------
    frames : list of (float, int, int, bytes)
        Seconds a frame is shown, where its corner lies in the first one, and its PNG; all of one colour type.
    """
    head = chunks(frames[0][3])[0][1]
    out = [b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", head), chunk(b"acTL", struct.pack(">II", len(frames), PLAYS))]
    number = 0
    for place, (seconds, x, y, png) in enumerate(frames):
        found = chunks(png)
        own = found[0][1]
        assert own[8:] == head[8:], "frames of two colour types"
        control = own[:8] + struct.pack(">IIHHBB", x, y, round(1000 * seconds), 1000, 0, 0)
        out.append(chunk(b"fcTL", struct.pack(">I", number) + control))
        data = b"".join(each for kind, each in found if kind == b"IDAT")
        out.append(chunk(b"fdAT", struct.pack(">I", number + 1) + data) if place else chunk(b"IDAT", data))
        number += 2 if place else 1
    return b"".join([*out, chunk(b"IEND", b"")])


def pictures() -> None:
    """Open lab 00 as a student does, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Jupyter(Path(folder))
        try:
            server.wait_until_up()
            browser = playwright.chromium.launch(executable_path=find_browser(), args=list(FLAGS))
            page = browser.new_page(viewport={"width": 1340, "height": 1100})
            page.goto(server.url)
            page.wait_for_function("window.jupyterapp?.commands.hasCommand('notebook:run-all-cells')")
            first = next(cell for cell in json.loads(LAB.read_text())["cells"] if cell["cell_type"] == "code")
            speed = max(0.5, round(Run(RECORDING).curve["seconds"].iloc[-1] / LASTS, 1))
            again = f"panel.replay(lab.presets.RECORDING, speed={speed})"
            notebook = Notebook(server, page, "lab", "".join(first["source"]), again)
            notebook.run_all()
            panel = notebook.panel()
            panel.wait_for("done", 60)
            panel.place.scroll_into_view_if_needed()
            notebook.command("notebook:run-all-below")
            (IMAGES / "recording.png").write_bytes(animated(frames_of(panel)))
            page.locator(".dlpar-predict input[type=text]").first.fill("4")
            page.keyboard.press("Tab")
            panel.run.click()
            panel.wait_for("launched", 120)
            panel.field("workers").fill("4")
            page.keyboard.press("Tab")
            panel.place.get_by_role("tab", name="Throughput").click()
            panel.run.click()
            (IMAGES / "running.png").write_bytes(animated(frames_of(panel)))
            page.wait_for_timeout(1000)
            panel.place.screenshot(path=IMAGES / "panel.png")
            browser.close()
        finally:
            server.stop()


def frames_of(panel: Shown) -> list[tuple[float, int, int, bytes]]:
    """The panel during a run, or while it plays one: the whole of it, then what moves."""
    panel.wait_for(" of ", 60)  # "step 3 of 150"
    panel.place.evaluate("panel => panel.scrollIntoView({ block: 'start' })")
    whole = panel.place.bounding_box()
    top, bottom = (panel.place.locator(name).bounding_box() for name in (".dlpar-progress", ".dlpar-caption"))
    assert whole and top and bottom
    x, y, moving, width = round(whole["x"]), round(whole["y"]), round(top["y"]), round(whole["width"])
    end = round(bottom["y"] + bottom["height"])
    taken = [(time.monotonic(), 0, panel.page.screenshot(clip=box(x, y, width, end - y)))]
    runs = True
    while runs:
        runs = " of " in panel.words.inner_text()
        panel.page.wait_for_timeout(EVERY)
        clip = box(x, moving, width, end - moving)
        taken.append((time.monotonic(), moving - y, panel.page.screenshot(clip=clip)))
    taken = taken[:: -(-len(taken) // MOST)] + taken[-1:]
    ends = [at for at, _, _ in taken[1:]] + [taken[-1][0] + 2.0]
    return [(end - at, 0, below, png) for end, (at, below, png) in zip(ends, taken)]


def box(x: int, y: int, width: int, height: int) -> Any:
    """A part of the page, as Playwright takes it."""
    return {"x": x, "y": y, "width": width, "height": height}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["DLPAR_HOME"] = home  # runs made for pictures are not the user's own
        if "--record" in sys.argv or not RECORDING.exists():
            record()
        pictures()
