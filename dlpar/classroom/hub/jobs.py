"""The jobs of one account that are running now, what memory they take, and how to stop one."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from dlpar.config.paths import runs_folder, runtime_folder
from dlpar.jobs.diagnosis import pids_of, still_ranks
from dlpar.jobs.processes import descendants, resident


class CannotStop(ValueError):
    """No such job, or it cannot be stopped now; in one sentence."""


def any_running() -> bool:
    """Whether a job of this account is running; cheap, for asking every half minute."""
    return any(_held(folder) for folder in runtime_folder().glob("job-*"))


def running() -> list[dict[str, Any]]:
    """Jobs running now, the oldest first: ``{id, says, ranks, memory}``; memory in bytes."""
    if not any_running():
        return []
    folders = [*sorted(_folders(runs_folder(), "*")), *sorted(_folders(runtime_folder(), "spmd-*"))]
    return [_told(folder) for folder in folders if _held(folder)]


def stop(which: str) -> None:
    """End a job; returns at once, the job is gone within 2 s.

    Raises
    ------
    CannotStop
        If there is no such job, or it has only begun to start.
    """
    if not re.fullmatch(r"[\w.-]+", which):
        raise CannotStop(f"job: got {which!r}, allowed is the id of a running job")
    for folder in (runs_folder() / which, runtime_folder() / which):
        if _held(folder):
            supervisor = _supervisor(folder)
            if supervisor is None:
                raise CannotStop(f"job: {which} is only starting; try again in a moment")
            os.kill(supervisor, signal.SIGTERM)
            return
    raise CannotStop(f"job: got {which!r}, which is not running")


def memory() -> int:
    """Bytes of all processes of this account's server, kernels, fork server and jobs; shared pages counted once."""
    ours = {os.getpid(), *descendants(os.getpid())}
    for server in _fork_servers():
        ours |= {server, *descendants(server)}
    return sum(resident(pid) for pid in ours)


def _folders(root: Path, pattern: str) -> list[Path]:
    return [folder for folder in root.glob(pattern) if folder.is_dir()]


def _held(folder: Path) -> bool:
    """Whether a job holds the folder's lock, which the kernel frees on any death."""
    try:
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def newest_runs(most: int = 20) -> list[dict[str, Any]]:
    """This account's newest runs: ``{id, says, experiment}``, the newest first."""
    found = []
    for folder in sorted(_folders(runs_folder(), "*"), reverse=True)[:most]:
        if (experiment := _experiment(folder)) is not None:
            found.append({"id": folder.name, "says": _says(folder, experiment), "experiment": experiment})
    return found


def _experiment(folder: Path) -> Any:
    """What is in its experiment.json; None if that cannot be read."""
    try:
        return json.loads((folder / "experiment.json").read_bytes())
    except (OSError, ValueError):
        return None


def _says(folder: Path, experiment: Any) -> str:
    """A job in words."""
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


def _told(folder: Path) -> dict[str, Any]:
    """What a teacher needs to know of a job."""
    ranks = still_ranks(pids_of(folder))
    supervisor = _supervisor(folder)
    ours = {*ranks, *(descendants(supervisor) if supervisor else ())}
    memory = sum(resident(pid) for pid in ours)
    return {
        "id": folder.name,
        "says": _says(folder, _experiment(folder)),
        "ranks": len(ranks),
        "memory": memory,
    }


def _supervisor(folder: Path) -> int | None:
    """The process that guards a job; None before it has said so."""
    try:
        with open(folder / "job.jsonl", "rb") as records:
            pid = json.loads(records.readline())["pid"]
        guards = b"dlpar.jobs.guard" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, LookupError):
        return None
    return pid if guards else None


def _fork_servers() -> list[int]:
    """Processes that have torch loaded and wait for jobs; several if dlpar's files have changed meanwhile."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        sockets = os.fsencode(runtime_folder() / "warm-")
        if b"dlpar.jobs.fork_server" in words and any(word.startswith(sockets) for word in words):
            found.append(int(name))
    return found
