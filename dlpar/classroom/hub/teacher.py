"""The teacher's page: list students and jobs; stop a job, pause all, send an experiment, show the predictions.

It is a service of JupyterHub.  Its token lets it list users and their servers, and use what
:mod:`dlpar.classroom.hub.student_server` offers in each of them; nothing else.  Every student's own server answers in
her account.  So the page works alike with local accounts, The Littlest JupyterHub and Kubernetes, and needs no rights
on the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import secrets
import statistics
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.web import Application, HTTPError, RequestHandler, authenticated

from dlpar.jobs.slots import NoSlots, ask
from dlpar.lab import offers

PATIENCE = 3.0
"""Seconds one student's server may take to answer."""

AT_ONCE = 20
"""Requests under way at a time."""

NEWEST = 20
"""Runs that a teacher can choose from."""

JOB = {"id": str, "says": str, "ranks": int}
"""Fields of a running job."""

LOT = 5
"""Number of predictions a question needs before it is shown, and by which it changes."""

BARS = 6
"""Ranges into which predicted numbers are sorted."""

LARGEST = 1e300
"""Largest number that counts, so that differences are finite."""


class Students:
    """The class, as a service with a token of its own sees it.

    Attributes
    ----------
    offer : dict or None
        Current offer to everybody (:mod:`dlpar.lab.offers`); None: nothing was sent, or it was taken back.
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

    async def of(self, name: str, body: Any = None) -> Any:
        """Ask a user's server what it reports to this page, or post a body there.

        Raises
        ------
        HTTPError
            If it refuses, with its reason, or does not answer.
        """
        base = os.environ.get("JUPYTERHUB_BASE_URL", "/")
        try:
            return await self._ask(f"{self.proxy}{base}user/{quote(name, safe='')}/dlpar/jobs", body)
        except (OSError, HTTPClientError) as error:
            why = f"{name}'s notebook server does not answer; it is started from the hub's home page"
            raise HTTPError(409, reason=error.message if getattr(error, "code", 0) == 409 else why) from None

    async def send(self, teacher: str, experiment: Any) -> dict[str, Any]:
        """Offer an experiment to everybody who is here or comes; None takes back the last.

        Returns
        -------
        dict
            Empty; ``refused``, the reason, if the teacher's own server finds a fault in the experiment.
        """
        offer = None
        if experiment is not None:
            checked = await self.of(teacher, {"experiment": experiment})
            if "refused" in checked:
                return checked
            offer = {"id": secrets.token_hex(8), "by": teacher, "at": time.time(), **checked}
        self.has_sent, self.offer = True, offer
        return {}

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
            told = await self.of(name)
            jobs = [{field: kind(job[field]) for field, kind in JOB.items()} for job in told["jobs"]]
            memory, has = int(told["memory"]), told["offer"]
            self.answers.heard(name, told["predictions"])
        except Exception:  # a student can make her server say anything; the others are shown
            return row
        offered = await self._bring(name, has)
        return row | {"answers": True, "jobs": jobs, "memory": memory, "offered": offered}

    async def _bring(self, name: str, has: str | None) -> bool:
        """Bring the current offer to a student who has another one; returns whether she has it."""
        wanted = self.offer["id"] if self.offer else None
        if self.has_sent and has != wanted:
            try:
                await self.of(name, {"offer": self.offer})
            except HTTPError:
                return False
            has = wanted
        return has is not None and has == wanted


# ---- predictions ---------------------------------------------------------------------


class Answers:
    """Predictions of all who agreed to share them, counted so that nobody can tell whose they are.

    A question is shown from `LOT` answers on, and changes only when as many again have come or gone.  So nobody's
    answer can be seen arriving from one look to the next.  Names are not kept, and nothing is written to a disk.
    """

    def __init__(self) -> None:
        self._salt = os.urandom(16)
        self._of: dict[bytes, dict[str, dict[str, Any]]] = {}
        self._shown: dict[str, dict[bytes, dict[str, Any]]] = {}

    def heard(self, name: str, answers: list[Any] | None) -> None:
        """Replace a student's answers; None: she does not agree, or no longer."""
        student = hashlib.sha256(self._salt + name.encode()).digest()
        self._of.pop(student, None)
        if answers is not None:
            self._of[student] = {answer["key"]: answer for answer in answers if _is_answer(answer)}

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each question: ``{key, question, answers, predicted: [[label, count]…], found}``."""
        keys = {key for answers in self._of.values() for key in answers} | {*self._shown}
        return [_row(key, list(shown.values())) for key in sorted(keys) if (shown := self._lot(key))]

    def _lot(self, key: str) -> dict[bytes, dict[str, Any]]:
        """Return the answers to a question that may be shown."""
        now = {student: answers[key] for student, answers in self._of.items() if key in answers}
        if len(now) < LOT:
            # The shown answers stay stored. Otherwise the next answer to arrive would differ visibly from the rest.
            return {}
        before = self._shown.get(key, {})
        if sum(now.get(student) != before.get(student) for student in {*now, *before}) >= LOT:
            self._shown[key] = now
        return self._shown.get(key, {})


def _is_answer(found: Any) -> bool:
    """Tell whether it has an answer's fields: it comes from a file that a student can write to."""
    if not isinstance(found, dict):
        return False
    texts = [found.get(name) for name in ("key", "question", "how", "unit")]
    predicted = found.get("predicted", math.nan)
    is_one = predicted is None or _is_value(predicted)
    return is_one and _is_value(found.get("found")) and all(isinstance(text, str) for text in texts)


