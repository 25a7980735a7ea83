"""A real JupyterLab on loopback with folders of its own, and a page of it to work in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlpar.cli.rehearse import BROWSERS

if TYPE_CHECKING:
    import psutil
    from playwright.sync_api import Locator, Page

FLAGS = (
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic",
    "--no-first-run", "--no-sandbox", "--disable-gpu", "--enable-precise-memory-info",
)  # fmt: skip
TOKEN = "browser-test"

WATCH_DRAWING = """
window.drawn = [];   // [run and curve, when it was on the screen, when its step ended]: one entry a point
window.frames = [];  // milliseconds between frames
const upTo = new Map();
window.shown = null; // title of the figure drawn last
document.addEventListener("dlpar:drawn", ({ detail }) => {
  window.shown = detail.title;
  for (const [key, trace] of detail.figure.traces) {
    if (!key.endsWith(" loss")) continue;
    const seconds = trace.data[trace.columns.indexOf("seconds")], last = upTo.get(key) ?? -1;
    for (const t of seconds) if (t > last) window.drawn.push([key, detail.at / 1000, t]);
    upTo.set(key, seconds.at(-1) ?? last);
  }
}, true);
window.appeared = null; // when JupyterLab had put a notebook on the page
const looking = setInterval(() => {
  if (!document.querySelector(".jp-CodeCell")) return;
  window.appeared = performance.now();
  clearInterval(looking);
}, 5);
let before = performance.now();
const frame = (now) => { window.frames.push(now - before); before = now; requestAnimationFrame(frame); };
requestAnimationFrame(frame);
"""


def find_browser() -> str | None:
    """Path of any Chrome or Chromium, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Jupyter:
    """The server; its kernels keep their runs in ``home``, the folder of the whole test session."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.log = (
            folder / "notebooks",
            Path(os.environ["DLPAR_HOME"]),
            folder / "jupyter.log",
        )
        self.folder.mkdir()
        settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
        from dlpar.classroom.hub.classroom import free_port  # here: `make test` only looks for a browser

        self.port = free_port()
        own = {
            "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }  # fmt: skip
        here = Path(__file__).resolve().parent
        environment = {**os.environ, **{name: str(folder / sub) for name, sub in own.items()}}
        environment |= {"PYTHONPATH": f"{here.parents[1]}{os.pathsep}{here}", "JUPYTER_PREFER_ENV_PATH": "1"}
        environment["JUPYTER_CONFIG_PATH"] = str(here.parents[1] / "labs/.jupyter")
        command = [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            "--ip=127.0.0.1",
            f"--port={self.port}",
            "--ServerApp.port_retries=0",
            f"--IdentityProvider.token={TOKEN}",
            f"--ServerApp.root_dir={self.folder}",
            "--LabApp.news_url=None",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--LabApp.expose_app_in_browser=True",
            "--LabApp.extension_manager=readonly",
            "--LanguageServerManager.autodetect=False",
        ]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def wait_until_up(self, timeout: float = 60) -> None:
        """Return once the server answers; raise with its log if it does not in `timeout` seconds."""
        end = time.monotonic() + timeout
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api?token={TOKEN}", timeout=2)
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"JupyterLab did not start:\n{self.log.read_text()}")

    def stop(self) -> None:
        """End the server and its kernels."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def newest_kernel(self) -> psutil.Process:
        """The kernel started last."""
        import psutil

        return max(psutil.Process(self.process.pid).children(), key=lambda child: child.create_time())

    @property
    def url(self) -> str:
        """Where the lab opens."""
        return f"http://127.0.0.1:{self.port}/lab?token={TOKEN}"

    def write(self, name: str, *cells: str) -> None:
        """Write notebook `name` with code `cells`."""
        found = [
            {
                "cell_type": "code",
                "id": f"c{i}",
                "source": c,
                "metadata": {},
                "outputs": [],
                "execution_count": None,
            }
            for i, c in enumerate(cells)
        ]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        content = {"cells": found, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        (self.folder / f"{name}.ipynb").write_text(json.dumps(content))


class Notebook:
    """One notebook, open in the page."""

    def __init__(self, jupyter: Jupyter, page: Page, name: str, *cells: str) -> None:
        self.page, self.name = page, name
        self.widget = f"[...jupyterapp.shell.widgets('main')].find(w => w.context?.path === '{name}.ipynb')"
        jupyter.write(name, *cells)
        self.command("docmanager:open", {"path": f"{name}.ipynb"})
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until the notebook is open, in front, and its kernel idle."""
        kernel = f"{self.widget}?.sessionContext?.session?.kernel"
        self.page.wait_for_function(f"{kernel}?.status === 'idle'", timeout=40_000)
        self.page.evaluate(f"void jupyterapp.shell.activateById({self.widget}.id)")
        self.page.wait_for_function(f"jupyterapp.shell.currentWidget === {self.widget}")

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Start one of JupyterLab's commands."""
        self.page.evaluate(
            "([name, args]) => void jupyterapp.commands.execute(name, args)", [name, arguments or {}]
        )

    def save(self) -> None:
        """Save the notebook, outputs included."""
        self.page.evaluate(f"{self.widget}.context.save()")

    def restart_kernel(self) -> None:
        """Restart the kernel; returns at once."""
        self.page.evaluate(f"void {self.widget}.sessionContext.restartKernel()")

    def run_all(self) -> None:
        """Run all cells; returns at once."""
        self.command("notebook:run-all-cells")

    def panel(self, number: int = 0) -> Shown:
        """A panel on the page, drawn."""
        place = self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .dlpar-panel").nth(number)
        place.locator(".js-plotly-plot .main-svg").first.wait_for(timeout=40_000)
        return Shown(self.page, place)

    def close(self) -> None:
        """End the kernel and close the notebook."""
        close = "async w => { await w.sessionContext.shutdown(); await w.context.save(); w.close(); }"
        self.page.evaluate(f"({close})({self.widget})")


class Shown:
    """A panel as its reader sees it."""

    def __init__(self, page: Page, place: Locator) -> None:
        self.page, self.place = page, place
        self.run, self.stop, self.clear = (place.locator(f".dlpar-{n}") for n in ("run", "stop", "clear"))
        self.words, self.facts, self.message = (
            place.locator(f".dlpar-{n}") for n in ("words", "facts", "message")
        )
        self.runs = place.locator(".dlpar-runs tbody th")
        self.gone = place.locator(".dlpar-gone:visible")

    def field(self, name: str) -> Locator:
        """The control labelled `name`."""
        return self.place.get_by_label(name, exact=True).locator("visible=true")

    def says(self) -> str:
        """The sentence under the figure in front."""
        return self.place.locator(".dlpar-caption").inner_text()

    def tab(self, name: str) -> None:
        """Bring a figure to the front, and wait until it is drawn."""
        self.page.evaluate("window.shown = null")
        self.place.get_by_role("tab", name=name).click()
        self.page.wait_for_function("title => window.shown === title", arg=name)

    def begin(self) -> None:
        """Press Run, and wait until the run has begun: until then the panel describes the run before."""
        self.run.click()
        self.place.locator(".dlpar-run[disabled]").wait_for()

    def steps(self) -> int:
        """Steps done, as the panel says."""
        said = self.words.inner_text().removeprefix("done: ").removeprefix("step ")
        digits = said.split(" ")[0].replace(",", "")
        return int(digits) if digits.isdigit() else 0

    def wait_for(self, words: str, seconds: float = 20) -> None:
        """Wait until the line beside the bar contains `words`."""
        self.words.filter(has_text=words).wait_for(timeout=seconds * 1000)

    def wait_for_steps(self, steps: int, seconds: float = 20) -> int:
        """Wait until the panel says that at least `steps` are done; returns how many."""
        end = time.monotonic() + seconds
        while (done := self.steps()) < steps:
            assert time.monotonic() < end, (
                f"only {done} of {steps} steps after {seconds} s: {self.words.inner_text()!r}"
            )
            self.page.wait_for_timeout(50)
        return done
