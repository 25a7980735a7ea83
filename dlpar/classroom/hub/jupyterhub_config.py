"""What JupyterHub reads when ``dlpar hub`` starts it."""

from __future__ import annotations

from dlpar.classroom.hub.machine import configure
from dlpar.classroom.hub.priority import go_first
from dlpar.classroom.hub.settings import Settings

go_first()
given = globals()  # where JupyterHub puts the functions of its configuration files
settings = Settings.from_environment()
configure(given["get_config"](), settings)
if settings.more is not None:
    given["load_subconfig"](settings.more)
