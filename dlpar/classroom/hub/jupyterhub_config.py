"""JupyterHub's configuration file, for the hub that ``dlpar hub`` starts."""

import json
import os

from dlpar.classroom.hub.classroom import configure
from dlpar.classroom.hub.settings import VARIABLE, Settings

given = globals()  # JupyterHub puts the functions of its configuration files here
settings = Settings(**json.loads(os.environ[VARIABLE]))
configure(given["get_config"](), settings)
if settings.more is not None:
    given["load_subconfig"](settings.more)
