"""A real hub on loopback in a folder of its own, and students who use it by its API."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dlpar.classroom.hub.classroom import free_port

ADMIN = """
c = get_config()
c.JupyterHub.services.append({"name": "check", "api_token": "%s"})
c.JupyterHub.load_roles.append({"name": "check", "services": ["check"],
    "scopes": ["admin:users", "admin:servers", "access:servers", "tokens"]})
"""


def run_apart(work: Coroutine[Any, Any, Any]) -> Any:
    """`asyncio.run` on another thread: a browser's tests leave an event loop running on theirs."""
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, work).result()


def no_proxy() -> str:
    """Why no hub can be started here for want of a proxy; empty where there is one."""
    from dlpar.classroom.hub.classroom import NoProxy, proxy_command

    try:
        proxy_command()
    except NoProxy as error:
        return str(error)
    return ""


class Hub:
    """``dlpar hub`` with an administrator's token.

    Parameters
    ----------
    folder : Path
        For all it keeps; its ``labs`` are the shared labs.
    flags : str
        Of ``dlpar hub``.
    within : callable
        Makes of a command one that runs it in other circumstances.
    port : int, optional
        Of the proxy; default: a free one.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        within: Callable[..., list[str]] = lambda *words: [*words],
        port: int | None = None,
    ) -> None:
        self.folder, self.log, self.token = folder, folder / "hub.log", secrets.token_hex(16)
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        given = next((flag for flag in flags if flag.startswith("--teachers=")), "--teachers=teacher")
        self.teachers = given.partition("=")[2].split(",")
        (folder / "more.py").write_text(ADMIN % self.token)
        command = [
            sys.executable,
            "-m",
            "dlpar.cli",
            "hub",
            f"--port={self.port}",
            f"--labs={folder / 'labs'}",
            f"--folder={folder / 'hub'}",
            f"--config={folder / 'more.py'}",
            *flags,
        ]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(within(*command), stdout=log, stderr=log, start_new_session=True)

    def wait_until_up(self, timeout: float = 60) -> None:
        """Return once the hub answers; raise with its log if it does not in `timeout` seconds."""
        end = time.monotonic() + timeout
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/hub/health", timeout=2)
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the hub did not start:\n{self.log.read_text()}")

    def password(self, name: str) -> str:
        """The students' or the teachers', whichever a listed name has."""
        students, teachers = (self.folder / "hub" / "class-passwords").read_text().split()
        return teachers if name in self.teachers else students

    def ask(self, path: str, method: str = "GET", body: Any = None, token: str | None = None) -> Any:
        """What a path under the hub's address answers, as JSON; raises `urllib.error.HTTPError`."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {token or self.token}"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def status(self, path: str, method: str = "GET", body: Any = None, token: str | None = None) -> int:
        """The status a path answers with."""
        try:
            self.ask(path, method, body, token)
        except urllib.error.HTTPError as error:
            return error.code
        except ValueError:  # a page, not JSON
            pass
        return 200

    def token_of(self, name: str) -> str:
        """A new token with all of a user's own rights."""
        return self.ask(f"/hub/api/users/{name}/tokens", "POST", {"note": "test"})["token"]

    def start_server(self, name: str) -> None:
        """Ask for a user's server; returns at once."""
        self.ask(f"/hub/api/users/{name}/server", "POST")

    def is_ready(self, name: str) -> bool:
        """Whether a user's server runs and answers."""
        server = self.ask(f"/hub/api/users/{name}")["servers"].get("")
        return bool(server and server["ready"])

    def stop(self) -> None:
        """End the hub and every server it has started."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


class Kernel:
    """A kernel on a user's server."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub, self.name = hub, name
        self.id = hub.ask(f"/user/{name}/api/kernels", "POST", {"name": "python3"})["id"]

    def run(self, code: str, timeout: float = 60.0) -> str:
        """Run a cell and return what it printed; raises `RuntimeError` with what the cell raised."""
        return run_apart(self._run(code, timeout))

    async def _run(self, code: str, timeout: float) -> str:
        from tornado.httpclient import HTTPRequest
        from tornado.websocket import websocket_connect

        address = f"{self.hub.url.replace('http', 'ws')}/user/{self.name}/api/kernels/{self.id}/channels"
        asked = HTTPRequest(address, headers={"Authorization": f"token {self.hub.token}"})
        socket_ = await websocket_connect(asked, ping_interval=20)
        ours, printed = uuid.uuid4().hex, []
        header = {
            "msg_id": ours,
            "msg_type": "execute_request",
            "version": "5.3",
            "username": "",
            "session": ours,
        }
        content = {
            "code": code,
            "silent": False,
            "store_history": False,
            "user_expressions": {},
            "allow_stdin": False,
        }
        message = {
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
        }
        await socket_.write_message(json.dumps(message))
        try:
            async with asyncio.timeout(timeout):
                while (heard := await socket_.read_message()) is not None:
                    if isinstance(heard, bytes):  # points for a figure nobody looks at
                        continue
                    told = json.loads(heard)
                    if told.get("parent_header", {}).get("msg_id") != ours:
                        continue
                    kind, said = told["msg_type"], told["content"]
                    if kind == "stream":
                        printed.append(said["text"])
                    elif kind == "error":
                        raise RuntimeError("\n".join(said["traceback"]))
                    elif kind == "status" and said["execution_state"] == "idle":
                        return "".join(printed)
                raise RuntimeError("the kernel's connection was closed")
        finally:
            socket_.close()
