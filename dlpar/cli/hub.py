"""``dlpar hub``: a classroom's JupyterHub on this machine."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

import dlpar.classroom.hub as home
from dlpar.classroom.grading.release import usual_labs
from dlpar.classroom.hub import settings as hub_settings
from dlpar.classroom.hub.settings import Settings, proxy_command
from dlpar.cli import Failed
from dlpar.config.paths import private_folder
from dlpar.jobs.slots import MOST, usual_slots


def hub(
    users: str = "student",
    teachers: str = "teacher",
    accounts: str = "listed",
    address: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    certificate: str | None = None,
    key: str | None = None,
    labs: str | None = None,
    idle: Annotated[int, typer.Option(min=1, max=10_080)] = 60,
    slots: Annotated[int | None, typer.Option(min=0, max=MOST)] = None,
    folder: str | None = None,
    config: str | None = None,
) -> int:
    """Start a JupyterHub for a class.

    Each user gets her own copy of the labs, which no update overwrites. On loopback unless told otherwise.
    Ctrl-C stops it. dlpar/classroom/hub/README.md says how to run it for a class, and what else it needs.

    Parameters
    ----------
    users : NAMES
        Users who may log in: names with commas; @GROUP with system accounts.
    teachers : NAMES
        Users who may open the teacher's page.
    accounts : KIND
        listed: a list of passwords, to try it on loopback; system: this machine's accounts, each isolated
        from the others, which needs root.
    address : IP
        Where to listen.
    port : N
        1 to 65535.
    certificate : FILE
        For TLS, in PEM.
    key : FILE
        For TLS, in PEM.
    labs : FOLDER
        The shared labs; default: this checkout's. Of labs with solutions students get the version without.
    idle : MINUTES
        A server ends after so long without activity or a running job.
    slots : N
        Ranks of all users together that may run at the same time; 0: no limit; default: 2 for each core,
        at most 200.
    folder : FOLDER
        The hub's own, private; default: dlpar/hub in your data folder, root's is below /var/lib.
    config : FILE
        A jupyterhub_config.py to read last.
    """
    settings = Settings(
        accounts=accounts,
        users=_names(users),
        teachers=_names(teachers),
        address=address,
        port=port,
        labs=os.path.abspath(labs or usual_labs()),
        folder=os.path.abspath(folder or _usual_folder()),
        certificate=certificate and os.path.abspath(certificate),
        key=key and os.path.abspath(key),
        idle=idle,
        slots=usual_slots() if slots is None else slots,
        more=config and os.path.abspath(config),
    )
    if find_spec("jupyterhub") is None:
        raise Failed("JupyterHub is not installed; `pip install 'dlpar[hub]'` brings it")
    proxy_command()  # refuses where there is none
    _become_hub(settings)
    return 0


def _become_hub(settings: Settings) -> None:
    """Say where everything is, and replace this process by JupyterHub."""
    own = private_folder(Path(settings.folder))
    settings = hub_settings.without_solutions(settings)
    print(f"labs: {settings.labs}; the hub's own folder: {own}")
    if settings.accounts == hub_settings.LISTED:
        everybody = sorted({*settings.users, *settings.teachers})
        known = hub_settings.passwords(own / "passwords", everybody)
        for name in everybody:
            print(f"  {name}: {known[name]}{'  (teacher)' if name in settings.teachers else ''}")
        print("All notebooks run in your own account: nothing keeps users from each other's files.")
    scheme = "https" if settings.certificate else "http"
    print(f"open {scheme}://{settings.address}:{settings.port}", flush=True)
    program = os.path.join(os.path.dirname(home.__file__), "jupyterhub_config.py")
    os.chdir(own)  # the hub imports nothing from here (-P)
    os.environ[hub_settings.VARIABLE] = settings.to_json()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "jupyterhub", "-f", program])


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _usual_folder() -> str:
    if os.getuid() == 0:
        return "/var/lib/dlpar-hub"
    return os.path.join(platformdirs.user_data_dir("dlpar"), "hub")
