"""``dlpar hub``: a classroom's JupyterHub on this machine."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def hub(
    users: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Who may log in: names with commas; @GROUP with system accounts."),
    ] = "student",
    teachers: Annotated[
        str, typer.Option(metavar="NAMES", help="Who may open the teacher's page.")
    ] = "teacher",
    accounts: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="listed: a list of passwords, to try it on loopback; system: this "
            "machine's accounts, each isolated from the others, which needs root.",
        ),
    ] = "listed",
    address: Annotated[str, typer.Option(metavar="IP", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[str, typer.Option(metavar="N", help="1 to 65535.")] = "8000",
    certificate: Annotated[str | None, typer.Option(metavar="FILE", help="For TLS, in PEM.")] = None,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="For TLS, in PEM.")] = None,
    labs: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="The shared labs; default: this checkout's. Of labs with solutions "
            "students get the version without.",
        ),
    ] = None,
    idle: Annotated[
        str,
        typer.Option(metavar="MINUTES", help="After which a server without activity or a running job ends."),
    ] = "60",
    slots: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Ranks of all users together that may run at the same time; 0: no limit; "
            "default: 2 for each core, at most 200.",
        ),
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="The hub's own, private; default: dlpar/hub in your data folder, root's is below /var/lib.",
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="A jupyterhub_config.py to read last.")
    ] = None,
) -> int:
    """Start a JupyterHub for a class.

    Each user gets her own copy of the labs, which no update overwrites. On loopback unless told otherwise.
    Ctrl-C stops it. dlpar/classroom/hub/README.md says how to run it for a class, and what else it needs.
    """
    from dlpar.classroom.grading.release import usual_labs
    from dlpar.classroom.hub.settings import BadSettings, Settings
    from dlpar.cli import BadRequest
    from dlpar.jobs.slots import usual_slots

    if not port.isdecimal():
        raise BadRequest(f"--port: got {port!r}, allowed is a whole number from 1 to 65535")
    if not idle.isdecimal():
        raise BadRequest(f"--idle: got {idle!r}, allowed is a whole number of minutes from 1 to 10,080")
    if slots is not None and not slots.isdecimal():
        raise BadRequest(f"--slots: got {slots!r}, allowed is a whole number from 1 to 200, or 0: no limit")
    try:
        settings = Settings(
            accounts,
            _names(users),
            _names(teachers),
            address,
            int(port),
            os.path.abspath(labs or usual_labs()),
            os.path.abspath(folder or _usual_folder()),
            certificate and os.path.abspath(certificate),
            key and os.path.abspath(key),
            int(idle),
            usual_slots() if slots is None else int(slots),
            config and os.path.abspath(config),
        )
    except BadSettings as error:
        raise BadRequest(str(error)) from None
    return _start(settings)


def _start(settings) -> int:
    """Become JupyterHub; returns only where that cannot be."""
    from importlib.util import find_spec
    from pathlib import Path

    import dlpar.classroom.hub
    from dlpar.classroom.hub.settings import (
        LISTED,
        VARIABLE,
        NoProxy,
        passwords,
        proxy_command,
        without_solutions,
    )
    from dlpar.config.paths import private_folder

    if find_spec("jupyterhub") is None:
        print("dlpar hub: JupyterHub is not installed; `pip install 'dlpar[hub]'` brings it", file=sys.stderr)
        return 1
    try:
        proxy_command()
    except NoProxy as error:
        print(f"dlpar hub: {error}", file=sys.stderr)
        return 1
    own = private_folder(Path(settings.folder))
    settings = without_solutions(settings)
    print(f"labs: {settings.labs}; the hub's own folder: {own}")
    if settings.accounts == LISTED:
        everybody = sorted({*settings.users, *settings.teachers})
        known = passwords(own / "passwords", everybody)
        for name in everybody:
            print(f"  {name}: {known[name]}{'  (teacher)' if name in settings.teachers else ''}")
        print("All notebooks run in your own account: nothing keeps users from each other's files.")
    print(
        f"open {'https' if settings.certificate else 'http'}://{settings.address}:{settings.port}", flush=True
    )
    program = os.path.join(os.path.dirname(dlpar.classroom.hub.__file__), "jupyterhub_config.py")
    os.chdir(own)  # the hub imports nothing from here (-P)
    os.environ[VARIABLE] = settings.to_json()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "jupyterhub", "-f", program])


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _usual_folder() -> str:
    if os.getuid() == 0:
        return "/var/lib/dlpar-hub"
    import platformdirs

    return os.path.join(platformdirs.user_data_dir("dlpar"), "hub")
