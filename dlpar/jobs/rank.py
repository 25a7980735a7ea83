"""Life of a rank: join the other ranks, do the work, and record errors.

A real or paced rank is a separate process. It is started by mpiexec (cold), forked by the fork server (warm),
or started by hand on a cluster: ``mpiexec -n 4 python -m dlpar.jobs.rank RUN_FOLDER 4``. The ranks of a
simulation share one process and a virtual clock.
"""
# ruff: noqa: E402  two things must be done before the seconds in which MPI and torch are imported

from __future__ import annotations

import mpi4py

from dlpar.jobs.processes import adopt_orphans, die_with_parent, end_children

mpi4py.rc.initialize = mpi4py.rc.finalize = False
if __name__ == "__main__":
    die_with_parent()

import faulthandler
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import cloudpickle
import torch
from mpi4py import MPI

from dlpar.comm import Comm
from dlpar.config.experiment import BadExperiment, Experiment
from dlpar.config.paths import write_whole
from dlpar.config.schema import load_plugins
from dlpar.config.user_code import unpack
from dlpar.jobs.control_groups import cores, usable_cores
from dlpar.jobs.diagnosis import RUNNING
from dlpar.jobs.record import RankFile, Recorder
from dlpar.jobs.recovery import work
from dlpar.jobs.snapshot import Attempt, written
from dlpar.jobs.tail import ALL_RANKS, CALL, REFUSAL, result_path
from dlpar.train import role
from dlpar.worlds.connect import join
from dlpar.worlds.mpi import meet
from dlpar.worlds.simulated.run import of_experiment, run_program
from dlpar.worlds.simulated.simulator import Deadlock, Simulator, Task

Call = tuple[Callable, tuple]
"""A function that ranks call instead of training, and its arguments after the communicator."""

GRACE = 0.25
"""Seconds for which a failed rank waits, so that other failed ranks can report before the job ends."""

PATIENCE = 0.7
"""Share of a job's timeout after which a simulated rank that never yields is named."""


class NeverYields(RuntimeError):
    """Error: a simulated rank computes forever and never calls its communicator."""


def run_rank(argv: list[str]) -> int:
    """Run this rank of the job in folder ``argv[0]`` with ``argv[1]`` ranks, and return the exit status."""
    folder, ranks = Path(argv[0]), int(argv[1])
    launched = float(argv[2]) if len(argv) > 2 else None
    torch.set_num_threads(1)  # simulated ranks take turns
    if _is_simulated(folder):  # all ranks in this process; MPI is not needed
        with _stack_on_request(folder, 0):
            return simulate(folder, *_read_work(folder), launched)
    if refusal := _refusal(ranks):
        print(refusal, file=sys.stderr)
        with suppress(OSError):  # this machine does not see the job's folder
            (folder / REFUSAL).write_text(refusal)
        MPI.Finalize()
        return 2
    # On a machine that does not see the job's folder, a rank writes to a private folder.
    here = folder if folder.is_dir() else Path(tempfile.mkdtemp(prefix="dlpar-rank-"))
    with _stack_on_request(here, MPI.COMM_WORLD.rank):
        status = _join_and_work(here, launched)
    if here != folder:
        shutil.rmtree(here, ignore_errors=True)  # brought to the job's folder, or in the log
    return status


def _refusal(ranks: int) -> str | None:
    """Start MPI. Return None, or the reason why ranks cannot run with it."""
    library = MPI.Get_library_version()
    if MPI.Init_thread(MPI.THREAD_MULTIPLE) < MPI.THREAD_MULTIPLE:  # some ranks send from two threads
        return f"this MPI has no MPI_THREAD_MULTIPLE, which ranks need: {library.splitlines()[0]}"
    if MPI.COMM_WORLD.size == ranks:
        return None
    got = f"workers: got a world of {MPI.COMM_WORLD.size} ranks, allowed is {ranks}"
    how = f"start ranks with the mpiexec that belongs to {library.split(',')[0]}, or with srun --mpi=pmix"
    return f"{got}: this launcher and this MPI do not belong together; {how}"


def _is_simulated(folder: Path) -> bool:
    """Return whether the job's ranks are simulated. Return False if this machine does not see the folder."""
    file = folder / "experiment.json"
    return file.exists() and json.loads(file.read_bytes()).get("cluster", {}).get("world") == "simulated"