def _is_value(found: Any) -> bool:
    return isinstance(found, str) or (type(found) in (int, float) and abs(found) < LARGEST)  # NaN is not


def _row(key: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    first, unit = answers[0], f" {answers[0]['unit']}" if answers[0]["unit"] else ""
    known = [answer["predicted"] for answer in answers if answer["predicted"] is not None]
    numbers = [value for value in known if isinstance(value, (int, float))]
    if numbers:
        predicted = _ranges(numbers, unit)
    else:
        predicted = [[label, count] for label, count in sorted(Counter(known).items())]
    if len(known) < len(answers):
        predicted.append(["I don't know", len(answers) - len(known)])
    measured = [answer["found"] for answer in answers if isinstance(answer["found"], (int, float))]
    found = str(first["found"])
    if measured:
        found = f"{statistics.median(measured):.3g}{unit}, {first['how']} (median)"
    row = {"key": key, "question": first["question"], "answers": len(answers)}
    return row | {"predicted": predicted, "found": found}


def _ranges(numbers: list[float], unit: str) -> list[list[Any]]:
    """Count numbers in equal ranges, each named by its bounds; the outer ones are rounded outwards."""
    low, high = min(numbers), max(numbers)
    step = float(f"{(high - low) / (BARS - 1):.1g}")
    if not step:
        return [[f"about {low:.2g}{unit}", len(numbers)]]
    first = int(low // step)
    counts = Counter(int(value // step) for value in numbers)
    bins = range(first, max(counts) + 1)
    return [[f"{i * step:.4g} to {(i + 1) * step:.4g}{unit}", counts[i]] for i in bins]


# ---- the page ------------------------------------------------------------------------


class Page(HubOAuthenticated, RequestHandler):
    """The page, for those whom the hub's roles give access to this service, and nobody else."""

    @authenticated
    def get(self) -> None:
        """Show it; its script asks for the rest."""
        policy = "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
        self.set_header("Content-Security-Policy", policy)
        token = self.xsrf_token
        admin = f"{os.environ.get('JUPYTERHUB_BASE_URL', '/')}hub/admin"
        page = str(Path(__file__).with_name("teacher.html"))
        self.render(page, hub=admin, xsrf=token.decode() if isinstance(token, bytes) else token)


class Class(HubOAuthenticated, RequestHandler):
    """The contents of the page, and what a teacher does with them."""

    @authenticated
    async def get(self) -> None:
        """``{students: [row…], slots: {slots, taken, waiting, paused} or null, predictions: [row…], sent}``."""
        students: Students = self.settings["students"]
        rows, slots = await asyncio.gather(students.look(), queue())
        predictions, sent = students.answers.table(), students.offer is not None
        self.finish({"students": rows, "slots": slots, "predictions": predictions, "sent": sent})

    @authenticated
    async def post(self) -> None:
        """Do what the request asks for, and return the answer to it.

        ============================  ==================================================================
        ``{name, stop: ID}``          end a student's job
        ``{pause: true or false}``    let no further job begin, or let them begin again
        ``{runs}``                    answer ``{runs}``, the teacher's own newest runs
        ``{send: FIELDS or null}``    send an experiment, or take it back; may answer ``{refused}``
        ============================  ==================================================================
        """
        students, teacher = self.settings["students"], self.current_user["name"]
        try:
            asked = json.loads(self.request.body)
        except ValueError:
            asked = None
        match asked:
            case {"name": name, "stop": job}:
                told = await students.of(str(name), {"stop": job})
            case {"pause": pause}:
                told = await ask_keeper({"pause": bool(pause)})
            case {"runs": _}:
                told = await students.of(teacher, {"runs": NEWEST})
            case {"send": experiment}:
                told = await students.send(teacher, experiment)
            case _:
                raise HTTPError(400, reason="the body must be JSON with name and stop, pause, runs, or send")
        self.finish(told)


async def ask_keeper(question: dict[str, Any]) -> dict[str, Any]:
    """Ask the keeper of job slots; raises `HTTPError` if there is none, or it refuses."""
    path = os.environ.get("DLPAR_SLOTS")
    try:
        if not path:
            raise NoSlots("job slots: nobody gives them out here, so nothing can be paused")
        return await asyncio.to_thread(ask, Path(path), question)
    except NoSlots as error:
        raise HTTPError(409, reason=str(error)) from None


async def queue() -> dict[str, Any] | None:
    """Ask how many job slots are taken; None without a keeper."""
    with suppress(HTTPError):
        return await ask_keeper({})


async def main() -> None:
    """Serve until the hub ends it."""
    prefix, where = os.environ["JUPYTERHUB_SERVICE_PREFIX"], urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    ours = {"": Page, "class": Class, "oauth_callback": HubOAuthCallbackHandler}
    handlers = [(f"{prefix}{name}", handler) for name, handler in ours.items()]
    service = Application(handlers, students=Students(), cookie_secret=os.urandom(32), xsrf_cookies=True)
    # If the proxy is another machine, the name it knows us by need not be an address of ours.
    service.listen(where.port, where.hostname if where.hostname == "127.0.0.1" else "")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
