"""A hub on one machine: its job slots, and the end of all that it has started."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import eventually

from classroom.hub.classroom import Hub, no_proxy
from classroom.hub.test_settings import settings
from dlpar.jobs.processes import kill, wait_gone

pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: pip install 'dlpar[hub]'")
from traitlets.config import Config

from dlpar.classroom.hub.classroom import classroom, give_out_slots


@pytest.mark.parametrize(("slots", "named"), [(0, "/run/dlpar/slots"), (4, "")])
def test_without_a_limit_students_servers_find_no_keeper(slots, named, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_SLOTS", named)
    c = Config()
    c.JupyterHub.services = []
    given = give_out_slots(c, settings(tmp_path, slots=slots))
    assert c.JupyterHub.services == []
    classroom(c, str(tmp_path), ["grace"], slots=given)
    assert c.Spawner.environment.get_value({})["DLPAR_SLOTS"] == ""


STARTED = {
    "proxy": "configurable-http-proxy",
    "culler": "jupyterhub_idle_culler",
    "page": "dlpar.classroom.hub.teacher",
    "keeper": "dlpar.cli slots",
}
"""Words in the commands of all that a hub starts by itself."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.skipif(bool(no_proxy()), reason=no_proxy())
@pytest.mark.parametrize(("by", "is_up"), [("SIGKILL", False), ("SIGTERM", False), ("SIGTERM", True)])
def test_all_that_a_hub_has_started_ends_with_it_however_it_ends(
    by, is_up, tmp_path: Path, own_folders
) -> None:
    (tmp_path / "labs").mkdir()
    # As a shell starts a command in the background.
    in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    flags = ["--users=ada", "--teachers=", "--slots=2"]
    hub = Hub(tmp_path, *flags, within=lambda *words: [*in_background, *words])
    parts: dict[str, int] = {}

    def all_are_there() -> bool:
        for process in psutil.Process(hub.process.pid).children(recursive=True):
            with suppress(psutil.Error):  # it may end meanwhile
                words = " ".join(process.cmdline())
                parts.update({part: process.pid for part, name in STARTED.items() if name in words})
        return len(parts) == len(STARTED)

    try:
        eventually(
            all_are_there, 60, f"proxy, culler, page and keeper are there: {hub.log.read_text()[-2000:]}"
        )
        if is_up:  # JupyterHub heeds SIGTERM only then
            eventually(lambda: "JupyterHub is now running" in hub.log.read_text(), 60, "the hub is up")
        hub.process.send_signal(signal.Signals[by])
        hub.process.wait(20)
        assert wait_gone(list(parts.values()), 5) == [], f"left of {parts}"
    finally:
        hub.process.kill()
        kill(list(parts.values()))