@contextmanager
def _stack_on_request(folder: Path, rank: int) -> Iterator[None]:
    """Write Python's stack to ``rank-<rank>.stack`` on SIGUSR1, the guardian's request."""
    with open(folder / f"rank-{rank}.stack", "w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        yield
        faulthandler.unregister(signal.SIGUSR1)


def _read_work(folder: Path) -> tuple[Experiment, bytes | None, Attempt]:
    """Read the experiment, the attempt, and the packed function that replaces training, if any."""
    call = folder / CALL
    experiment = Experiment.from_json((folder / "experiment.json").read_bytes())
    return experiment, call.read_bytes() if call.exists() else None, Attempt.of(folder)


def _begin(record: Recorder, experiment: Experiment, launched: float | None, attempt: Attempt) -> None:
    """Record this rank's header. On rank 0, also record the duration of the launch."""
    resumed = {"attempt": attempt.number, "resumed": attempt.step, "began": attempt.began}
    facts = {"threads": torch.get_num_threads(), **(resumed if attempt.number else {})}
    record.header(role=role(attempt.fit(experiment), record.comm.rank), **facts)
    if record.comm.rank == 0:
        now = time.time()
        at = {"at": now} if record.comm.world.clock == "wall" else {}
        record.event("start", launch_s=now - launched if launched else None, **at)


def _work(
    folder: Path, experiment: Experiment, call: Call | None, record: Recorder, attempt: Attempt
) -> Comm:
    """Do the work of the recorder's rank: train, serve, or call the user's function and write its result.

    Return the communicator of the ranks that remain at the end.
    """
    comm = record.comm
    if call is not None:
        function, arguments = call
        write_whole(result_path(folder, comm.rank), cloudpickle.dumps(function(comm, *arguments)))
        record.end(0)
        return comm
    return work(comm, experiment, record, folder, attempt)


# ---- a process for each rank ---------------------------------------------------------


def _join_and_work(folder: Path, launched: float | None) -> int:
    world, record = MPI.COMM_WORLD, None
    try:
        load_plugins()  # done here, because only rank 0 reads the experiment
        meet(world)
        experiment, packed, attempt = world.bcast(_read_work(folder) if world.rank == 0 else None)
        if world.size != (ranks := attempt.fit(experiment).ranks):
            raise BadExperiment(f"ranks: got {world.size}, allowed with this experiment is {ranks}")
        torch.set_num_threads(experiment.cluster.threads or _share_of_cores(world))
        comm = join(attempt.fit(experiment), on_host=packed is not None)
        record = Recorder(folder, comm, began=attempt.began)
        _begin(record, experiment, launched, attempt)
        if packed is None:  # a growing file shows progress of the rank
            comm.world.while_asleep(lambda: record.event("asleep"))
        comm = _work(folder, experiment, unpack(packed) if packed else None, record, attempt)
        comm.close()
        if not comm.world.watches:
            _bring_home(folder, world)
            MPI.Finalize()
        else:  # MPI would wait for dead ranks; a rank that ends without MPI counts as dead for the others
            with suppress(MPI.Exception):
                _bring_home(folder, comm.mpi)
                meet(comm.mpi)
        return 0
    except BaseException as error:
        with suppress(OSError):  # the disk may be full
            record and record.error(error)
        (record and isinstance(error, BadExperiment)) or traceback.print_exc()  # a recorded refusal says all
        sys.stderr.flush()
        time.sleep(GRACE)
        if record and record.comm.world.watches:  # for the guardian: mpiexec lets the others wait
            (folder / REFUSAL).write_text(f"rank {record.comm.rank} raised {type(error).__name__}: {error}")
        return 1


def _share_of_cores(world: MPI.Intracomm) -> int:
    """Return this rank's equal share, at least 1, of the cores that ranks of its host may use with it."""
    host, mine = here = os.uname().nodename, usable_cores()
    rivals = sum(name == host and not mine.isdisjoint(theirs) for name, theirs in world.allgather(here))
    return max(1, cores() // rivals)


def _bring_home(folder: Path, world: MPI.Intracomm) -> None:
    """Copy the files of other machines' ranks into the job's folder, through rank 0."""
    meet(world)
    home = world.bcast(str(folder))
    away = {} if str(folder) == home else {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    for files in world.gather(away) or ():
        for name, body in files.items():
            (folder / name).write_bytes(body)


# ---- all ranks in one process --------------------------------------------------------


def _note_turns(simulator: Simulator, path: Path) -> None:
    """Keep the running rank's number in a file. The file outlives the process in any case."""
    note, turn = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), simulator.next

    def noted() -> Task:
        task = turn()
        os.pwrite(note, b"%4d" % simulator.running.rank, 0)
        return task

    simulator.next = noted


def simulate(
    folder: Path,
    experiment: Experiment,
    packed: bytes | None = None,
    attempt: Attempt | None = None,
    launched: float | None = None,
) -> int:
    """Run an experiment's ranks in this process, on a virtual clock, and record them in `folder`.

    Parameters
    ----------
    packed : bytes, optional
        A packed function that ranks call instead of training; its results are files in `folder`.
    attempt : Attempt, optional
        Start of a resumed run; default: the beginning.
    launched : float, optional
        Unix time at which the job was launched.

    Returns
    -------
    int
        The exit status.  The rank that raised an error records it.
    """
    file = RankFile(folder / f"{ALL_RANKS}.jsonl")
    attempt = attempt or Attempt()
    simulator, comms = of_experiment(attempt.fit(experiment))
    if simulator.computes:  # if messages carry only sizes, turns are too short for this
        _note_turns(simulator, folder / RUNNING)
    records = [Recorder(folder, comm, file, attempt.began) for comm in comms]
    for record in records:
        _begin(record, experiment, launched, attempt)

    def hangs(story: str) -> None:
        records[simulator.running.rank].error(NeverYields(story))
        os._exit(1)

    try:
        call = unpack(packed) if packed else None  # its failure is an error of the ranks
        program = lambda comm: _work(folder, experiment, call, records[comm.rank], attempt)
        on_move = (lambda: None) if call else file.touch  # a function must end in time
        run_program(simulator, comms, program, PATIENCE * experiment.cluster.timeout, hangs, on_move)
        (folder / RUNNING).unlink(missing_ok=True)
        return 0
    except BaseException as error:
        records[simulator.failed_rank or 0].error(error)
        if not isinstance(error, (Deadlock, BadExperiment)):
            traceback.print_exc()
        return 1
    finally:
        if experiment.snapshot.every:
            written()
        file.close()


if __name__ == "__main__":
    adopt_orphans()
    ended = run_rank(sys.argv[1:])
    sys.stdout.flush()
    end_children()
    os._exit(ended)
