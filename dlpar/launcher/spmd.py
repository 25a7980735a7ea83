"""Running a function typed into a notebook cell on every rank of a fresh world."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlpar.experiment import MAX_WORKERS, BadExperiment, Experiment
from dlpar.launcher.diagnosis import LEFT
from dlpar.launcher.job import Job, JobFailed
from dlpar.launcher.payload import CALL, load_result, pack, result_path
from dlpar.launcher.room import check_room
from dlpar.paths import runtime_folder


def spmd(
    function: Callable,
    *arguments: Any,
    workers: int = 4,
    world: str = "real",
    timeout: float = 60.0,
    **cluster: Any,
) -> list[Any]:
    """Call ``function(comm, *arguments)`` on every rank and return what each rank returned, in order.

    Single program, multiple data: one function, as many processes, each with its
    own ``comm.rank``.

    Parameters
    ----------
    function : callable
        Takes a :class:`~dlpar.comm.Comm` first; may come from a notebook cell.
    workers : int
        Ranks, 1 to 64; in the simulated world to 256, and to 4096 if messages carry sizes only.
    world : str
        ``"real"``: MPI processes on this machine; ``"paced"``: the same, keeping a platform's time;
        ``"simulated"``: all in one process, on a virtual clock, where a deadlock is found at once.
    timeout : float
        Seconds after which ranks that have not returned are ended; the message says where each stood.
    **cluster
        Further fields of an experiment's cluster: ``platform="p100-25gbe"``, ``messages="sizes"``.

    Raises
    ------
    BadExperiment
        For a bad value, in one sentence.
    JobFailed
        If a rank raised, died or hung: one message with every failed rank's own traceback.

    Examples
    --------
    >>> spmd(lambda comm: comm.rank ** 2, workers=3)
    [0, 1, 4]
    """
    _check(function, workers, timeout)
    # Weak scaling: any number of workers is allowed.
    whole = Experiment(
        workers=workers, scaling="weak", cluster={**cluster, "world": world, "timeout": timeout}
    )
    whole.check_files()
    check_room(whole)
    folder = called(whole, function, *arguments)
    try:
        Job(folder, whole.processes, timeout, simulated=world == "simulated").wait()
        for rank in range(workers):
            if not result_path(folder, rank).exists():
                raise JobFailed(f"{'a rank' if world == 'simulated' else f'rank {rank}'} {LEFT}")
        return [load_result(folder, rank) for rank in range(workers)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def called(world: Experiment, function: Callable, *arguments: Any) -> Path:
    """A fresh folder of a job that calls ``function(comm, *arguments)`` on every rank of an experiment's world."""
    folder = Path(tempfile.mkdtemp(prefix="spmd-", dir=runtime_folder()))
    (folder / "experiment.json").write_text(world.to_json())
    try:
        (folder / CALL).write_bytes(pack(function, arguments))
    except BaseException:  # what cannot be packed leaves nothing behind
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _check(function: Any, workers: Any, timeout: Any) -> None:
    if not callable(function):
        raise BadExperiment(f"function: got {function!r}, allowed is a function that takes a comm")
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= MAX_WORKERS:
        raise BadExperiment(f"workers: got {workers!r}, allowed is a whole number from 1 to {MAX_WORKERS}")
    if not isinstance(timeout, (int, float)) or not 0 < timeout <= 86_400:
        raise BadExperiment(
            f"timeout: got {timeout!r}, allowed is a number of seconds above 0 and at most 86,400"
        )
