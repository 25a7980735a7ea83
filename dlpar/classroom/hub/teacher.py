"""The teacher's page: who is here and what runs; stop a job, pause all, send an experiment, see what was predicted.

A service of JupyterHub.  It holds a token that lets it list users and their servers, and ask these for what
:mod:`dlpar.classroom.hub.jobs_api` tells and does; nothing else.  Every student's own server answers in her account: the
page works alike with local accounts, The Littlest JupyterHub and Kubernetes, and needs no rights on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado.httpclient import HTTPClientError
from tornado.httpserver import HTTPServer
from tornado.web import Application, HTTPError, RequestHandler, authenticated

from dlpar.classroom.hub.students import Students
from dlpar.jobs.slots import NoSlots, ask

NO_SERVER = "your own notebook server must run for this: start it from the hub's home page"


class Guarded(HubOAuthenticated, RequestHandler):
    """For those only whom the hub's roles give access to this service."""

    @property
    def students(self) -> Students:
        """The class."""
        return self.settings["students"]

    @property
    def teacher(self) -> str:
        """Who is asking."""
        return self.current_user["name"]

    def asked(self, *names: str) -> list[Any]:
        """Fields of the request's body."""
        try:
            body = json.loads(self.request.body)
            return [body[name] for name in names]
        except (ValueError, LookupError, TypeError):
            raise HTTPError(
                400, reason=f"the body must be JSON with the fields {' and '.join(names)}"
            ) from None


class Page(Guarded):
    """The page."""

    @authenticated
    def get(self) -> None:
        """Show it; its script asks for the rest."""
        self.set_header(
            "Content-Security-Policy", "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
        )
        token = self.xsrf_token
        admin = f"{os.environ.get('JUPYTERHUB_BASE_URL', '/')}hub/admin"
        page = str(Path(__file__).with_name("teacher.html"))
        self.render(page, hub=admin, xsrf=token.decode() if isinstance(token, bytes) else token)


class Class(Guarded):
    """All that the page shows."""

    @authenticated
    async def get(self) -> None:
        """``{students: [row…], slots: {slots, taken, waiting, paused} or null, predictions: [row…], sent}``."""
        rows, slots = await asyncio.gather(self.students.look(), queue())
        sent = self.students.offer is not None
        self.finish(
            {"students": rows, "slots": slots, "predictions": self.students.answers.table(), "sent": sent}
        )


class Stop(Guarded):
    """Stops one job."""

    @authenticated
    async def post(self) -> None:
        """``{name, job}``."""
        name, job = self.asked("name", "job")
        try:
            await self.students.of(str(name), "jobs", {"stop": job}, "POST")
        except HTTPClientError as error:
            raise HTTPError(409, reason=error.message or "the student's server refused") from None
        except OSError:
            raise HTTPError(409, reason="the student's server does not answer") from None
        self.finish({})


class Pause(Guarded):
    """Lets no further job begin, or lets them again."""

    @authenticated
    async def post(self) -> None:
        """``{pause}``."""
        (pause,) = self.asked("pause")
        try:
            await ask_keeper({"pause": bool(pause)})
        except NoSlots as error:
            raise HTTPError(409, reason=str(error)) from None
        self.finish({})


class Send(Guarded):
    """Offers an experiment to everybody's panels."""

    @authenticated
    async def get(self) -> None:
        """``{runs: [{id, says, experiment}…]}``: the teacher's own newest runs, to choose from."""
        try:
            self.finish(await self.students.of(self.teacher, "experiments"))
        except (OSError, HTTPClientError):
            raise HTTPError(409, reason=NO_SERVER) from None

    @authenticated
    async def post(self) -> None:
        """``{experiment}``, checked by the teacher's own server, which may answer ``{refused}``; null takes it back."""
        (experiment,) = self.asked("experiment")
        if experiment is not None:
            try:
                checked = await self.students.of(
                    self.teacher, "experiments", {"experiment": experiment}, "POST"
                )
            except (OSError, HTTPClientError):
                raise HTTPError(409, reason=NO_SERVER) from None
            if "refused" in checked:
                return self.finish(checked)
            experiment = checked["experiment"]
        self.students.send(self.teacher, experiment)
        self.finish({})


async def ask_keeper(question: dict[str, Any]) -> dict[str, Any]:
    """What the keeper of job slots says; raises `NoSlots` where there is none, or it refuses."""
    path = os.environ.get("DLPAR_SLOTS")
    if not path:
        raise NoSlots("job slots: nobody gives them out here, so nothing can be paused")
    return await asyncio.to_thread(ask, Path(path), question)


async def queue() -> dict[str, Any] | None:
    """How many job slots are taken; None where nobody gives them out."""
    try:
        return await ask_keeper({})
    except NoSlots:
        return None


def application() -> Application:
    """The service."""
    prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
    ours = {"": Page, "class": Class, "stop": Stop, "pause": Pause, "send": Send}
    return Application(
        [
            *((f"{prefix}{name}", handler) for name, handler in ours.items()),
            (f"{prefix}oauth_callback", HubOAuthCallbackHandler),
        ],
        students=Students(),
        cookie_secret=os.urandom(32),
        xsrf_cookies=True,
    )


async def main() -> None:
    """Serve until the hub ends it."""
    where, end = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]), asyncio.Event()
    # Where the proxy is another machine, the name it knows us by need not be an address of ours.
    HTTPServer(application()).listen(where.port, where.hostname if where.hostname == "127.0.0.1" else "")
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    await end.wait()


if __name__ == "__main__":
    asyncio.run(main())
