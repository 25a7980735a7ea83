"""The teacher's page: who is here and what runs; stop a job, pause all, send an experiment, see the predictions.

It is a service of JupyterHub.  Its token lets it list users and their servers, and use what
:mod:`dlpar.classroom.hub.student_server` offers in each of them; nothing else.  Every student's own server answers in
her account.  So the page works alike with local accounts, The Littlest JupyterHub and Kubernetes, and needs no rights
on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.web import Application, HTTPError, RequestHandler, authenticated

from dlpar.classroom.hub.answers import Answers
from dlpar.jobs.slots import NoSlots, ask
from dlpar.lab import offers

PATIENCE = 3.0
"""Seconds one student's server may take to answer."""

AT_ONCE = 20
"""Requests under way at a time."""

JOB = {"id": str, "says": str, "ranks": int}
"""Fields of a running job."""


class Students:
    """The class, as a service with a token of its own sees it.

    Attributes
    ----------
    offer : dict or None
        What everybody is to be offered (:mod:`dlpar.lab.offers`); None: nothing was sent, or it was taken back.
    answers : Answers
        Predictions of those who agreed.
    """

    def __init__(self) -> None:
        self.api, self.proxy = os.environ["JUPYTERHUB_API_URL"], os.environ["DLPAR_HUB_PROXY"].rstrip("/")
        self.headers = {"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"}
        self.client = AsyncHTTPClient(max_clients=AT_ONCE)
        # On this machine the certificate, issued for the hub's public name, would not fit.
        self.check = urlsplit(self.proxy).hostname not in ("127.0.0.1", "::1")
        self.offer: dict[str, Any] | None = None
        self.has_sent, self.answers = False, Answers()

    async def _ask(self, url: str, body: Any = None) -> Any:
        """Get a URL, or post a body to it; returns the answer's JSON."""
        given = {} if body is None else {"method": "POST", "body": json.dumps(body)}
        limits = {"request_timeout": PATIENCE, "validate_cert": self.check}
        return json.loads((await self.client.fetch(url, headers=self.headers, **given, **limits)).body)

    async def of(self, name: str, what: str, body: Any = None) -> Any:
        """Ask a user's server for ``/dlpar/WHAT``, or post a body there.

        Raises
        ------
        HTTPError
            If it refuses, with its reason, or does not answer.
        """
        base = os.environ.get("JUPYTERHUB_BASE_URL", "/")
        try:
            return await self._ask(f"{self.proxy}{base}user/{quote(name, safe='')}/dlpar/{what}", body)
        except (OSError, HTTPClientError) as error:
            refused = isinstance(error, HTTPClientError) and error.code in (400, 409)
            why = f"{name}'s notebook server does not answer; it is started from the hub's home page"
            raise HTTPError(409, reason=error.message if refused else why) from None

    def send(self, teacher: str, experiment: dict[str, Any] | None) -> None:
        """Offer an experiment to everybody who is here or comes; None takes back what was sent."""
        self.has_sent, self.offer = True, None
        if experiment is not None:
            self.offer = dict(id=secrets.token_hex(8), by=teacher, at=time.time(), experiment=experiment)

    async def look(self) -> list[dict[str, Any]]:
        """Return a row for every user: ``{name, here, active, answers, jobs, memory, offered}``; bring the offer."""
        if self.offer is not None and time.time() - self.offer["at"] >= offers.LASTS:
            self.offer = None
        users = await self._ask(f"{self.api}/users?limit=1000")
        return await asyncio.gather(*map(self._row, sorted(users, key=lambda user: user["name"])))

    async def _row(self, user: dict[str, Any]) -> dict[str, Any]:
        name, server = user["name"], (user.get("servers") or {}).get("")
        row = {"name": name, "here": bool(server and server["ready"]), "active": None}
        row |= {"answers": False, "jobs": [], "memory": 0, "offered": False}
        if not row["here"]:
            return row
        row["active"] = server["last_activity"]
        try:
            told = await self.of(name, "jobs")
            jobs = [{field: kind(job[field]) for field, kind in JOB.items()} for job in told["jobs"]]
            memory, has = int(told["memory"]), told["offer"]
            self.answers.heard(name, told["predictions"])
        except Exception:  # a student can make her server say anything; the others are shown
            return row
        return row | {
            "answers": True,
            "jobs": jobs,
            "memory": memory,
            "offered": await self._bring(name, has),
        }

    async def _bring(self, name: str, has: str | None) -> bool:
        """Bring the present offer to a student who has another one; tells whether she has it."""
        wanted = self.offer["id"] if self.offer else None
        if self.has_sent and has != wanted:
            try:
                await self.of(name, "jobs", {"offer": self.offer})
            except HTTPError:
                return False
            has = wanted
        return has is not None and has == wanted


