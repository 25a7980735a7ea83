"""An extension of a student's Jupyter server: it counts jobs as activity, and answers the teacher's page.

The page learns her running jobs and their memory, and her predictions if she has agreed to share them.  It may stop
a job, and offer her an experiment (:mod:`dlpar.lab.offers`).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.utils import url_path_join
from jupyterhub.services.auth import HubAuth
from jupyterhub.utils import utcnow
from tornado.ioloop import PeriodicCallback
from tornado.web import HTTPError, RequestHandler

from dlpar.classroom.hub import MAY_SEE_JOBS
from dlpar.config.paths import runs_folder, runtime_folder
from dlpar.jobs.diagnosis import pids_of, still_ranks
from dlpar.jobs.processes import descendants, resident
from dlpar.jobs.scratch import is_locked
from dlpar.lab import offers
from dlpar.lab.ledger import shared_answers

LOOK = 30
"""Seconds between looks for a running job."""

MEASURED = 10
"""Seconds for which a measurement of memory is used: one costs milliseconds a process."""


class Jobs(RequestHandler):
    """Answer the teacher's page: tokens with the scope `MAY_SEE_JOBS`, and no others.

    ``GET`` answers ``{jobs, memory, offer, predictions}``. ``POST`` does one of these:

    ===========================  =====================================================================
    ``{stop: ID}``               end a job
    ``{offer: OFFER or null}``   replace the offer
    ``{runs: NUMBER}``           answer ``{runs}``, the newest, each ``{id, says, experiment}``
    ``{experiment: FIELDS}``     answer ``{experiment}``, checked and complete, or ``{refused}``
    ===========================  =====================================================================
    """

    _memory = (-MEASURED, 0)

    def check_xsrf_cookie(self) -> None:
        """Accept any request: only tokens are admitted, which other pages do not have."""

    async def prepare(self) -> None:
        """Refuse requests without such a token."""
        caller = await self.settings["dlpar_hub"].get_user(self, sync=False)
        if caller is None or MAY_SEE_JOBS not in caller["scopes"]:
            raise HTTPError(403)

    @allow_unauthenticated  # by Jupyter's own rules; ours are above
    def get(self) -> None:
        """Report the running jobs, the student's offer, and the predictions that she shares."""
        if time.monotonic() - self._memory[0] > MEASURED:
            type(self)._memory = time.monotonic(), memory()
        offer = offers.present()
        told = {"jobs": running(), "memory": self._memory[1], "offer": offer and offer["id"]}
        self.finish(told | {"predictions": shared_answers()})

    @allow_unauthenticated
    async def post(self) -> None:
        """Do the first of `DEEDS` that the request names."""
        try:
            asked = json.loads(self.request.body)
            name = next((name for name in DEEDS if name in asked), None)
            if name is None:
                raise ValueError(f"{', '.join(DEEDS)}: got none of them, allowed is one")
            self.finish(await asyncio.to_thread(DEEDS[name], asked[name]) or {})
        except (ValueError, TypeError, OSError) as error:
            raise HTTPError(409, reason=str(error)) from None


def stop(job: str) -> None:
    """End a job; returns at once, and the job is gone within 2 s.

    Raises
    ------
    ValueError
        If there is no such job, or it has only begun to start.
    """
    if not re.fullmatch(r"[\w.-]+", job):
        raise ValueError(f"job: got {job!r}, allowed is the id of a running job")
    for folder in (runs_folder() / job, runtime_folder() / job):
        if is_locked(folder):
            guardian = _guardian(folder)
            if guardian is None:
                raise ValueError(f"job: {job} is only starting; try again in a moment")
            os.kill(guardian, signal.SIGTERM)
            return
    raise ValueError(f"job: got {job!r}, which is not running")


def newest_runs(number: int) -> dict[str, Any]:
    """Return ``{runs: [{id, says, experiment}…]}``, the newest first."""
    folders = sorted(runs_folder().glob("*"), reverse=True)[:number]
    runs = [{"id": f.name, "says": _says(f), "experiment": _experiment(f)} for f in folders]
    return {"runs": [run for run in runs if run["experiment"] is not None]}


def checked(fields: Any) -> dict[str, Any]:
    """Return ``{experiment}`` with all its fields, or ``{refused}`` with the reason."""
    from dlpar.config.experiment import Experiment  # loads pydantic, on a teacher's server alone
    from dlpar.config.schema import BadExperiment

    try:
        experiment = Experiment.from_json(json.dumps(fields))
    except BadExperiment as error:
        return {"refused": str(error)}
    if experiment.sync.scheme == "own":
        why = "sync.scheme: got 'own', allowed is one of dlpar's: nobody's code is sent to others"
        return {"refused": why}
    return {"experiment": json.loads(experiment.to_json())}


DEEDS = {"stop": stop, "offer": offers.put, "runs": newest_runs, "experiment": checked}
"""Requests of the teacher's page."""


def any_running() -> bool:
    """Tell whether a job of this account is running; cheap enough for every half minute."""
    return any(map(is_locked, runtime_folder().glob("job-*")))


def running() -> list[dict[str, Any]]:
    """List the running jobs, the oldest first: ``{id, says, ranks}``."""
    if not any_running():
        return []
    folders = [*sorted(runs_folder().glob("*")), *sorted(runtime_folder().glob("spmd-*"))]
    locked = filter(is_locked, folders)
    return [{"id": f.name, "says": _says(f), "ranks": len(still_ranks(pids_of(f)))} for f in locked]


def memory() -> int:
    """Measure the memory of this server, its kernels, fork servers and jobs in bytes; shared pages count once."""
    roots, sockets = [os.getpid()], str(runtime_folder() / "warm-")
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "dlpar.jobs.fork_server" in words and any(word.startswith(sockets) for word in words):
            roots.append(process.pid)
    return sum(map(resident, {pid for root in roots for pid in (root, *descendants(root))}))


def _experiment(folder: Path) -> Any:
    """Read a run's experiment.json; None if it cannot be read."""
    try:
        return json.loads((folder / "experiment.json").read_bytes())
    except (OSError, ValueError):
        return None


def _says(folder: Path) -> str:
    """Describe a job in words."""
    e = _experiment(folder)
    try:
        what = f"{e['model']['name']} on {e['data']['name']}, {e['sync']['scheme']}"
        workers, world = e["workers"], e["cluster"]["world"]
    except (LookupError, TypeError):
        return "a job"
    if folder.name.startswith("spmd-"):
        what = "a function of hers"
    return f"{what}, {workers} worker{'s' * (workers != 1)}, {world}"


def _guardian(folder: Path) -> int | None:
    """Return the process that guards a job; None before it has written its number."""
    try:
        with open(folder / "job.jsonl", "rb") as records:
            pid = json.loads(records.readline())["pid"]
        guards = b"dlpar.jobs.guard" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, LookupError):
        return None
    return pid if guards else None


def note_activity(settings: dict[str, Any]) -> None:
    """Count a running job as activity in the notebook, which Jupyter's server reports to the hub."""
    if any_running():
        settings["last_activity_times"]["dlpar"] = utcnow(with_tz=True)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Load the extension; Jupyter's server calls this."""
    if "JUPYTERHUB_API_URL" not in os.environ:
        return  # without a hub nobody asks
    settings = server.web_app.settings
    settings["dlpar_hub"] = HubAuth(parent=server)
    server.web_app.add_handlers(".*$", [(url_path_join(settings["base_url"], "dlpar", "jobs"), Jobs)])
    PeriodicCallback(lambda: note_activity(settings), 1000 * LOOK).start()
