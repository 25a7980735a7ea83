"""Run scripts as workers of a cluster, with Cloudera ML's calls and TensorFlow's cluster specification.

Sources: Cloudera Machine Learning, "Distributed computing with workers" (``launch_workers``, ``await_workers``) and
its ``cdsw_tensorflow_utils.run_cluster``; TensorFlow's ``TF_CONFIG``, as Cloud ML and Azure set it.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dlpar.config.experiment import BadExperiment
from dlpar.jobs.launch import Job, begin, load
from dlpar.jobs.tail import result_path

if TYPE_CHECKING:
    from dlpar.comm import Comm


class Worker(NamedTuple):
    """Process of a job that runs a script.

    Its `role` is ``worker`` or ``ps``, and `index` counts within this role.
    """

    job: Job
    rank: int
    role: str
    index: int


def launch_workers(n: int, script: str | Path, timeout: float = 600.0, **cluster: Any) -> list[Worker]:
    """Start a script in n processes and return at once.

    Each process finds its number in ``DLPAR_WORKER``, and all addresses in ``TF_CONFIG``.  The result of a
    script is its variable `result`.  A failed script does not end the others.

    Parameters
    ----------
    n : int
        Number of processes, at least 1.
    script : str or Path
        A Python file.
    timeout : float, default 600
        Seconds after which all running scripts are ended.
    **cluster
        Further fields of an experiment's cluster, such as ``hostfile``.

    Raises
    ------
    BadExperiment
        If the file is missing or a value is bad, in one sentence.
    """
    return _launch({"worker": (n, script)}, timeout, cluster)


def run_cluster(
    n_workers: int,
    n_ps: int,
    worker_script: str | Path,
    ps_script: str | Path,
    timeout: float = 600.0,
    **cluster: Any,
) -> list[Worker]:
    """Start workers and parameter servers, each with the cluster and its own task in ``TF_CONFIG``.

    Parameters
    ----------
    n_workers, n_ps : int
        Number of processes of each role: at least 1 worker, and at least 0 servers.
    worker_script, ps_script : str or Path
        Their Python files.
    timeout, **cluster
        As of :func:`launch_workers`.
    """
    return _launch({"worker": (n_workers, worker_script), "ps": (n_ps, ps_script)}, timeout, cluster)


def await_workers(workers: Sequence[Worker], timeout: float = 60.0) -> dict[str, list[dict[str, Any]]]:
    """Wait at most `timeout` seconds until the scripts have ended.

    Returns
    -------
    dict
        ``workers``: role, index and result of each successful script.  ``failures``: role, index and error of
        all others, including running scripts.
    """
    deadline, found = time.monotonic() + timeout, {"workers": [], "failures": []}
    for worker in workers:
        path = result_path(worker.job.folder, worker.rank)
        while not path.exists() and not worker.job.ended and time.monotonic() < deadline:
            time.sleep(0.02)
        unfinished = {"error": "ended" if worker.job.ended else "still running"}
        outcome = load(path.read_bytes()) if path.exists() else unfinished
        kind = "failures" if "error" in outcome else "workers"
        found[kind].append({"role": worker.role, "index": worker.index, **outcome})
    return found


def stop_workers(workers: Sequence[Worker]) -> None:
    """Stop the jobs of these workers and remove their files."""
    for job in {worker.job for worker in workers}:
        job.stop()
        shutil.rmtree(job.folder, ignore_errors=True)


def _launch(
    roles: Mapping[str, tuple[int, str | Path]], timeout: float, cluster: Mapping[str, Any]
) -> list[Worker]:
    for role, (count, script) in roles.items():
        if count < (least := int(role == "worker")):
            raise BadExperiment(f"{role} processes: got {count}, allowed is a whole number from {least}")
        if not Path(script).is_file():
            raise BadExperiment(f"{role} script: got {str(script)!r}, allowed is the path of a file")
    scripts = {role: str(Path(script).resolve()) for role, (_, script) in roles.items()}
    tasks = [(role, n, scripts[role]) for role, (count, _) in roles.items() for n in range(count)]
    job = begin(_run, tasks, workers=len(tasks), timeout=timeout, **{"world": "real", **cluster})
    return [Worker(job, rank, role, n) for rank, (role, n, _) in enumerate(tasks)]


def _run(comm: Comm, tasks: list[tuple[str, int, str]]) -> dict[str, Any]:
    """Run this rank's script with the addresses of all ranks, each on a free port."""
    role, number, script = tasks[comm.rank]
    with socket.socket() as free:
        free.bind(("", 0))
        own = (socket.gethostname(), free.getsockname()[1])
    hosts = comm.broadcast(comm.gather(own))
    is_one = len({host for host, _ in hosts}) == 1
    addresses = [f"{'127.0.0.1' if is_one else host}:{port}" for host, port in hosts]
    spec: dict[str, list[str]] = {}
    for (kind, *_), address in zip(tasks, addresses):
        spec.setdefault(kind, []).append(address)
    os.environ["TF_CONFIG"] = json.dumps({"cluster": spec, "task": {"type": role, "index": number}})
    os.environ["DLPAR_WORKER"] = str(number)
    sys.argv = [script]
    try:
        return {"result": runpy.run_path(script, run_name="__main__").get("result")}
    except SystemExit as end:
        return {"error": f"exit status {end.code}"} if end.code else {"result": None}
    except Exception:
        return {"error": traceback.format_exc()}
