"""The part of JupyterHub's configuration that makes it a classroom, on any kind of hub.

``dlpar hub``, The Littlest JupyterHub and Zero to JupyterHub all call :func:`classroom`; see README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

MAY_SEE_JOBS = "custom:dlpar:jobs"
"""Scope of the teacher's page in students' servers: nothing but their jobs, offers and shared predictions."""

AT_REST = 300
"""Seconds between a notebook server's reports of activity."""


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
        Names that may open the teacher's page.
    idle : float
        Minutes without activity after which a notebook server is stopped.
    proxy : str
        Address of the hub's proxy as the teacher's service sees it.
    page : str
        Address of the teacher's service as the proxy sees it.
    account : str, optional
        Unix account for the services, which need no rights of their own; default: the hub's.
    slots : str, optional
        Socket of the keeper of job slots, for students' servers and the teacher's service; empty: no limit;
        default: the machine's, if it has one.
    """
    python = [sys.executable, "-P", "-m"]  # -P: never import from the folder one happens to be in
    limit = {} if slots is None else {"DLPAR_SLOTS": slots}
    report = str(int(min(AT_REST, 60 * idle / 4)))
    c.Spawner.cmd = [*python, "dlpar.classroom.hub.student"]
    c.Spawner.default_url = "/lab"
    c.Spawner.environment.update({"DLPAR_LABS": labs, "JUPYTERHUB_ACTIVITY_INTERVAL": report} | limit)
    means = "List and stop students' jobs, offer them an experiment, read what they share"
    c.JupyterHub.custom_scopes.update({MAY_SEE_JOBS: {"description": means}})
    culler = f"jupyterhub_idle_culler --timeout={60 * idle:.0f} --cull-every={min(60 * idle / 2, 300):.0f}"
    services = [
        {"name": "idle-culler", "command": [*python, *culler.split()]},
        {
            "name": "teacher", "command": [*python, "dlpar.classroom.hub.teacher"], "url": page,
            "display": True, "oauth_no_confirm": True, "environment": {"DLPAR_HUB_PROXY": proxy, **limit},
        },
    ]  # fmt: skip
    user = {} if account is None else {"user": account}
    c.JupyterHub.services.extend([service | user for service in services])
    c.JupyterHub.load_groups.update({"teachers": {"users": sorted(teachers)}})
    c.JupyterHub.load_roles.extend([
        {"name": "idle-culler", "services": ["idle-culler"],
         "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"]},
        {"name": "teacher-page", "services": ["teacher"],
         "scopes": ["list:users", "read:servers", MAY_SEE_JOBS]},
        {"name": "teacher", "groups": ["teachers"],
         "scopes": ["self", "access:services!service=teacher", "admin-ui", "list:users", "servers"]},
    ])  # fmt: skip
