"""The part of the configuration that is this machine's: who logs in and how, in which account notebooks run."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from dlpar.classroom.hub import accounts, proxy
from dlpar.classroom.hub.classroom import classroom
from dlpar.classroom.hub.login import ListedLogin
from dlpar.classroom.hub.priority import Proxy
from dlpar.classroom.hub.settings import LISTED, SYSTEM, Settings
from dlpar.config.paths import private_folder, runtime_folder
from dlpar.jobs.slots import USUAL, is_kept

PATIENCE = 300
"""Seconds a student may wait for her server, in line with the others."""


def configure(c: Any, settings: Settings) -> None:
    """Fill JupyterHub's configuration `c`."""
    folder = private_folder(Path(settings.folder))
    _listen(c, settings)
    c.JupyterHub.db_url = f"sqlite:///{_database(folder / 'hub.sqlite')}"
    c.JupyterHub.cookie_secret_file = str(folder / "cookie_secret")
    c.ConfigurableHTTPProxy.pid_file = str(folder / "proxy.pid")
    c.ConfigurableHTTPProxy.auth_token = secrets.token_hex(32)
    c.Spawner.start_timeout = PATIENCE
    c.JupyterHub.concurrent_spawn_limit = 0  # our spawners queue; JupyterHub's limit would turn students away
    c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}  # show the page of progress at once
    secure = "https" if settings.certificate else "http"
    to_proxy = f"{secure}://{_reached_at(settings.address)}:{settings.port}"
    page = f"http://127.0.0.1:{_free_port()}"
    whose = None if settings.accounts == LISTED else "nobody"
    slots = _give_out_slots(c, settings)
    classroom(c, settings.labs, settings.teachers, settings.idle, to_proxy, page, whose, slots)
    everybody = {*settings.users, *settings.teachers}
    if settings.accounts == LISTED:
        c.JupyterHub.authenticator_class = ListedLogin
        c.ListedLogin.file = str(folder / "passwords")
        c.ListedLogin.allowed_users = everybody
        c.JupyterHub.spawner_class = accounts.OneAccount
        c.OneAccount.home_dir_template = str(folder / "users" / "{username}")
    else:
        c.JupyterHub.authenticator_class = "pam"
        c.PAMAuthenticator.open_sessions = False
        c.PAMAuthenticator.allowed_users = {name for name in everybody if not name.startswith("@")}
        c.PAMAuthenticator.allowed_groups = {name[1:] for name in everybody if name.startswith("@")}
        c.JupyterHub.spawner_class = accounts.OwnAccount


def _database(file: Path) -> Path:
    """The hub's database, with its changes in a log beside it: the hub does nothing else while it waits for a disk."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode=WAL")
    return file


def _give_out_slots(c: Any, settings: Settings) -> str:
    """A keeper of job slots beside the hub, unless one is at work here already; its socket, empty without a limit."""
    named = os.environ.get("DLPAR_SLOTS")
    if settings.slots == 0 or named == "":
        return ""
    usual = USUAL if settings.accounts == SYSTEM else runtime_folder() / "slots"
    path = Path(named or usual)
    if is_kept(path):
        return str(path)
    teachers = ["nobody", *(name for name in settings.teachers if not name.startswith("@"))]
    command = [
        sys.executable,
        "-P",
        "-m",
        "dlpar.cli",
        "slots",
        f"--socket={path}",
        f"--ranks={settings.slots}",
    ]
    if settings.accounts == SYSTEM:
        command.append(f"--teachers={','.join(teachers)}")  # nobody: the teacher's page
    c.JupyterHub.services.append({"name": "job-slots", "command": command, "display": False})
    return str(path)


def _listen(c: Any, settings: Settings) -> None:
    """One port for the world, the others on loopback and guarded by tokens."""
    host = f"[{settings.address}]" if ":" in settings.address else settings.address
    c.JupyterHub.bind_url = f"{'https' if settings.certificate else 'http'}://{host}:{settings.port}"
    c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{_free_port()}"
    c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{_free_port()}"
    c.ConfigurableHTTPProxy.command = proxy.command()
    c.JupyterHub.proxy_class = Proxy
    if settings.certificate:
        c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = settings.certificate, settings.key


def _reached_at(address: str) -> str:
    """How a process of this machine reaches who listens at an address."""
    found = ipaddress.ip_address(address)
    if found.is_unspecified:
        return "127.0.0.1"
    return f"[{address}]" if found.version == 6 else address


def _free_port() -> int:
    """A loopback port nobody listens at now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
