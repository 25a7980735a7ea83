"""JupyterHub's configuration file, for the hub that ``dlpar hub`` starts."""

from dlpar.classroom.hub.classroom import configure
from dlpar.classroom.hub.settings import Settings

given = globals()  # JupyterHub puts the functions of its configuration files here
settings = Settings.from_environment()
configure(given["get_config"](), settings)
if settings.more is not None:
    given["load_subconfig"](settings.more)
