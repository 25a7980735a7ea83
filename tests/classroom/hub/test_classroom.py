"""A hub on one machine: its job slots, and the end of all that it has started."""

from __future__ import annotations

import http.cookiejar
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from cli.program import program
from conftest import eventually

from classroom.hub.classroom import ADMIN, Hub, no_proxy
from classroom.hub.test_settings import settings
from dlpar.jobs.processes import kill, wait_gone
from dlpar.jobs.scratch import lock

pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: pip install 'dlpar[hub]'")
from traitlets.config import Config

from dlpar.classroom.hub.classroom import classroom, free_port, give_out_slots


@pytest.mark.parametrize(("slots", "named"), [(0, "/run/dlpar/slots"), (4, "")])
def test_without_a_limit_students_servers_find_no_keeper(slots, named, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_SLOTS", named)
    c = Config()
    c.JupyterHub.services = []
    given = give_out_slots(c, settings(tmp_path, slots=slots))
    assert c.JupyterHub.services == []
    classroom(c, str(tmp_path), ["grace"], slots=given)
    assert c.Spawner.environment.get_value({})["DLPAR_SLOTS"] == ""


@pytest.mark.skipif(bool(no_proxy()), reason=no_proxy())
def test_a_port_that_another_program_uses_is_refused_before_anybody_is_sent_there(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        told = program("hub", "--port", port, "--folder", str(tmp_path))
    assert told.returncode == 1 and "Address already in use" in told.stderr and port in told.stderr
    assert "password" not in told.stdout


@pytest.mark.skipif(bool(no_proxy()), reason=no_proxy())
def test_a_second_hub_in_the_folder_of_a_running_one_is_refused(tmp_path):
    held = lock(tmp_path / "lock")
    os.set_inheritable(held, True)  # as after the hub has become JupyterHub
    keeper = subprocess.Popen(["sleep", "600"], close_fds=False)
    os.close(held)
    try:
        told = program("hub", "--port", str(free_port()), "--folder", str(tmp_path))
    finally:
        keeper.kill()
        keeper.wait(10)
    assert told.returncode == 2 and "password" not in told.stdout
    assert f"--folder: got '{tmp_path}', allowed is a folder in which no other hub runs" in told.stderr


@pytest.mark.slow
@pytest.mark.skipif(bool(no_proxy()), reason=no_proxy())
def test_who_is_no_longer_on_the_list_is_nobody_and_who_no_longer_teaches_is_a_student(tmp_path, own_folders):
    (tmp_path / "labs").mkdir()
    first = Hub(tmp_path, "--users=ada,bob", "--teachers=grace,hal", "--slots=0")
    try:
        first.wait_until_up()
        assert [log_in(first, name) for name in ("ada", "bob", "grace", "eve")] == [200, 200, 200, 403]
        tokens = {name: first.token_of(name) for name in ("ada", "grace", "hal")}
    finally:
        first.stop()
    later = Hub(tmp_path, "--users=bob,hal", "--teachers=eve", "--slots=0")
    try:
        later.wait_until_up()
        assert [log_in(later, name) for name in ("ada", "bob", "grace", "hal", "eve")] == [
            403,
            200,
            403,
            200,
            200,
        ]
        page = {name: later.status("/services/teacher/class", token=tokens[name]) for name in tokens}
        users = {name: later.status("/hub/api/users", token=tokens[name]) for name in tokens}
        assert {*page.values(), *users.values()} == {403}, (page, users)
        assert later.status("/services/teacher/class", token=later.token_of("eve")) == 200
    finally:
        later.stop()


def log_in(hub: Hub, name: str) -> int:
    """Log in by the form; the status of what comes."""
    browser = urllib.request.build_opener(
        urllib.request.HTTPCookieProcessor(jar := http.cookiejar.CookieJar())
    )
    browser.open(f"{hub.url}/hub/login", timeout=10).read()
    xsrf = next(cookie.value for cookie in jar if cookie.name == "_xsrf")
    fields = {"username": name, "password": hub.password(name), "_xsrf": xsrf}
    try:
        form = urllib.parse.urlencode(fields).encode()
        return browser.open(f"{hub.url}/hub/login?next=/hub/home", form, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code


ONE_CRASHES = """
def crash(spawner):
    if spawner.user.name == "eve":
        spawner.cmd = ["false"]
c.Spawner.pre_spawn_hook = crash
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(no_proxy()), reason=no_proxy())
def test_a_server_that_crashes_holds_up_nobody_and_another_goes_on_with_the_next_hub(
    tmp_path, own_folders, monkeypatch
):
    """As after a crash of the hub: her server runs, and another program has the pid of the proxy."""
    (tmp_path / "labs").mkdir()
    monkeypatch.setattr("classroom.hub.classroom.ADMIN", ADMIN + ONE_CRASHES)
    first = Hub(tmp_path, "--users=ada,eve", "--teachers=", "--slots=0")
    other = subprocess.Popen(["sleep", "600"])
    try:
        first.wait_until_up()
        began = time.monotonic()
        for name in ("eve", "ada"):
            first.start_server(name)
        eventually(lambda: first.is_ready("ada"), 50, "ada's server is up")
        eventually(lambda: not first.ask("/hub/api/users/eve")["servers"], 50, "eve's start has failed")
        assert time.monotonic() - began < 50
        token = first.token_of("ada")
        first.process.kill()
        first.process.wait(10)
        (tmp_path / "hub" / "jupyterhub-proxy.pid").write_text(str(other.pid))
        later = Hub(tmp_path, "--users=ada,eve", "--teachers=", "--slots=0", port=first.port)
        try:
            later.wait_until_up()
            eventually(lambda: later.is_ready("ada"), 30, "the next hub knows of her server")
            assert later.ask("/user/ada/api/status", token=token)["kernels"] == 0
            assert other.poll() is None
        finally:
            later.stop()
    finally:
        other.kill()
        first.process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_of_an_earlier_hub_only_processes_that_are_servers_are_known():
    from dlpar.classroom.hub.classroom import OwnAccount

    server = "import time; time.sleep(600)  # jupyterhub.singleuser"
    for command, is_known in ((["sleep", "600"], False), ([sys.executable, "-c", server], True)):
        with subprocess.Popen(command) as process:
            try:
                eventually(lambda: psutil.Process(process.pid).cmdline() == command, 10, "it runs")
                spawner = OwnAccount()
                spawner.load_state({"pid": process.pid})
                assert (spawner.pid == process.pid) == is_known
                spawner.load_state({})
            finally:
                process.kill()


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
