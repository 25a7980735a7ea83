"""Extension of a student's Jupyter server. It counts jobs as activity and reports to the teacher's page.

A report holds her running jobs, and her predictions if she has agreed to share them.  The report carries her
server's own token, so that no other token ever reaches a student's server.  The answer may ask to stop a job,
and bring an experiment that the teacher offers (:mod:`dlpar.lab.exchange`).
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.utils import utcnow
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.netutil import is_valid_ip

from dlpar.jobs.running import end_running, running
from dlpar.lab.exchange import current_offer, put_offer, shared_answers

EVERY = 2.0
"""Seconds between reports."""


async def report_for_ever(activity: dict[str, Any]) -> None:
    """Report to the teacher's page repeatedly, and count running jobs as activity.

    Parameters
    ----------
    activity : dict
        Times of the activities that Jupyter's server reports to the hub, by name.
    """
    while True:
        # The page may be unavailable, or expect other fields.
        with suppress(OSError, HTTPClientError, ValueError, LookupError, TypeError):
            await report(activity)
        await asyncio.sleep(EVERY)


async def report(activity: dict[str, Any]) -> None:
    """Report once and execute the requests in the answer.

    A report is ``{jobs, offer, predictions}``.  The answer is ``{stop, offer}``: jobs to end, and the
    offer if it has changed.
    """
    base, proxy = os.environ.get("JUPYTERHUB_BASE_URL", "/"), os.environ["DLPAR_HUB_PROXY"].rstrip("/")
    told = await AsyncHTTPClient().fetch(
        f"{proxy}{base}services/teacher/report",
        method="POST",
        body=json.dumps(await asyncio.to_thread(state, activity)),
        headers={"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"},
        # `dlpar hub` gives its own address, and the certificate is issued for the hub's public name.
        validate_cert=not is_valid_ip(urlsplit(proxy).hostname or ""),
    )
    answer = json.loads(told.body)
    for job in answer["stop"]:
        end_running(job)
    if "offer" in answer:
        put_offer(answer["offer"])


def state(activity: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of the activity report. A running job counts as activity."""
    offer, jobs = current_offer(), running()
    if jobs:
        activity["dlpar"] = utcnow(with_tz=True)
    return {"jobs": jobs, "offer": offer and offer["id"], "predictions": shared_answers()}


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Load the extension. Jupyter's server calls this function."""
    settings = server.web_app.settings
    settings["dlpar_reporter"] = asyncio.ensure_future(report_for_ever(settings["last_activity_times"]))
