"""Running jobs of this account, whoever launched them.

A hub's process imports this module: it loads neither torch nor numpy nor pydantic.
"""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from dlpar.config.paths import runs_folder, runtime_folder
from dlpar.jobs.diagnosis import pids_of, still_ranks
from dlpar.jobs.processes import kill
from dlpar.jobs.scratch import is_locked
from dlpar.jobs.tail import lines_of


def end_running(job: str) -> None:
    """Ask a running job of this account to end, and return at once. Starting jobs are not ended."""
    found = [folder for folder in _running_folders() if folder.name == job]
    pids = [record["pid"] for folder in found for record in lines_of(folder / "job.jsonl") if "pid" in record]
    kill(still_ranks(pids[:1]), signal.SIGTERM)  # the first is its guardian's


def _running_folders() -> list[Path]:
    """Return the folders of the running jobs, the oldest first."""
    if not any(map(is_locked, runtime_folder().glob("job-*"))):
        return []  # cheaply
    folders = [*sorted(runs_folder().glob("*")), *sorted(runtime_folder().glob("spmd-*"))]
    return [folder for folder in folders if is_locked(folder)]


def running() -> list[dict[str, Any]]:
    """Return this account's running jobs, whoever launched them, as ``{id, says, ranks}``."""
    found = [(folder, len(still_ranks(pids_of(folder)))) for folder in _running_folders()]
    return [{"id": folder.name, "says": _described(folder), "ranks": ranks} for folder, ranks in found]


def _described(folder: Path) -> str:
    """Describe a job in words."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        e = json.loads((folder / "experiment.json").read_bytes())
        trains = f"{e['model']['name']} on {e['data']['name']}, {e['sync']['scheme']}"
        what = "a function of hers" if folder.name.startswith("spmd-") else trains
        return f"{what}, {e['workers']} worker{'s' * (e['workers'] != 1)}, {e['cluster']['world']}"
    return "a job"
