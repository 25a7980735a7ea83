"""Names of a list with a password each, for a try on one machine: never off loopback."""

from __future__ import annotations

import os
import secrets
from hmac import compare_digest
from pathlib import Path
from typing import Any

from jupyterhub.auth import Authenticator
from traitlets import Unicode


class ListedLogin(Authenticator):
    """Compares with the lines ``name password`` of a file only its owner can read."""

    file = Unicode(help="The file.").tag(config=True)

    async def authenticate(self, handler: Any, data: dict[str, str]) -> str | None:
        """The name, if name and password are a line of the file."""
        known = read(Path(self.file)).get(data["username"])
        given = data["password"].encode()
        return data["username"] if known is not None and compare_digest(known.encode(), given) else None


def read(file: Path) -> dict[str, str]:
    """``{name: password}``; empty if there is no such file.

    Raises
    ------
    PermissionError
        If others than its owner can read it.
    """
    if not file.exists():
        return {}
    if file.stat().st_mode & 0o077:
        raise PermissionError(f"{file}: others can read it; chmod 600 it, and change the passwords")
    lines = [line.split(maxsplit=1) for line in file.read_text().splitlines()]
    return {name: rest[0].strip() for name, *rest in filter(None, lines) if rest}


def complete(file: Path, names: list[str]) -> dict[str, str]:
    """Give every name without a password a random one; returns ``{name: password}`` of all in the file."""
    known = read(file)
    known |= {name: secrets.token_urlsafe(9) for name in names if name not in known}
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as written:
        written.writelines(f"{name} {password}\n" for name, password in known.items())
    return known
