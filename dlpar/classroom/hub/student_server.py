"""An extension of a student's Jupyter server: trusted labs, her jobs as activity, and answers to the teacher's page.

The page learns her running jobs and their memory, and her predictions if she has agreed to share them.  It may stop
a job, and offer her an experiment (:mod:`dlpar.lab.offers`).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.utils import url_path_join
from jupyterhub.services.auth import HubAuth
from jupyterhub.utils import utcnow
from tornado.ioloop import PeriodicCallback
from tornado.web import HTTPError, RequestHandler

from dlpar.classroom.grading.release import untouched
from dlpar.classroom.hub.classroom import MAY_SEE_JOBS
from dlpar.config.paths import runs_folder, runtime_folder
from dlpar.jobs.diagnosis import pids_of, still_ranks
from dlpar.jobs.processes import descendants, resident
from dlpar.lab import offers
from dlpar.lab.ledger import shared_answers

LOOK = 30
"""Seconds between looks for a running job."""

MEASURED = 10
"""Seconds for which a measurement of memory is used: one costs milliseconds a process."""

NEWEST = 20
"""Runs that a teacher can choose from."""


class ForThePage(RequestHandler):
    """Answer tokens with the scope `MAY_SEE_JOBS`, and no others."""

    def check_xsrf_cookie(self) -> None:
        """Accept any request: only tokens are admitted, which other pages do not have."""

    async def prepare(self) -> None:
        """Refuse requests without such a token."""
        caller = await self.settings["dlpar_hub"].get_user(self, sync=False)
        if caller is None or MAY_SEE_JOBS not in caller["scopes"]:
            raise HTTPError(403)

    def asked(self) -> dict[str, Any]:
        """Return the request's body."""
        try:
            return dict(json.loads(self.request.body))
        except (ValueError, TypeError):
            raise HTTPError(400, reason="the body must be a JSON object") from None


class Jobs(ForThePage):
    """``GET``: ``{jobs, memory, offer, predictions}``; ``POST`` ``{stop: ID}`` or ``{offer: OFFER or null}``."""

    _memory = (-MEASURED, 0)

    @allow_unauthenticated  # by Jupyter's own rules; ours are above
    def get(self) -> None:
        """Tell what runs, which offer she has, and what she shares."""
        if time.monotonic() - self._memory[0] > MEASURED:
            type(self)._memory = time.monotonic(), memory()
        offer = offers.present()
        told = {"jobs": running(), "memory": self._memory[1], "offer": offer and offer["id"]}
        self.finish(told | {"predictions": shared_answers()})

    @allow_unauthenticated
    def post(self) -> None:
        """Stop a job, or replace the offer."""
        asked = self.asked()
        try:
            if "offer" in asked:
                offers.put(asked["offer"])
            elif "stop" in asked:
                stop(str(asked["stop"]))
            else:
                raise ValueError("stop or offer: got neither, allowed is one of them")
        except (ValueError, OSError) as error:
            raise HTTPError(400, reason=str(error)) from None
        self.finish({})


class Experiments(ForThePage):
    """``GET``: ``{runs}``, a teacher's newest; ``POST {experiment}``: the same, checked and complete."""

    @allow_unauthenticated
    def get(self) -> None:
        """Tell the newest runs, each ``{id, says, experiment}``."""
        folders = sorted(runs_folder().glob("*"), reverse=True)[:NEWEST]
        found = [(folder, _experiment(folder)) for folder in folders]
        runs = [{"id": f.name, "says": _says(f, e), "experiment": e} for f, e in found if e is not None]
        self.finish({"runs": runs})

    @allow_unauthenticated
    async def post(self) -> None:
        """Answer ``{experiment}`` or ``{refused}``."""
        self.finish(await asyncio.to_thread(_checked, self.asked().get("experiment")))


def _checked(fields: Any) -> dict[str, Any]:
    from dlpar.config.experiment import Experiment
    from dlpar.config.schema import BadExperiment

    try:
        experiment = Experiment.from_json(json.dumps(fields))
    except BadExperiment as error:
        return {"refused": str(error)}
    if experiment.sync.scheme == "own":
        why = "sync.scheme: got 'own', allowed is one of dlpar's: nobody's code is sent to others"
        return {"refused": why}
    return {"experiment": json.loads(experiment.to_json())}


