"""Teacher's page, which lists students and jobs, controls jobs, sends experiments and shows predictions.

The page is a service of JupyterHub, and its token has no rights.  Every student's server reports to the page
with the server's own token (:mod:`dlpar.classroom.hub.student_server`), and executes the page's requests in
her account.  So the page works in the same way with local accounts, The Littlest JupyterHub and Kubernetes,
and needs no rights on the machine.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import statistics
import time
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado.web import Application, HTTPError, RequestHandler, authenticated

from dlpar.jobs.slots import NoSlots, ask, keeper_socket
from dlpar.lab.exchange import OFFER_LASTS

PATIENCE = 8.0
"""Seconds that a student's server may take until its next report."""

REPORT = 1 << 20
"""Maximum bytes of a report."""

SILENT = {"jobs": [], "offered": False}
"""Facts of a student whose server no longer reports."""

JOB = {"id": str, "says": str, "ranks": int}
"""Fields of a running job."""

LOT = 5
"""Number of predictions before a question is shown, and between two changes."""

BARS = 6
"""Ranges into which predicted numbers are sorted."""

FIELDS = ("predicted", "found", "key", "question", "how", "unit")
"""Fields of an answer: two values, and text."""

LARGEST = 1e300
"""Largest accepted number, so that differences are finite."""


class Students:
    """State of the class, according to its servers' reports.

    Attributes
    ----------
    offer : dict or None
        Current offer to everybody (:mod:`dlpar.lab.exchange`). None removes offers.
    answers : Answers
        Predictions of those who agreed.
    """

    def __init__(self) -> None:
        self.offer: dict[str, Any] | None = None
        self.answers = Answers()
        # By name: the time of a report and the report; jobs to end.
        self.rows: dict[str, tuple[float, dict[str, Any]]] = {}
        self.to_stop: dict[str, set[str]] = defaultdict(set)

    def hear(self, name: str, report: dict[str, Any]) -> dict[str, Any]:
        """Accept a report from a student's server and return the answer.

        Raises
        ------
        LookupError, TypeError, ValueError
            If it is not a report, because a student can make her server send anything.
        """
        jobs = [{field: kind(job[field]) for field, kind in JOB.items()} for job in report["jobs"]]
        has, wanted = report["offer"], self.offer and self.offer["id"]
        self.answers.heard(name, report["predictions"])
        self.rows[name] = time.monotonic(), {"jobs": jobs, "offered": wanted is not None and has == wanted}
        return {"stop": [*self.to_stop.pop(name, ())]} | ({} if has == wanted else {"offer": self.offer})

    def send(self, teacher: str, fields: Any) -> dict[str, Any]:
        """Offer an experiment with these fields to all present and later users.

        None withdraws the last offer.

        Returns
        -------
        dict
            Empty, or ``refused`` with the reason, if others cannot have such an experiment.
        """
        from dlpar.config.experiment import Experiment  # loads pydantic, which JupyterHub brings

        if fields is None:
            self.offer = None
            return {}
        try:
            experiment = Experiment.from_json(json.dumps(fields))
        except ValueError as error:
            return {"refused": str(error)}
        if experiment.sync.scheme == "own":
            return {"refused": "sync.scheme: got 'own', allowed is one of dlpar's: no code is sent to others"}
        self.offer = {"id": secrets.token_hex(8), "by": teacher, "at": time.time()}
        self.offer |= {"experiment": json.loads(experiment.to_json())}
        return {}

    def table(self) -> list[dict[str, Any]]:
        """Return a row ``{name, here, jobs, offered}`` for every user whose server has reported."""
        if self.offer is not None and time.time() - self.offer["at"] >= OFFER_LASTS:
            self.offer = None
        now = time.monotonic()
        heard = [(name, now - at < PATIENCE, report) for name, (at, report) in sorted(self.rows.items())]
        return [{"name": name, "here": here} | (report if here else SILENT) for name, here, report in heard]


# ---- predictions ---------------------------------------------------------------------


