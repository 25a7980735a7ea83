"""Launch and control of a job, from a notebook, the command line or a test."""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dlpar
from dlpar.config.experiment import BadExperiment, Experiment
from dlpar.config.paths import private_folder, read_plain, runs_folder, runtime_folder
from dlpar.config.rules import refuse
from dlpar.config.schema import BadData, shown
from dlpar.config.user_code import pack
from dlpar.jobs.diagnosis import OF_ALL, REMOVED, dead_in, pids_of, rank_files, still_ranks
from dlpar.jobs.fork_server import idle_seconds
from dlpar.jobs.memory_check import check_memory
from dlpar.jobs.run import Run
from dlpar.jobs.scratch import Scratch, lock, sweep
from dlpar.jobs.slots import keeper_socket
from dlpar.jobs.summary import Summary, facts_of
from dlpar.jobs.tail import CALL, ORDERS, Tail, attempts_in, result_path
from dlpar.jobs.unix_sockets import close_files
from dlpar.worlds.mpiexec import environment, find_starter, on_one_host
from dlpar.worlds.platforms import nodes_of, workload

load = pickle.loads
"""Reader of results. A process that does not trust the ranks replaces it with a stricter reader."""

_live: list[Job] = []
"""References to running jobs, so that a job continues if the caller drops its object."""


LIMITS = {"n": (resource.RLIMIT_NOFILE, 64, 8), "f": (resource.RLIMIT_FSIZE, 1 << 26, 0)}
"""Options of ``ulimit``: the limit, its minimum, and how much each process of the job adds."""

CLEARING = 15.0
"""Seconds to wait for the clean-up after a job's end: the guardian takes at most 10, and the rest is a margin."""

NEED_A_GPU = {"device": ("cuda", "auto or cpu"), "carrier": ("nccl", "auto, mpi or gloo")}
"""Fields of a cluster: the value that needs a GPU, and the values allowed without a GPU."""


class JobFailed(RuntimeError):
    """Error: a job did not finish. The message contains the reason and every failed rank's traceback."""


