"""What the teacher's page may ask: the hub for people and servers, each student's own server for the rest."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from typing import Any
from urllib.parse import quote, urlsplit

from tornado.httpclient import AsyncHTTPClient, HTTPClientError

from dlpar.classroom.hub.answers import Answers
from dlpar.lab import offers

PATIENCE = 3.0
"""Seconds one student's server may take to answer."""

AT_ONCE = 20
"""Requests on their way at a time."""


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
        # On this machine the certificate, made out to the hub's public name, would not fit.
        self.check = urlsplit(self.proxy).hostname not in ("127.0.0.1", "::1")
        self.offer: dict[str, Any] | None = None
        self.has_sent, self.answers = False, Answers()

    async def _ask(self, url: str, body: Any = None, method: str = "GET") -> Any:
        answer = await self.client.fetch(
            url,
            method=method,
            body=None if method == "GET" else json.dumps(body),
            headers=self.headers,
            request_timeout=PATIENCE,
            validate_cert=self.check,
        )
        return json.loads(answer.body)

    async def of(self, name: str, what: str, body: Any = None, method: str = "GET") -> Any:
        """What a user's server says under ``/dlpar/WHAT``; raises `HTTPClientError` or `OSError`."""
        base = os.environ.get("JUPYTERHUB_BASE_URL", "/")
        return await self._ask(f"{self.proxy}{base}user/{quote(name, safe='')}/dlpar/{what}", body, method)

    def send(self, teacher: str, experiment: dict[str, Any] | None) -> None:
        """Offer an experiment to everybody who is here or comes; None takes back what was sent."""
        self.has_sent, self.offer = True, None
        if experiment is not None:
            self.offer = {
                "id": secrets.token_hex(8),
                "by": teacher,
                "at": time.time(),
                "experiment": experiment,
            }

    async def look(self) -> list[dict[str, Any]]:
        """A row for every user: ``{name, here, active, answers, jobs, memory, offered}``; brings the offer to them."""
        if self.offer is not None and time.time() - self.offer["at"] >= offers.LASTS:
            self.offer = None
        users = await self._ask(f"{self.api}/users?limit=1000")
        return await asyncio.gather(
            *(self._row(user) for user in sorted(users, key=lambda user: user["name"]))
        )

    async def _row(self, user: dict[str, Any]) -> dict[str, Any]:
        name, server = user["name"], (user.get("servers") or {}).get("")
        here = bool(server and server["ready"])
        told = await self._told(name) if here else None
        row = {
            "name": name,
            "here": here,
            "active": server["last_activity"] if here else None,
            "answers": bool(told),
        }
        if not told:
            return row | {"jobs": [], "memory": 0, "offered": False}
        jobs, memory, has = told
        return row | {"jobs": jobs, "memory": memory, "offered": await self._bring(name, has)}

    async def _told(self, name: str) -> tuple[list[dict[str, Any]], int, str | None] | None:
        """Her running jobs, their memory and the offer she has; what she shares is heard.  None: no sound answer."""
        try:
            told = await self.of(name, "jobs")
            kinds = {"id": str, "says": str, "ranks": int, "memory": int}
            jobs = [{field: kind(job[field]) for field, kind in kinds.items()} for job in told["jobs"]]
            memory, has = int(told["memory"]), told["offer"]
            self.answers.heard(name, told["predictions"])
        except Exception:  # whatever a server says that is its owner's to change, the others are shown
            return None
        return jobs, memory, has

    async def _bring(self, name: str, has: str | None) -> bool:
        """Whether she has the present offer, which is brought to her if she has not."""
        wanted = self.offer["id"] if self.offer else None
        if self.has_sent and has != wanted:
            try:
                await self.of(name, "jobs", {"offer": self.offer}, "POST")
            except (OSError, HTTPClientError):
                return False
            has = wanted
        return has is not None and has == wanted
