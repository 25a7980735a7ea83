"""Two real Unix accounts for a test, and a view of this machine in which they can run its Python."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NEEDED = ("useradd", "userdel", "chpasswd", "unshare", "nsenter", "setpriv", "mount")


def missing() -> str | None:
    """Why accounts cannot be made here; None if they can."""
    if os.getuid() != 0:
        return "two real accounts need root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    lacking = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if lacking:
        return f"this machine has no {', '.join(lacking)}"
    if not Path("/etc/pam.d/login").exists():
        return "this machine has no PAM service `login`"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        return "this container may not make mount namespaces"
    return None


def make(name: str, home: Path, password: str) -> None:
    """A new account that can log in."""
    subprocess.run(["useradd", "--home-dir", home, "--create-home", "--shell", "/bin/sh", name], check=True)
    subprocess.run(["chpasswd"], input=f"{name}:{password}", text=True, check=True)


def remove(name: str) -> None:
    """The account, its home and its processes."""
    with suppress(KeyError):
        shutil.rmtree(f"/run/dlpar/users/{pwd.getpwnam(name).pw_uid}", ignore_errors=True)
    subprocess.run(["userdel", "--remove", "--force", name], capture_output=True)


def opened() -> str:
    """Shell commands that, in a mount namespace of their own, open the way to this Python and to dlpar.

    Root's Python often lies in root's home, which is closed to others. Here, and here only, such a folder is
    replaced by an empty one with nothing in it but what is needed.
    """
    needed = {Path(p).resolve() for p in (sys.base_prefix, sys.prefix, ROOT)}
    closed = {folder for path in needed for folder in path.parents if not folder.stat().st_mode & 0o001}
    commands = ["mount --make-rprivate /"]
    for folder in closed:
        kept = {folder / path.relative_to(folder).parts[0] for path in needed if path.is_relative_to(folder)}
        for number, path in enumerate(sorted(kept)):
            commands += [f"mkdir -p $SPARE/{number}", f"mount --bind {path} $SPARE/{number}"]
        commands += [f"mount -t tmpfs -o mode=755 tmpfs {folder}"]
        for number, path in enumerate(sorted(kept)):
            commands += [f"mkdir {path}", f"mount --bind $SPARE/{number} {path}", f"umount $SPARE/{number}"]
    return " && ".join([*commands, "rm -d $SPARE/* $SPARE"])


def in_namespace(*command: str) -> list[str]:
    """`command` in a namespace with the way opened."""
    return ["unshare", "-m", "sh", "-c", f'SPARE=$(mktemp -d) && {opened()}; exec "$@"', "sh", *command]


def become(pid: int, name: str, *command: str) -> list[str]:
    """`command` as an account, in the namespace of a process."""
    account = ["setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups"]
    return ["nsenter", "-t", str(pid), "-m", *account, *command]
