"""An extension of a student's Jupyter server: her jobs, for the teacher's page, and as activity for the culler."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.utils import url_path_join
from jupyterhub.services.auth import HubAuth
from jupyterhub.utils import utcnow
from tornado.ioloop import PeriodicCallback
from tornado.web import HTTPError, RequestHandler

from dlpar.hub import jobs
from dlpar.hub.classroom import MAY_SEE_JOBS

LOOK = 30
"""Seconds between looks for a running job."""

MEASURED = 10
"""Seconds for which memory once measured is told: to read it costs milliseconds a process."""


class Jobs(RequestHandler):
    """``GET``: ``{jobs, memory}``; ``POST {"stop": ID}``.  For tokens with the scope `MAY_SEE_JOBS`, for no others."""

    _memory = (0.0, 0)

    def check_xsrf_cookie(self) -> None:
        """No cookie opens this door, so none can be abused."""

    @allow_unauthenticated  # by Jupyter's own rules; ours are below
    async def get(self) -> None:
        """What is running."""
        await self._admit()
        measured, _ = self._memory
        if time.monotonic() - measured > MEASURED:
            type(self)._memory = time.monotonic(), jobs.memory()
        self.finish({"jobs": jobs.running(), "memory": self._memory[1]})

    @allow_unauthenticated
    async def post(self) -> None:
        """Stop a job."""
        await self._admit()
        try:
            jobs.stop(json.loads(self.request.body)["stop"])
        except jobs.CannotStop as error:
            raise HTTPError(409, reason=str(error)) from None
        except (ValueError, LookupError, TypeError):
            raise HTTPError(400, reason="the body must be JSON with the field stop") from None
        self.finish({})

    async def _admit(self) -> None:
        kind, _, token = self.request.headers.get("Authorization", "").partition(" ")
        caller = await self.settings["dlpar_hub"].user_for_token(token, sync=False) if kind == "token" else None
        if caller is None or MAY_SEE_JOBS not in caller.get("scopes", ()):
            raise HTTPError(403)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "dlpar.hub.jobs_api"}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Called by Jupyter's server."""
    if "JUPYTERHUB_API_URL" not in os.environ:
        return  # no hub: nobody asks
    settings = server.web_app.settings
    settings["dlpar_hub"] = HubAuth(parent=server)
    server.web_app.add_handlers(".*$", [(url_path_join(settings["base_url"], "dlpar", "jobs"), Jobs)])
    PeriodicCallback(lambda: note_activity(settings), 1000 * LOOK).start()


def note_activity(settings: dict[str, Any]) -> None:
    """A running job counts as something done in the notebook; Jupyter's server tells the hub of it."""
    if jobs.any_running():
        settings["last_activity_times"]["dlpar"] = utcnow(with_tz=True)
