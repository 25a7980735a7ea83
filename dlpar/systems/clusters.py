"""Systems that start scripts as workers and leave training to the scripts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from dlpar.jobs.cluster import await_workers, launch_workers, run_cluster, stop_workers
from dlpar.systems.record import Runs, System, shape

SCRIPTS = Path(__file__).with_name("scripts")


def _ended(workers: Any) -> dict[str, Any]:
    try:
        return await_workers(workers, timeout=40)
    finally:
        stop_workers(workers)


def _workers(count: int) -> dict[str, Any]:
    return _ended(launch_workers(count, SCRIPTS / "shares.py", timeout=50))


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
        lambda: {f"{n} workers": partial(_workers, n) for n in (3, 4)},
        (shape("three workers' results add up to those of one process", _sums),
         shape("a worker that fails is named, and does not end the others", _names_the_failure)),
        missing="containers with their own processors and memory",
    ),
    System(
        "tensorflow_cloud", "TensorFlow, Cloud ML, Azure", 2017,
        "Google Cloud ML Engine; Azure, distributed training (TF_CONFIG)", "synchronous", "centralised", "one model",
        "run_cluster gives workers and servers one cluster specification, TF_CONFIG; their scripts train",
        lambda: {"3 workers, 1 server": lambda: _ended(
            run_cluster(3, 1, SCRIPTS / "worker.py", SCRIPTS / "server.py", timeout=50))},
        (shape("four processes that find each other by TF_CONFIG descend like one process, to 1e-9", _descends),),
        missing="TensorFlow itself; rented machines",
    ),
)  # fmt: skip