class Job:
    """Job: ranks that write to a folder, and their guardian process.

    The job ends with the process that started the job, even if that process is killed.

    Parameters
    ----------
    folder : Path
        Run folder, or the folder of a function's results.
    experiment : Experiment
        The job's experiment.
    held : int, optional
        Descriptor of the folder's lock, if the caller has it; default: the job takes the lock.
    """

    def __init__(self, folder: Path, experiment: Experiment, held: int | None = None) -> None:
        self.folder, self.launched, self.experiment = folder, time.time(), experiment
        sweep()
        scratch, locks = Scratch.fresh(), list[int]()
        try:
            spec = json.dumps(self._spec(scratch, experiment)).encode()
            # The guardian inherits the locks, so the run is live until the guardian ends, for any reason.
            locks += [lock(folder / "lock", math.inf) if held is None else os.dup(held)]
            locks += [lock(scratch.lock, math.inf)]
            command = [sys.executable, "-I", "-S", "-c", _GUARD, str(Path(dlpar.__file__).parent.parent)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            env = {**os.environ, "DLPAR_RUNTIME": str(runtime_folder())}  # it may be relative to our folder
            apart = {"cwd": "/", "env": env, "start_new_session": True, "pass_fds": locks}
            self._guardian = subprocess.Popen(command, **pipes, **apart)
        except BaseException:
            scratch.remove()
            raise
        finally:
            close_files(locks)
        try:
            self._guardian.stdin.write(spec + b"\n")
            self._guardian.stdin.flush()
        except BrokenPipeError:
            raise JobFailed("the launcher ended before the job began; is the disk full?") from None
        _live[:] = [job for job in _live if not job.ended] + [self]

    def _spec(self, scratch: Scratch, experiment: Experiment) -> dict[str, Any]:
        """Return the facts that the guardian needs, in a form ready for JSON."""
        starter, ranks, cluster = find_starter(), experiment.processes, experiment.cluster
        survives = experiment.deaths.goes_on and cluster.world != "simulated"
        arguments = [str(self.folder), str(ranks), "{began}"]
        cold = [sys.executable, "-m", "dlpar.jobs.rank", *arguments]
        warm = [sys.executable, "-S", "-E", str(Path(__file__).with_name("stub.py")), "{socket}", *arguments]
        one_host = on_one_host(starter, cluster.hostfile)
        warmed = one_host and starter.dialect == "openmpi5"
        # A simulation is one process and takes no slot, so a student need not wait for it.
        queue = None if cluster.world == "simulated" or not one_host else keeper_socket()
        return {
            "folder": str(self.folder),
            "cold": starter.command(ranks, cold, cluster.hostfile, survives),
            "warm": starter.command(ranks, warm, None, survives) if warmed else None,
            "env": environment(scratch.folder, scratch.memory, one_host),
            "queue": str(queue) if queue else None,
            "cwd": os.getcwd(),
            "scratch": scratch.folder.name.removeprefix("job-"),
            "timeout": cluster.timeout,
            "one_host": one_host,
            "ranks": ranks,
            "owner": os.getpid(),
            "who": os.environ.get("JUPYTERHUB_USER", ""),
            "launched": self.launched,
            # A resumed run may go on with other workers than those of its experiment.
            "summary": facts_of(self.run.experiment),
        }

    @property
    def run(self) -> Run:
        """Run of this job. It is readable while the job runs."""
        return Run(self.folder)

    @property
    def ended(self) -> bool:
        """Return whether the job has ended and left nothing behind."""
        return self._guardian.poll() is not None

    @property
    def alive(self) -> int:
        """Number of live processes of the ranks on this machine."""
        return len(still_ranks(pids_of(self.folder)))

    def kill(self, rank: int) -> None:
        """Kill a real rank now, as if its machine died.

        A rank of another host that shares the run folder, or of another world, dies after its current step.

        Raises
        ------
        ValueError
            If there is no such living rank within reach.
        """
        self._order(rank, die=True)

    def pause(self, rank: int, seconds: float = 3.0) -> None:
        """Pause a rank for this many seconds. SIGSTOP stops a real rank of this machine. Others pause after a step.

        Raises
        ------
        ValueError
            As for :meth:`kill`, and for more than half of the job's timeout. At the timeout, the guardian
            ends the job.
        """
        most = self.experiment.cluster.timeout / 2
        if not 0 < seconds <= most:
            raise ValueError(f"seconds: got {seconds:g}, allowed is above 0 and at most {most:g}")
        self._order(rank, stall=seconds)

    def slow(self, rank: int, factor: float = 4.0) -> None:
        """Make a worker's computation take `factor` times as long from now on. A factor of 1 ends the slowdown.

        Raises
        ------
        ValueError
            As for :meth:`kill`, and for a factor below 1 or above 100.
        """
        if not 1 <= factor <= 100:
            raise ValueError(f"factor: got {factor:g}, allowed is 1 to 100")
        self._order(rank, factor=factor)

    def _order(self, rank: int, **order: float) -> None:
        """Let the guardian signal a rank, or write the order that the rank reads after each step.

        Real ranks of this machine are signalled, but for a factor. Workers of other hosts read,
        if the hosts share the run folder.
        """
        e, pids = self.experiment, pids_of(self.folder)
        here, is_real = {pids[pid] for pid in still_ranks(pids)}, e.cluster.world == "real"
        others = set(range(e.ranks if here else 0))
        if is_real:
            others = set() if self.ended else set(rank_files(self.folder)) - set(pids.values())
        reading = others - dead_in(self.folder) | (here if is_real and "factor" in order else set())
        if "die" not in order:
            reading -= set(range(e.workers, e.members))  # servers have no delays
        signalled = here if is_real and "factor" not in order else set()
        if rank not in (can := signalled | reading):
            allowed = f"one of {sorted(can)}, alive now" if can else "none: no rank is alive"
            raise ValueError(f"rank: got {rank}, allowed is {allowed}")
        if rank in signalled:
            return self._tell(json.dumps({"rank": rank, **order}))
        with open(self.folder / ORDERS, "a") as file:
            file.write(json.dumps({"k": "order", "rank": rank, **order}) + "\n")

    def _tell(self, words: str) -> None:
        """Send the guardian a message. Do nothing if the job has ended."""
        with suppress(OSError, ValueError):
            self._guardian.stdin.write(words.encode() + b"\n")
            self._guardian.stdin.flush()

    def wait(self, timeout: float | None = None) -> Run:
        """Wait for the end of the job.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait.  Without it, a job without progress still ends after the experiment's
            ``cluster.timeout``.

        Raises
        ------
        JobFailed
            If a rank failed or the job was stopped.
        TimeoutError
            If the job still runs after `timeout`. The job continues.
        KeyboardInterrupt
            If interrupted, after the job is stopped.
        """
        self._wait_ended(timeout)
        if not self.folder.exists():
            raise JobFailed(REMOVED)
        held = lock(self.folder / "lock", CLEARING)  # if its guardian was killed, others end the ranks
        if held is not None:
            os.close(held)
        if self.run.status != "done":
            raise JobFailed(_complaint(self.run))
        return self.run

    def wait_steps(self, steps: int, timeout: float = 60.0) -> Run:
        """Wait for this many global steps or the end of the job.

        Raise `TimeoutError` after `timeout` seconds.
        """
        deadline, run, tail = time.monotonic() + timeout, self.run, Tail(self.folder)
        so_far, number = Summary(run.id, **facts_of(run.experiment)), len(attempts_in(self.folder)) - 1
        while (so_far.steps.attempt, so_far.steps.done) < (number, steps) and not self.ended:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the job has not done {steps} steps after {timeout:g} s")
            time.sleep(0.02)
            so_far.add(tail.read())
        return run

    def stop(self, timeout: float = CLEARING, reason: str = "stopped by its owner") -> None:
        """End the job and wait until nothing of it is left. Do nothing if it has ended."""
        self._tell(reason)
        with suppress(OSError, ValueError):
            self._guardian.stdin.close()
        self._wait_ended(timeout)

    def _wait_ended(self, timeout: float | None) -> None:
        try:
            self._guardian.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the job is still running after {timeout:g} s") from None
        except KeyboardInterrupt:
            self.stop()
            raise


_GUARD = "import sys; sys.path.insert(0, sys.argv[1]); from dlpar.jobs.guard import main; main()"


def launch(experiment: Experiment) -> Job:
    """Start training and return at once. See ``job.run``, ``job.wait()`` and ``job.stop()``.

    Raises
    ------
    BadExperiment
        If this machine cannot run the experiment, or lacks the memory.
    NoMPI
        If there is no MPI to start ranks.
    """
    check_machine(experiment)
    return _begin(_new_run_folder(experiment), experiment)


def _begin(folder: Path, experiment: Experiment, **calls: bytes) -> Job:
    """Start a job in its new folder. If the start fails, no folder remains."""
    try:
        (folder / "experiment.json").write_text(experiment.to_json())
        for name, call in calls.items():
            (folder / name).write_bytes(call)
        return Job(folder, experiment)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def resume(run: Run | str | os.PathLike, workers: int | None = None) -> Job:
    """Resume a run from its newest snapshot and return at once.

    The resumed run is another attempt in the run's own folder.

    Under bulk-synchronous schemes, losses and weights equal those of an uninterrupted run.  Steps after the
    snapshot are repeated.  Their records from earlier attempts stay in the folder.

    Parameters
    ----------
    run : Run, path or str
        A run that ended before its last step, with ``snapshot.every`` above 0.
    workers : int, optional
        Number of workers that continue, with the same global batches; default: the experiment's number.

    Raises
    ------
    BadExperiment
        If the run is live or done, or has no complete snapshot of its own.
    """
    from dlpar.jobs import snapshot  # imported here, because it loads torch, which a launcher does not need

    run = run if isinstance(run, Run) else Run(run)
    refused = f"run: got {run.id}, which {{}}; allowed is one that ended before its last step"
    # Wait while its guardian cleans up; from then on no other process can resume the run.
    held = None if run.status in ("queued", "starting", "running") else lock(run.path / "lock", CLEARING)
    if held is None:
        raise BadExperiment(refused.format("is still running"))
    with os.fdopen(held, "w"):
        if run.status_if(live=False) == "done":
            raise BadExperiment(refused.format("is done"))
        experiment = run.experiment if workers is None else snapshot.resized(run.experiment, workers)
        check_machine(experiment)
        snapshot.begin(run.path, snapshot.newest(run.path, experiment))
        return Job(run.path, experiment, held)


def _new_run_folder(experiment: Experiment) -> Path:
    now = time.time()
    # Names sort by age, in any time zone.
    stamp = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{int(now % 1 * 1000):03d}"
    name = f"{stamp}-{experiment.sync}{experiment.workers}-{experiment.model}-{experiment.data}-{secrets.token_hex(2)}"
    return private_folder(private_folder(runs_folder()) / name)


def check_machine(experiment: Experiment) -> None:
    """Reject an experiment that this machine cannot run because of files, GPUs, limits or memory.

    Raises
    ------
    BadExperiment
        If it is not an experiment; if the hostfile, platform, workload, data folder or GPU is missing; if a
        workload has too few layers for a pipeline's stages; if ``ulimit`` or memory is too low; if
        ``$DLPAR_WARM_IDLE`` is no number.  The constructor of an experiment does not check these.
    NoMPI
        If there is no MPI to start ranks.
    """
    if not isinstance(experiment, Experiment):
        got = shown(experiment)
        raise BadExperiment(f"experiment: got {got}, allowed is an Experiment, such as Experiment(workers=2)")
    find_starter(), idle_seconds()  # both refuse a bad setting before any file changes
    for option, (limit, least, more) in LIMITS.items():
        needed = least + more * experiment.processes
        if 0 <= (given := resource.getrlimit(limit)[0]) < needed:  # below 0: no limit
            raise BadExperiment(f"ulimit -{option}: got {given:,}, allowed is at least {needed:,}")
    cluster, hostfile = experiment.cluster, experiment.cluster.hostfile
    if cluster.world != "real":
        nodes_of(experiment)
        if cluster.stand_in_for is not None:
            paper = workload(cluster.stand_in_for)
            if experiment.has_outline:
                refuse(experiment, experiment.split.too_few_layers(experiment, paper.name, len(paper.layers)))
    try:
        if hostfile is not None:
            read_plain(hostfile)
        experiment.data.path()
    except OSError as error:
        allowed = f"the path of an existing file ({error.strerror})"
        raise BadExperiment(f"cluster.hostfile: got {shown(hostfile)}, allowed is {allowed}") from None
    except BadData as error:
        raise BadExperiment(str(error)) from None
    gpu = Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
    for field, (given, allowed) in NEED_A_GPU.items():
        if getattr(cluster, field) == given and not gpu:
            raise BadExperiment(f"cluster.{field}: got {given!r}, allowed without an NVIDIA GPU is {allowed}")
    check_memory(experiment)


def _complaint(run: Run) -> str:
    """Return the reason and each failed rank's own traceback, unless the reason says all."""
    own = sorted((rank, e["traceback"].rstrip()) for rank, e in run.errors.items() if e["type"] not in OF_ALL)
    stories = [f"--- rank {rank} ---\n{traceback}" for rank, traceback in own]
    return "\n\n".join([run.reason or f"the job is {run.status}", *stories])


def spmd(
    function: Callable,
    *arguments: Any,
    workers: int = 4,
    world: str = "real",
    timeout: float = 60.0,
    **cluster: Any,
) -> list[Any]:
    """Call ``function(comm, *arguments)`` on every rank and return the ranks' results, in order.

    Single program, multiple data: every process calls one function with its own ``comm.rank``.

    Parameters
    ----------
    function : callable
        Takes a :class:`~dlpar.comm.Comm` as its first argument. It may come from a notebook cell.
    workers : int
        Number of ranks, 1 to 64; in the simulated world up to 256, and up to 4096 if messages carry only
        sizes.
    world : str
        ``"real"``: MPI processes on this machine; ``"paced"``: the same processes on a platform's clock;
        ``"simulated"``: all in one process, on a virtual clock, which finds a deadlock at once.
    timeout : float
        Seconds after which unfinished ranks are ended. The message names each rank's line of code.
    **cluster
        Further fields of an experiment's cluster: ``platform="p100-25gbe"``, ``messages="sizes"``.
        Real ranks' tensors are on the host, unless ``device="cuda"``.

    Raises
    ------
    BadExperiment
        For a bad value, in one sentence.
    JobFailed
        If a rank raised an exception, died or hung. One message holds every failed rank's own traceback.

    Examples
    --------
    >>> spmd(lambda comm: comm.rank ** 2, workers=3)
    [0, 1, 4]
    """
    job = begin(function, *arguments, workers=workers, world=world, timeout=timeout, **cluster)
    try:
        job.wait()
        return [load(result_path(job.folder, rank).read_bytes()) for rank in range(int(workers))]
    finally:
        shutil.rmtree(job.folder, ignore_errors=True)


def begin(function: Callable, *arguments: Any, workers: int, **cluster: Any) -> Job:
    """Start ``function(comm, *arguments)`` on every rank as :func:`spmd` does, and return at once.

    The result of rank r is written to ``result_path(job.folder, r)``, in a folder that the caller removes.
    """
    if not callable(function):
        raise BadExperiment(f"function: got {function!r}, allowed is a function that takes a comm")
    # Weak scaling: any number of workers is allowed.
    experiment = Experiment(workers=workers, scaling="weak", cluster=cluster)
    check_machine(experiment)
    call = pack(function, arguments)
    return _begin(Path(tempfile.mkdtemp(prefix="spmd-", dir=runtime_folder())), experiment, **{CALL: call})