class Answers:
    """Anonymous counts of the predictions of all students who agreed to share them.

    A question is shown once it has `LOT` answers. It changes only after `LOT` more answers have come or gone.
    So nobody can see a single answer arrive.  Names are not kept, and nothing is written to a disk.
    """

    def __init__(self) -> None:
        # Both by question, then by student; each process salts the hash of students differently.
        self._now: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
        self._shown: dict[str, dict[int, dict[str, Any]]] = {}

    def heard(self, name: str, answers: list[Any] | None) -> None:
        """Replace a student's answers. None means that she does not agree to share."""
        for key in [key for key, now in self._now.items() if now.pop(hash(name), None) and not now]:
            del self._now[key]
        for answer in filter(_is_answer, answers or []):
            self._now[answer["key"]][hash(name)] = answer

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each question: ``{key, question, answers, predicted: [[label, count]…], found}``."""
        # If a question has too few answers, the shown answers stay stored. Otherwise the next answer would
        # visibly differ from the rest.
        self._shown = {key: shown for key, shown in self._shown.items() if key in self._now}
        for key, now in self._now.items():
            before = self._shown.get(key, {})
            changes = sum(now.get(student) != before.get(student) for student in {*now, *before})
            if len(now) >= LOT and changes >= LOT:
                self._shown[key] = dict(now)
        enough = [key for key in sorted(self._now) if len(self._now[key]) >= LOT]
        return [_row(key, [*self._shown[key].values()]) for key in enough]


def _is_answer(found: Any) -> bool:
    """Return whether a value has an answer's fields.

    A student can write anything to the file.
    """
    if not isinstance(found, dict):
        return False
    predicted, right, *texts = [found.get(name, math.nan) for name in FIELDS]
    is_text = all(isinstance(text, str) for text in texts)
    return is_text and _is_value(right) and (predicted is None or _is_value(predicted))


def _is_value(found: Any) -> bool:
    return isinstance(found, str) or (type(found) in (int, float) and abs(found) < LARGEST)  # excludes NaN


def _numbers(values: list[Any]) -> list[float]:
    return [value for value in values if isinstance(value, (int, float))]


def _row(key: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    first, unit = answers[0], f" {answers[0]['unit']}".rstrip()
    known = [answer["predicted"] for answer in answers if answer["predicted"] is not None]
    numbers, texts = _numbers(known), [each for each in known if isinstance(each, str)]
    predicted = _ranges(numbers, unit) if len(numbers) > len(texts) else sorted(Counter(texts).items())
    if len(known) < len(answers):
        predicted.append(("I don't know", len(answers) - len(known)))
    found = str(first["found"])
    if measured := _numbers([answer["found"] for answer in answers]):
        found = f"{statistics.median(measured):.3g}{unit}, {first['how']} (median)"
    row = {"key": key, "question": first["question"], "answers": len(answers)}
    return row | {"predicted": [*map(list, predicted)], "found": found}


def _ranges(numbers: list[float], unit: str) -> list[tuple[str, int]]:
    """Count numbers in equal ranges, each named by its bounds. The outer bounds are rounded outwards."""
    step = float(f"{(max(numbers) - min(numbers)) / (BARS - 1):.1g}")
    if not step:
        return [(f"about {min(numbers):.2g}{unit}", len(numbers))]
    counts = Counter(int(value // step) for value in numbers)
    bins = range(min(counts), max(counts) + 1)
    return [(f"{i * step:.4g} to {(i + 1) * step:.4g}{unit}", counts[i]) for i in bins]


# ---- the page ------------------------------------------------------------------------


class Page(HubOAuthenticated, RequestHandler):
    """Teacher's page for users whose hub roles give access to this service."""

    @authenticated
    def get(self) -> None:
        """Show the page. Its script requests the rest."""
        policy = "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
        self.set_header("Content-Security-Policy", policy)
        self.render("teacher.html", hub=f"{self.hub_auth.hub_prefix}admin", xsrf=self.xsrf_token)


class Class(HubOAuthenticated, RequestHandler):
    """Contents of the page and a teacher's actions."""

    @authenticated
    async def get(self) -> None:
        """Send the page's contents as JSON.

        Contents: students, slots (null without a keeper), predictions, and whether an experiment was sent.
        """
        students: Students = self.settings["students"]
        told = {"students": students.table(), "predictions": students.answers.table()}
        self.finish(told | {"slots": await queue(), "sent": students.offer is not None})

    @authenticated
    async def post(self) -> None:
        """Execute a request and return the answer.

        ============================  ==================================================================
        ``{name, stop: ID}``          end a student's job, at the next report of her server
        ``{pause: true or false}``    let no further job begin, or let them begin again
        ``{send: FIELDS or null}``    send an experiment, or take it back; may answer ``{refused}``
        ============================  ==================================================================
        """
        students, told = self.settings["students"], {}
        match json.loads(self.request.body):
            case {"name": str(name), "stop": str(job)}:
                students.to_stop[name].add(job)
            case {"pause": pause}:
                told = await ask_keeper({"pause": bool(pause)})
            case {"send": experiment}:
                told = students.send(self.current_user["name"], experiment)
            case _:
                raise HTTPError(400, reason="the body must have name and stop, pause, or send")
        self.finish(told)


class Report(HubOAuthenticated, RequestHandler):
    """Reports from students' servers. Each server's token identifies its student."""

    hub_scopes = None  # every user of this hub may report, and do nothing else here

    @authenticated
    def post(self) -> None:
        """Accept a report and answer it, as :func:`dlpar.classroom.hub.student_server.report` describes."""
        try:
            report = json.loads(self.request.body)
            self.finish(self.settings["students"].hear(self.current_user["name"], report))
        except (LookupError, TypeError, ValueError, RecursionError, OverflowError):
            raise HTTPError(400, reason="that is no report") from None


async def ask_keeper(question: dict[str, Any]) -> dict[str, Any]:
    """Ask the keeper of job slots. Raise `HTTPError` if there is no keeper or if it refuses."""
    try:
        if (path := keeper_socket()) is None:
            raise NoSlots("job slots: nobody gives them out here, so nothing can be paused")
        return await asyncio.to_thread(ask, path, question)
    except NoSlots as error:
        raise HTTPError(409, reason=str(error)) from None


async def queue() -> dict[str, Any] | None:
    """Return the number of job slots in use, or None without a keeper."""
    with suppress(HTTPError):
        return await ask_keeper({})


async def main() -> None:
    """Serve until the hub ends the service."""
    prefix, where = os.environ["JUPYTERHUB_SERVICE_PREFIX"], urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    ours = {"": Page, "class": Class, "report": Report, "oauth_callback": HubOAuthCallbackHandler}
    handlers = [(f"{prefix}{name}", handler) for name, handler in ours.items()]
    # JupyterHub checks the XSRF cookie of requests without a token, but only after it knows about tokens.
    service = Application(handlers, students=Students(), cookie_secret=os.urandom(32))
    # If the proxy is on another machine, its name for us need not be one of our addresses.
    service.listen(where.port, where.hostname if where.hostname == "127.0.0.1" else "", max_body_size=REPORT)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # by which JupyterHub ends a service
        asyncio.run(main())