class Guarded(HubOAuthenticated, RequestHandler):
    """Answer those whom the hub's roles give access to this service, and nobody else."""

    def initialize(self) -> None:
        """Find the class."""
        self.students: Students = self.settings["students"]

    def asked(self, name: str) -> Any:
        """Return a field of the request's body."""
        try:
            return json.loads(self.request.body)[name]
        except (ValueError, LookupError, TypeError):
            raise HTTPError(400, reason=f"the body must be JSON with the field {name}") from None


class Page(Guarded):
    """The page."""

    @authenticated
    def get(self) -> None:
        """Show it; its script asks for the rest."""
        policy = "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
        self.set_header("Content-Security-Policy", policy)
        token = self.xsrf_token
        admin = f"{os.environ.get('JUPYTERHUB_BASE_URL', '/')}hub/admin"
        page = str(Path(__file__).with_name("teacher.html"))
        self.render(page, hub=admin, xsrf=token.decode() if isinstance(token, bytes) else token)


class Class(Guarded):
    """The contents of the page."""

    @authenticated
    async def get(self) -> None:
        """``{students: [row…], slots: {slots, taken, waiting, paused} or null, predictions: [row…], sent}``."""
        rows, slots = await asyncio.gather(self.students.look(), queue())
        predictions, sent = self.students.answers.table(), self.students.offer is not None
        self.finish({"students": rows, "slots": slots, "predictions": predictions, "sent": sent})


class Stop(Guarded):
    """Stop one job."""

    @authenticated
    async def post(self) -> None:
        """``{name, job}``."""
        self.finish(await self.students.of(str(self.asked("name")), "jobs", {"stop": self.asked("job")}))


class Pause(Guarded):
    """Let no further job begin, or let them begin again."""

    @authenticated
    async def post(self) -> None:
        """``{pause}``."""
        try:
            await ask_keeper({"pause": bool(self.asked("pause"))})
        except NoSlots as error:
            raise HTTPError(409, reason=str(error)) from None
        self.finish({})


class Send(Guarded):
    """Offer an experiment to everybody's panels."""

    @authenticated
    async def get(self) -> None:
        """``{runs: [{id, says, experiment}…]}``: the teacher's own newest runs, to choose from."""
        self.finish(await self.students.of(self.current_user["name"], "experiments"))

    @authenticated
    async def post(self) -> None:
        """``{experiment}``, checked by the teacher's own server, which may answer ``{refused}``; null takes it back."""
        teacher, experiment = self.current_user["name"], self.asked("experiment")
        if experiment is not None:
            checked = await self.students.of(teacher, "experiments", {"experiment": experiment})
            if "refused" in checked:
                return self.finish(checked)
            experiment = checked["experiment"]
        self.students.send(teacher, experiment)
        self.finish({})


async def ask_keeper(question: dict[str, Any]) -> dict[str, Any]:
    """Ask the keeper of job slots; raises `NoSlots` if there is none, or it refuses."""
    path = os.environ.get("DLPAR_SLOTS")
    if not path:
        raise NoSlots("job slots: nobody gives them out here, so nothing can be paused")
    return await asyncio.to_thread(ask, Path(path), question)


async def queue() -> dict[str, Any] | None:
    """Ask how many job slots are taken; None without a keeper."""
    try:
        return await ask_keeper({})
    except NoSlots:
        return None


async def main() -> None:
    """Serve until the hub ends it."""
    prefix, where = os.environ["JUPYTERHUB_SERVICE_PREFIX"], urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    ours = {"": Page, "class": Class, "stop": Stop, "pause": Pause, "send": Send}
    ours["oauth_callback"] = HubOAuthCallbackHandler
    handlers = [(f"{prefix}{name}", handler) for name, handler in ours.items()]
    service = Application(handlers, students=Students(), cookie_secret=os.urandom(32), xsrf_cookies=True)
    # If the proxy is another machine, the name it knows us by need not be an address of ours.
    service.listen(where.port, where.hostname if where.hostname == "127.0.0.1" else "")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
