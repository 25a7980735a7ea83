"""JupyterHub's configuration file, for the hub that ``dlpar hub`` starts."""

import json
import os

from dlpar.classroom.hub.classroom import VARIABLE, Settings, configure

settings = Settings(**json.loads(os.environ[VARIABLE]))
configure(get_config(), settings)  # noqa: F821  (JupyterHub runs this file, and has put its functions here)
if settings.more is not None:
    load_subconfig(settings.more)  # noqa: F821
