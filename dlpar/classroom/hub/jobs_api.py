"""An extension of a student's Jupyter server: what the teacher's page asks her, and her jobs as activity.

The page learns her running jobs and their memory, and her predictions if she has agreed to share them; it may
stop a job, and lay an experiment before her (:mod:`dlpar.lab.offers`).
"""

from __future__ import annotations

import asyncio
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

from dlpar.classroom.hub import jobs
from dlpar.classroom.hub.classroom import MAY_SEE_JOBS
from dlpar.lab import offers
from dlpar.lab.ledger import shared_answers

LOOK = 30
"""Seconds between looks for a running job."""

MEASURED = 10
"""Seconds for which memory once measured is told: to read it costs milliseconds a process."""


class ForThePage(RequestHandler):
    """For tokens with the scope `MAY_SEE_JOBS`, for no others."""

    def check_xsrf_cookie(self) -> None:
        """No cookie opens this door, so none can be abused."""

    async def admit(self) -> None:
        """Refuse all others."""
        kind, _, token = self.request.headers.get("Authorization", "").partition(" ")
        caller = (
            await self.settings["dlpar_hub"].user_for_token(token, sync=False) if kind == "token" else None
        )
        if caller is None or MAY_SEE_JOBS not in caller.get("scopes", ()):
            raise HTTPError(403)

    def asked(self) -> dict[str, Any]:
        """The request's body."""
        try:
            found = json.loads(self.request.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise HTTPError(400, reason="the body must be a JSON object")
        return found


class Jobs(ForThePage):
    """``GET``: ``{jobs, memory, offer, predictions}``; ``POST`` ``{stop: ID}`` or ``{offer: OFFER or null}``."""

    _memory = (0.0, 0)

    @allow_unauthenticated  # by Jupyter's own rules; ours are above
    async def get(self) -> None:
        """What is running, which offer lies before her, what she shares."""
        await self.admit()
        measured, _ = self._memory
        if time.monotonic() - measured > MEASURED:
            type(self)._memory = time.monotonic(), jobs.memory()
        offer = offers.present()
        self.finish(
            {
                "jobs": jobs.running(),
                "memory": self._memory[1],
                "offer": offer and offer["id"],
                "predictions": shared_answers(),
            }
        )

    @allow_unauthenticated
    async def post(self) -> None:
        """Stop a job; replace the offer."""
        await self.admit()
        asked = self.asked()
        try:
            if "offer" in asked:
                offers.put(asked["offer"])
            elif "stop" in asked:
                jobs.stop(str(asked["stop"]))
            else:
                raise ValueError("stop or offer: got neither, allowed is one of them")
        except jobs.CannotStop as error:
            raise HTTPError(409, reason=str(error)) from None
        except (ValueError, OSError) as error:
            raise HTTPError(400, reason=str(error)) from None
        self.finish({})


class Experiments(ForThePage):
    """Of the teacher's own server: ``GET`` ``{runs: […]}``; ``POST {experiment}``: the same, checked and complete."""

    @allow_unauthenticated
    async def get(self) -> None:
        """Her newest runs, to choose one to be sent."""
        await self.admit()
        self.finish({"runs": jobs.newest_runs()})

    @allow_unauthenticated
    async def post(self) -> None:
        """``{experiment}`` or ``{refused}``."""
        await self.admit()
        self.finish(await asyncio.to_thread(_checked, self.asked().get("experiment")))


def _checked(fields: Any) -> dict[str, Any]:
    from dlpar.config.experiment import Experiment
    from dlpar.config.schema import BadExperiment

    try:
        experiment = Experiment.from_json(json.dumps(fields))
        if experiment.sync.scheme == "own":
            raise BadExperiment(
                "sync.scheme: got 'own', allowed is one of dlpar's: nobody's code is sent to others"
            )
    except BadExperiment as error:
        return {"refused": str(error)}
    return {"experiment": json.loads(experiment.to_json())}


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "dlpar.classroom.hub.jobs_api"}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Called by Jupyter's server."""
    if "JUPYTERHUB_API_URL" not in os.environ:
        return  # no hub: nobody asks
    settings = server.web_app.settings
    settings["dlpar_hub"] = HubAuth(parent=server)
    ours = {"jobs": Jobs, "experiments": Experiments}
    handlers = [
        (url_path_join(settings["base_url"], "dlpar", name), handler) for name, handler in ours.items()
    ]
    server.web_app.add_handlers(".*$", handlers)
    PeriodicCallback(lambda: note_activity(settings), 1000 * LOOK).start()


def note_activity(settings: dict[str, Any]) -> None:
    """A running job counts as something done in the notebook; Jupyter's server tells the hub of it."""
    if jobs.any_running():
        settings["last_activity_times"]["dlpar"] = utcnow(with_tz=True)