def any_running() -> bool:
    """Tell whether a job of this account is running; cheap enough for every half minute."""
    return any(_is_locked(folder) for folder in runtime_folder().glob("job-*"))


def running() -> list[dict[str, Any]]:
    """List the running jobs, the oldest first: ``{id, says, ranks}``."""
    if not any_running():
        return []
    folders = [*sorted(runs_folder().glob("*")), *sorted(runtime_folder().glob("spmd-*"))]
    locked = [folder for folder in folders if _is_locked(folder)]
    return [
        {"id": f.name, "says": _says(f, _experiment(f)), "ranks": len(still_ranks(pids_of(f)))}
        for f in locked
    ]


def stop(job: str) -> None:
    """End a job; returns at once, and the job is gone within 2 s.

    Raises
    ------
    HTTPError
        If there is no such job, or it has only begun to start.
    """
    if not re.fullmatch(r"[\w.-]+", job):
        raise HTTPError(409, reason=f"job: got {job!r}, allowed is the id of a running job")
    for folder in (runs_folder() / job, runtime_folder() / job):
        if _is_locked(folder):
            guardian = _guardian(folder)
            if guardian is None:
                raise HTTPError(409, reason=f"job: {job} is only starting; try again in a moment")
            os.kill(guardian, signal.SIGTERM)
            return
    raise HTTPError(409, reason=f"job: got {job!r}, which is not running")


def memory() -> int:
    """Measure the memory of this server, its kernels, fork servers and jobs in bytes; shared pages count once."""
    roots, sockets = [os.getpid()], str(runtime_folder() / "warm-")
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "dlpar.jobs.fork_server" in words and any(word.startswith(sockets) for word in words):
            roots.append(process.pid)
    return sum(map(resident, {pid for root in roots for pid in (root, *descendants(root))}))


def _is_locked(folder: Path) -> bool:
    """Tell whether a job holds the folder's lock, which the kernel frees on any death."""
    try:
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _experiment(folder: Path) -> Any:
    """Read a run's experiment.json; None if it cannot be read."""
    try:
        return json.loads((folder / "experiment.json").read_bytes())
    except (OSError, ValueError):
        return None


def _says(folder: Path, experiment: Any) -> str:
    """Describe an experiment in words."""
    try:
        what = (
            f"{experiment['model']['name']} on {experiment['data']['name']}, {experiment['sync']['scheme']}"
        )
        world, workers = experiment["cluster"]["world"], experiment["workers"]
    except (LookupError, TypeError):
        what, world, workers = "a job", "unknown", 0
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


def trust(own: Path, notary: Any) -> list[str]:
    """Sign the labs in a student's folder that are as they were delivered; returns their names.

    JupyterLab shows no saved widget of a notebook it does not trust, and trusts one only if each of its cells was
    run here, or had no output.  Without this, a panel she has run would be a line of text after the next login.
    """
    signed = []
    for name in untouched(own):
        if name.endswith(".ipynb"):
            try:
                notary.sign(nbformat.read(own / name, as_version=4))
            except Exception:  # no notebook, or one of a later form: it opens all the same
                continue
            signed.append(name)
    return signed


def note_activity(settings: dict[str, Any]) -> None:
    """Count a running job as activity in the notebook, which Jupyter's server reports to the hub."""
    if any_running():
        settings["last_activity_times"]["dlpar"] = utcnow(with_tz=True)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Load the extension; Jupyter's server calls this."""
    trust(Path(server.root_dir), server.contents_manager.notary)
    if "JUPYTERHUB_API_URL" not in os.environ:
        return  # without a hub nobody asks
    settings = server.web_app.settings
    settings["dlpar_hub"] = HubAuth(parent=server)
    ours = {"jobs": Jobs, "experiments": Experiments}
    handlers = [(url_path_join(settings["base_url"], "dlpar", name), ours[name]) for name in ours]
    server.web_app.add_handlers(".*$", handlers)
    PeriodicCallback(lambda: note_activity(settings), 1000 * LOOK).start()
