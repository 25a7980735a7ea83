"""Starting a student's server: in her own Unix account, or for a try in the hub's."""

from __future__ import annotations

import asyncio
import os
import pwd
import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from jupyterhub.utils import wait_for_http_server

from dlpar.classroom.hub.curtain import hide_others
from dlpar.config.paths import private_folder, runtime_folder
from dlpar.jobs.control_groups import cores

RUNTIME = Path("/run/dlpar/users")
"""Of each student's folder for sockets and live jobs: made by the hub, so that nobody can take its name."""

MOST_PROCESSES = 2048
"""Processes and threads of one student; a fork bomb ends there."""

START = 60
"""Seconds a server may take to answer once it is its turn."""


@cache
def turns() -> asyncio.Semaphore:
    """As many servers start at a time as there are cores; the other students wait in line, in order."""
    return asyncio.Semaphore(cores())


class InLine:
    """Waits for its turn to start, which lasts until the server answers."""

    async def start(self) -> tuple[str, int]:
        """Start the server; its address."""
        async with turns():
            address, port = await super().start()
            try:
                await wait_for_http_server(f"http://{address}:{port}{self.server.base_url}", timeout=START)
            except TimeoutError:
                pass  # JupyterHub asks once more, and tells the student
        return address, port


class OneAccount(InLine, SimpleLocalProcessSpawner):
    """Every server in the account that runs the hub, each in a folder of its own: nothing parts students."""

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """A home and a runtime folder for each name."""
        private_folder(Path(self.home_dir))
        mine = private_folder(runtime_folder() / f"hub-{self.user.name}")
        return super().user_env(env) | {"DLPAR_RUNTIME": str(mine)}


class OwnAccount(InLine, LocalProcessSpawner):
    """Every server in its student's own Unix account, which sees no process of another."""

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """With a runtime folder whose name nobody else can take."""
        mine = RUNTIME / self.user.name
        for folder in (RUNTIME.parent, RUNTIME):
            folder.mkdir(mode=0o755, exist_ok=True)
        account = pwd.getpwnam(self.user.name)
        mine.mkdir(mode=0o700, exist_ok=True)
        os.chown(mine, account.pw_uid, account.pw_gid)
        return super().user_env(env) | {"DLPAR_RUNTIME": str(mine)}

    def make_preexec_fn(self, name: str) -> Callable[[], Any]:
        """What the new process does before it becomes the student's."""
        become = super().make_preexec_fn(name)

        def prepare() -> None:
            hide_others()
            resource.setrlimit(resource.RLIMIT_NPROC, (MOST_PROCESSES, MOST_PROCESSES))
            become()

        return prepare
