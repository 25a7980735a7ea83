"""Systems that start scripts as workers and leave training to the scripts.

The calls are Cloudera ML's, and the cluster specification is TensorFlow's.

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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dlpar.config.experiment import BadExperiment
from dlpar.jobs.launch import Job, begin, load
from dlpar.jobs.tail import result_path
from dlpar.systems.record import Runs, System, shape

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


def launch_workers(n: int, script: str | Path, timeout: float = 600.0) -> list[Worker]:
    """Start a script in n processes and return at once.

    Each process finds its number in ``DLPAR_WORKER``, and all addresses in ``TF_CONFIG``.  The result of a
    script is its variable `result`, unless the script calls ``sys.exit``.  An error in a script does not end the
    others. A process that dies, such as by a signal, ends all.

    Parameters
    ----------
    n : int
        Number of processes, at least 1.
    script : str or Path
        A Python file.
    timeout : float, default 600
        Seconds after which all running scripts are ended.

    Raises
    ------
    BadExperiment
        If the file is missing or a value is bad, in one sentence.
    """
    return _launch({"worker": (n, script)}, timeout)


def run_cluster(
    n_workers: int, n_ps: int, worker_script: str | Path, ps_script: str | Path, timeout: float = 600.0
) -> list[Worker]:
    """Start workers and parameter servers, each with the cluster and its own task in ``TF_CONFIG``.

    Parameters
    ----------
    n_workers, n_ps : int
        Number of processes of each role: at least 1 worker, and at least 0 servers.
    worker_script, ps_script : str or Path
        Python file of each role.
    timeout : float, default 600
        As in :func:`launch_workers`.
    """
    return _launch({"worker": (n_workers, worker_script), "ps": (n_ps, ps_script)}, timeout)


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
        why = worker.job.run.reason if worker.job.ended else "still running"
        outcome = load(path.read_bytes()) if path.exists() else {"error": why or "ended"}
        kind = "failures" if "error" in outcome else "workers"
        found[kind].append({"role": worker.role, "index": worker.index, **outcome})
    return found


def stop_workers(workers: Sequence[Worker]) -> None:
    """Stop the jobs of these workers and remove their files."""
    for job in {worker.job for worker in workers}:
        job.stop()
        shutil.rmtree(job.folder, ignore_errors=True)


def _launch(roles: Mapping[str, tuple[int, str | Path]], timeout: float) -> list[Worker]:
    for role, (count, script) in roles.items():
        least = int(role == "worker")
        if not isinstance(count, int) or count < least:
            raise BadExperiment(f"{role} processes: got {count}, allowed is a whole number from {least}")
        if count and not (isinstance(script, (str, Path)) and Path(script).is_file()):
            raise BadExperiment(f"{role} script: got {str(script)!r}, allowed is the path of a file")
    scripts = {role: str(Path(script).resolve()) for role, (count, script) in roles.items() if count}
    tasks = [(role, n, scripts[role]) for role, (count, _) in roles.items() for n in range(count)]
    job = begin(_run, tasks, workers=len(tasks), world="real", timeout=timeout)
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
    sys.argv, sys.path[:0] = [script], [str(Path(script).parent)]
    try:
        return {"result": runpy.run_path(script, run_name="__main__").get("result")}
    except SystemExit as end:
        return {"error": f"exit status {end.code}"} if end.code else {"result": None}
    except Exception:
        return {"error": traceback.format_exc()}


# ---- records ----------------------------------------------------------------------------


SCRIPTS = Path(__file__).with_name("scripts")


def _ended(start: Callable[..., list[Worker]], *given: Any) -> dict[str, Any]:
    """Start workers, and return their results and failures."""
    workers = start(*given, timeout=50)
    try:
        return await_workers(workers, timeout=40)
    finally:
        stop_workers(workers)


def _descends(runs: Runs) -> bool:
    """Return whether four processes end at one process's weight, 1 - 0.8²⁰.

    The loss is a mean of squares with its minimum at 1.  Descent takes 20 steps from 0 at rate 0.1.
    """
    ended = runs["3 workers, 1 server"]["workers"]
    return len(ended) == 4 and all(abs(each["result"] - (1 - 0.8**20)) < 1e-9 for each in ended)


def _sums(runs: Runs) -> bool:
    return sum(each["result"] for each in runs["3 workers"]["workers"]) == sum(range(1000))


def _names_the_failure(runs: Runs) -> bool:
    (failure,) = runs["4 workers"]["failures"]
    is_named = failure["index"] == 3 and "on purpose" in failure["error"]
    return is_named and len(runs["4 workers"]["workers"]) == 3


SYSTEMS = (
    System(
        "cloudera_ml", "Cloudera Machine Learning", 2018, "Cloudera documentation, Distributed computing with workers",
        "synchronous", "centralised", "one model", 
        "launch_workers starts a script n times; await_workers returns results and failures",
        lambda: {f"{n} workers": partial(_ended, launch_workers, n, SCRIPTS / "shares.py") for n in (3, 4)},
        (shape("three workers' results add up to those of one process", _sums),
         shape("a script that fails is named, and does not end the others", _names_the_failure)),
        missing="containers with their own processors and memory",
    ),
    System(
        "tensorflow_cloud", "TensorFlow in the cloud", 2017,
        "Cloudera documentation (run_cluster); Google Cloud ML Engine and Azure (TF_CONFIG)", "synchronous",
        "centralised", "one model",
        "run_cluster gives workers and servers one cluster specification, TF_CONFIG; their scripts train",
        lambda: {"3 workers, 1 server": partial(
            _ended, run_cluster, 3, 1, SCRIPTS / "worker.py", SCRIPTS / "server.py")},
        (shape("four processes that find each other by TF_CONFIG descend like one process, to 1e-9", _descends),),
        missing="TensorFlow itself; rented machines",
    ),
)  # fmt: skip
