"""A real JupyterLab on loopback with folders of its own, and a browser that looks at it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
QUIET = (
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic",
    "--no-first-run", "--no-sandbox", "--disable-gpu", "--enable-precise-memory-info",
)  # fmt: skip
TOKEN = "browser-test"


def find_browser() -> str | None:
    """Path of any Chrome or Chromium, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Jupyter:
    """The server; notebooks are written into ``folder`` and opened by URL."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "notebooks"
        self.folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        own = {
            "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython", "DLPAR_HOME": "home", "DLPAR_RUNTIME": "local",
        }  # fmt: skip
        environment = {**os.environ, **{name: str(folder / sub) for name, sub in own.items()}}
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        self.log = folder / "jupyter.log"
        command = [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={self.port}",
            "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={self.folder}",
            "--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly",
        ]  # fmt: skip
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def wait_until_up(self, timeout: float = 40) -> None:
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

    def notebook(self, name: str, *cells: str) -> str:
        """Write a notebook with code `cells`; returns the URL that opens it."""
        found = [
            {"cell_type": "code", "id": f"c{i}", "source": c, "metadata": {}, "outputs": [], "execution_count": None}
            for i, c in enumerate(cells)
        ]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        content = {"cells": found, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        (self.folder / f"{name}.ipynb").write_text(json.dumps(content))
        return f"http://127.0.0.1:{self.port}/doc/tree/{name}.ipynb?token={TOKEN}"
