"""Collecting the facts about this machine, in less than six seconds."""

from __future__ import annotations

import os
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dlpar.cli.doctor import system, trials
from dlpar.cli.doctor.facts import Machine, Starter
from dlpar.config.paths import runs_folder, runtime_folder
from dlpar.jobs.control_groups import ControlGroups, memory, usable_cores
from dlpar.jobs.mpiexec import NoMPI, find_starter

BUDGET = 4.0
"""Seconds all trials together may take."""

SETTINGS = ("OMPI_MCA_", "PRTE_MCA_", "DLPAR_")
"""Beginnings of environment variables that change what works."""


def look() -> Machine:
    """The facts; where a thing cannot be found out, its field says so."""
    began = time.monotonic()
    with ThreadPoolExecutor(1) as beside:
        rest = beside.submit(_facts)
        mpi = _mpi(began + BUDGET)
        return Machine(**rest.result(), **mpi)


def _facts() -> dict[str, Any]:
    groups = ControlGroups()
    there = memory()
    open_files, processes = _limits()
    allowed = [n for n in (processes, groups.processes()) if n is not None]
    return {
        "system": f"{platform.system()} {platform.release()}",
        "container": system.container(),
        "slurm": "SLURM_JOB_ID" in os.environ,
        "cores": os.cpu_count() or 1,
        "usable_cores": usable_cores(),
        "quota": groups.quota(),
        "memory": there.total,
        "memory_free": there.free,
        "memory_limited": there.limited,
        "gpus": system.gpus(),
        "versions": {"python": platform.python_version(), **system.versions()},
        "torch_cuda": system.torch_cuda(),
        "shared_memory": system.folder(Path("/dev/shm")) if Path("/dev/shm").is_dir() else None,
        "runs": system.folder(runs_folder()),
        "attach": trials.attach(),
        "ptrace_scope": _ptrace_scope(),
        "open_files": open_files,
        "processes": min(allowed, default=None),
        "settings": {k: v for k, v in os.environ.items() if k.startswith(SETTINGS)},
    }


def _mpi(deadline: float) -> dict[str, Any]:
    """What there is of MPI, and what it can do; nothing is tried where sockets cannot be made."""
    try:
        runtime = system.folder(runtime_folder())
    except OSError as error:
        return {"runtime_problem": str(error)}
    try:
        found = find_starter()
    except NoMPI as error:
        return {"runtime": runtime, "starter_problem": str(error)}
    facts: dict[str, Any] = {"runtime": runtime, "starter": Starter(found.path, found.dialect, found.version)}
    facts["ranks_meet"] = trials.ranks_meet(found)
    if facts["ranks_meet"].worked and (left := deadline - time.monotonic()) > 0.5:
        facts["two_ranks"], facts["start"] = trials.two_ranks(left)
    return facts


def _limits() -> tuple[int | None, int | None]:
    """Open files and processes this process may have; None: no limit."""
    if sys.platform == "win32":
        return None, None
    import resource

    numbers = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    soft = [resource.getrlimit(number)[0] for number in numbers]
    return tuple(None if limit == resource.RLIM_INFINITY else limit for limit in soft)


def _ptrace_scope() -> int | None:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None
