"""The teacher's page: who is here, what runs and what it takes; stop a job.  A service of JupyterHub.

It holds a token that lets it list users and their servers, and list and stop their jobs; nothing else.
Every student's own server tells about her jobs, in her account: the page works alike with local accounts,
The Littlest JupyterHub and Kubernetes, and needs no rights on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.httpserver import HTTPServer
from tornado.web import Application, HTTPError, RequestHandler, authenticated

PATIENCE = 3.0
"""Seconds one student's server may take to answer."""

AT_ONCE = 20
"""Requests on their way at a time."""


class Hub:
    """What the service may ask: the hub for people and servers, a server for its jobs."""

    def __init__(self) -> None:
        self.api, self.proxy = os.environ["JUPYTERHUB_API_URL"], os.environ["DLPAR_HUB_PROXY"].rstrip("/")
        self.headers = {"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"}
        self.client = AsyncHTTPClient(max_clients=AT_ONCE)
        # On this machine the certificate, made out to the hub's public name, would not fit.
        self.check = urlsplit(self.proxy).hostname not in ("127.0.0.1", "::1")

    async def _ask(self, url: str, **given: Any) -> Any:
        answer = await self.client.fetch(
            url, headers=self.headers, request_timeout=PATIENCE, validate_cert=self.check, **given
        )
        return json.loads(answer.body)

    async def users(self) -> list[dict[str, Any]]:
        """Everybody the hub knows, a thousand at most."""
        return await self._ask(f"{self.api}/users?limit=1000")

    async def jobs(self, server: str) -> dict[str, Any] | None:
        """``{jobs, memory}`` of the server at a path; None if it does not answer."""
        try:
            return await self._ask(f"{self.proxy}{server}dlpar/jobs")
        except (OSError, HTTPClientError, ValueError):
            return None

    async def stop(self, server: str, job: str) -> None:
        """Stop a job; raises `HTTPClientError`."""
        await self._ask(f"{self.proxy}{server}dlpar/jobs", method="POST", body=json.dumps({"stop": job}))


async def look(hub: Hub) -> list[dict[str, Any]]:
    """A row for every user: ``{name, here, active, answers, jobs, memory}``."""

    async def row(user: dict[str, Any]) -> dict[str, Any]:
        server = (user.get("servers") or {}).get("")
        here = bool(server and server["ready"])
        told = await hub.jobs(server["url"]) if here else None
        return {
            "name": user["name"], "here": here, "active": server["last_activity"] if here else None,
            "answers": told is not None, **(told or {"jobs": [], "memory": 0}),
        }  # fmt: skip

    return await asyncio.gather(*(row(user) for user in sorted(await hub.users(), key=lambda user: user["name"])))


class Guarded(HubOAuthenticated, RequestHandler):
    """For those only whom the hub's roles give access to this service."""

    @property
    def hub(self) -> Hub:
        """What the service may ask."""
        return self.settings["hub"]


class Page(Guarded):
    """The page."""

    @authenticated
    def get(self) -> None:
        """Show it; its script asks for the rest."""
        self.set_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'")
        token = self.xsrf_token
        admin = f"{os.environ.get('JUPYTERHUB_BASE_URL', '/')}hub/admin"
        page = str(Path(__file__).with_name("teacher.html"))
        self.render(page, hub=admin, xsrf=token.decode() if isinstance(token, bytes) else token)


class Class(Guarded):
    """The rows of the table."""

    @authenticated
    async def get(self) -> None:
        """``{students: [row…]}``."""
        self.finish({"students": await look(self.hub)})


class Stop(Guarded):
    """Stops one job."""

    @authenticated
    async def post(self) -> None:
        """``{name, job}``."""
        try:
            asked = json.loads(self.request.body)
            server = f"{os.environ.get('JUPYTERHUB_BASE_URL', '/')}user/{quote(asked['name'], safe='')}/"
            await self.hub.stop(server, asked["job"])
        except (ValueError, LookupError, TypeError):
            raise HTTPError(400, reason="the body must be JSON with the fields name and job") from None
        except HTTPClientError as error:
            raise HTTPError(409, reason=error.message or "the student's server refused") from None
        except OSError:
            raise HTTPError(409, reason="the student's server does not answer") from None
        self.finish({})


def application() -> Application:
    """The service."""
    prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
    return Application(
        [
            (prefix, Page),
            (f"{prefix}class", Class),
            (f"{prefix}stop", Stop),
            (f"{prefix}oauth_callback", HubOAuthCallbackHandler),
        ],
        hub=Hub(), cookie_secret=os.urandom(32), xsrf_cookies=True,
    )  # fmt: skip


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
