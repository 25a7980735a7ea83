"""What ``dlpar hub`` was asked to be, checked before anything starts."""

from __future__ import annotations

import grp
import ipaddress
import json
import os
import pwd
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import dlpar
from dlpar.jobs.slots import MOST

VARIABLE = "DLPAR_HUB"
"""Environment variable in which the settings travel to JupyterHub's configuration."""

LISTED, SYSTEM = "listed", "system"
NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


class BadSettings(ValueError):
    """A hub that cannot be, or must not: one sentence with the flag, what was given and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """One hub on one machine.

    Attributes
    ----------
    accounts : str
        ``"listed"``: names of a list, a password each, all in the account that runs the hub: for a try on
        loopback.  ``"system"``: this machine's own accounts, by PAM; needs root.
    users, teachers : tuple of str
        Who may log in; with system accounts ``@GROUP`` is everybody in a Unix group.  Teachers are users.
    address, port : str and int
        Where the proxy listens; a port from 1 to 65535.
    labs : str
        Folder of the shared labs, which students only read.
    folder : str
        The hub's own, private to the account that runs it: database, cookie secret, log, passwords.
    certificate, key : str or None
        TLS, in PEM files.
    idle : int
        Minutes after which a notebook server without activity ends, at least 1; a running job is activity.
    slots : int
        Ranks of all users together that may run at the same time, 1 to 200; 0: no limit.
    more : str or None
        A jupyterhub_config.py read last, for what a site wants otherwise.
    """

    accounts: str
    users: tuple[str, ...]
    teachers: tuple[str, ...]
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
        """Refuse; raises :class:`BadSettings`."""
        if self.accounts not in (LISTED, SYSTEM):
            raise BadSettings(f"--accounts: got {self.accounts!r}, allowed is one of {LISTED}, {SYSTEM}")
        if not 1 <= self.port <= 65535:
            raise BadSettings(f"--port: got {self.port}, allowed is a whole number from 1 to 65535")
        if not 1 <= self.idle <= 10_080:
            raise BadSettings(
                f"--idle: got {self.idle}, allowed is a whole number of minutes from 1 to 10,080"
            )
        if not 0 <= self.slots <= MOST:
            raise BadSettings(
                f"--slots: got {self.slots}, allowed is a whole number from 1 to {MOST}, or 0: no limit"
            )
        if not Path(self.labs).is_dir():
            raise BadSettings(f"--labs: got {self.labs!r}, allowed is an existing folder of notebooks")
        for flag, file in (("--certificate", self.certificate), ("--key", self.key), ("--config", self.more)):
            if file is not None and not os.access(file, os.R_OK):
                raise BadSettings(f"{flag}: got {file!r}, allowed is a file that can be read")
        self._check_door()
        self._check_names()

    def _check_door(self) -> None:
        """No weak login off loopback: neither a list of passwords, nor any password in clear."""
        if (self.certificate is None) != (self.key is None):
            raise BadSettings("--certificate: got one of certificate and key, allowed is both or none")
        if not is_address(self.address):
            raise BadSettings(f"--address: got {self.address!r}, allowed is an IP address of this machine")
        if ipaddress.ip_address(self.address).is_loopback:
            return
        if self.accounts == LISTED:
            raise BadSettings(
                f"--address: got {self.address}, allowed with a list of passwords is loopback (127.0.0.1); "
                f"other machines need --accounts {SYSTEM}, --certificate and --key"
            )
        if self.certificate is None:
            raise BadSettings(
                f"--address: got {self.address}, allowed without --certificate and --key is loopback "
                "(127.0.0.1): a password must not cross a network in clear"
            )

    def _check_names(self) -> None:
        if self.accounts == SYSTEM and os.getuid() != 0:
            raise BadSettings(f"--accounts: got {SYSTEM}, allowed without root is {LISTED}")
        if not self.users and not self.teachers:
            raise BadSettings("--users: got nobody, allowed are names, such as ada,bob")
        for flag, names in (("--users", self.users), ("--teachers", self.teachers)):
            for name in names:
                _check_name(flag, name, self.accounts)

    def to_json(self) -> str:
        """For :meth:`from_environment`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Settings:
        """What ``dlpar hub`` hands to JupyterHub."""
        found = json.loads(os.environ[VARIABLE])
        return cls(**found | {"users": tuple(found["users"]), "teachers": tuple(found["teachers"])})


def _check_name(flag: str, name: str, accounts: str) -> None:
    if accounts == LISTED:
        if not NAME.fullmatch(name):
            allowed = "small letters, digits, - and _, 32 at most, with a letter or _ first"
            raise BadSettings(f"{flag}: got {name!r}, allowed are names of {allowed}")
        return
    try:
        account = grp.getgrnam(name[1:]) if name.startswith("@") else pwd.getpwnam(name)
    except KeyError:
        raise BadSettings(f"{flag}: got {name!r}, allowed are accounts of this machine, or @GROUP") from None
    if getattr(account, "pw_uid", None) == 0:
        raise BadSettings(f"{flag}: got {name!r}, allowed are accounts other than root")


def is_address(text: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def without_solutions(settings: Settings) -> Settings:
    """The same hub; if its labs are masters, on the students' version of them, made or updated beside its folder.

    Not inside, which nobody but the hub may read.
    """
    from dlpar.classroom.grading.release import is_master, release

    labs = Path(settings.labs)
    if not is_master(labs):
        return settings
    released = Path(f"{settings.folder}-labs")
    release(labs, released)
    released.chmod(0o755)
    return replace(settings, labs=str(released))


def usual_labs() -> Path:
    """The labs of this checkout."""
    return Path(dlpar.__file__).resolve().parent.parent / "labs"
