"""One rank from its start to its end: join the others, do the work, say what went wrong.

Started by mpiexec (cold), forked by the fork server (warm), or by hand on a
cluster: ``mpiexec -n 4 python -m dlpar.jobs.rank RUN_FOLDER 4``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = mpi4py.rc.finalize = False

GRACE = 0.25
"""Seconds a failed rank lingers, so that others that fail too can say so before the job is ended."""


def run_rank(argv: list[str]) -> int:
    """Run this rank of the job in folder ``argv[0]`` with ``argv[1]`` ranks; returns the exit status."""
    import torch
    from mpi4py import MPI

    folder, ranks = Path(argv[0]), int(argv[1])
    launched = float(argv[2]) if len(argv) > 2 else None
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if _world(folder) == "simulated":
        return _simulate(folder, launched)
    if MPI.Init_thread(MPI.THREAD_MULTIPLE) < MPI.THREAD_MULTIPLE:  # overlap and gossip send from two threads
        print(
            f"this MPI has no MPI_THREAD_MULTIPLE, which ranks need: {MPI.Get_library_version().splitlines()[0]}",
            file=sys.stderr,
        )
        MPI.Finalize()
        return 2
    world = MPI.COMM_WORLD
    if world.size != ranks:
        print(
            f"workers: got a world of {world.size} ranks, allowed is {ranks}: this launcher and this MPI do not "
            f"know each other; start ranks with the mpiexec that belongs to {MPI.Get_library_version().split(',')[0]}",
            file=sys.stderr,
        )
        MPI.Finalize()
        return 2
    home, folder = folder, _folder_here(folder)
    with open(folder / f"rank-{world.rank}.stack", "w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)  # the supervisor asks where we are
        status = _work(folder, launched)
        faulthandler.unregister(signal.SIGUSR1)
    if status == 0:
        MPI.Finalize()
    if folder != home:
        shutil.rmtree(folder, ignore_errors=True)  # brought home, or in the log
    return status


def _world(folder: Path) -> str | None:
    """Which world the job's ranks live in, where its folder is seen."""
    try:
        return json.loads((folder / "experiment.json").read_bytes())["cluster"]["world"]
    except (OSError, ValueError, KeyError):
        return None


def _simulate(folder: Path, launched: float | None) -> int:
    """All ranks in this process; MPI is not needed."""
    from dlpar.jobs.simulate import simulate, simulate_call

    with open(folder / "rank-0.stack", "w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        experiment, call = _read_work(folder)
        if call is None:
            status = simulate(folder, experiment, launched)
        else:
            status = simulate_call(folder, experiment, call)
        faulthandler.unregister(signal.SIGUSR1)
    return status


def _folder_here(folder: Path) -> Path:
    """The job's folder, or a private one on a machine that does not see it."""
    return folder if folder.is_dir() else Path(tempfile.mkdtemp(prefix="dlpar-rank-"))


def _work(folder: Path, launched: float | None) -> int:
    from mpi4py import MPI

    from dlpar.jobs.record import Recorder
    from dlpar.train import role, serve
    from dlpar.worlds.connect import join
    from dlpar.worlds.mpi import meet

    world, record, comm = MPI.COMM_WORLD, None, None
    try:
        meet(world)
        experiment, call = world.bcast(_read_work(folder) if world.rank == 0 else None)
        comm = join(experiment, on_host=call is not None)
        record = Recorder(folder, comm)
        mine = role(experiment, comm.rank)
        record.header(role=mine, threads=int(os.environ.get("OMP_NUM_THREADS", "1")))
        if comm.rank == 0:
            record.event("start", launch_s=time.time() - launched if launched else None)
        if call is None:
            from dlpar.train import train

            comm.world.while_asleep(
                lambda: record.event("asleep")
            )  # a file that grows says that its rank is well
            (train if comm.rank < experiment.workers else serve)(comm, experiment, record)
        else:
            _call(call, comm, folder)
        comm.close()
        _bring_home(folder, world)
        return 0
    except BaseException as error:
        if record is not None:
            record.error(error)
        traceback.print_exc()
        sys.stderr.flush()
        time.sleep(GRACE)
        return 1


def _read_work(folder: Path):
    """What the job is: an experiment to train, or the world of a packed function and the function."""
    from dlpar.config.experiment import Experiment
    from dlpar.jobs.payload import CALL

    call = folder / CALL
    experiment = Experiment.from_json((folder / "experiment.json").read_bytes())
    return experiment, call.read_bytes() if call.exists() else None


def _call(body: bytes, comm, folder: Path) -> None:
    from dlpar.config.user_code import unpack
    from dlpar.jobs.payload import save_result

    function, arguments = unpack(body)
    save_result(folder, comm.rank, function(comm, *arguments))


def _bring_home(folder: Path, world) -> None:
    """Copy what ranks on other machines wrote into the job's own folder, which rank 0 sees."""
    from dlpar.worlds.mpi import meet

    meet(world)
    home = world.bcast(str(folder))
    away = {} if str(folder) == home else {p.name: p.read_bytes() for p in folder.iterdir()}
    brought = world.gather(away)
    for files in brought or ():
        for name, body in files.items():
            (folder / name).write_bytes(body)


def main() -> None:
    """The cold start: a process of its own."""
    from dlpar.jobs.processes import die_with_parent

    die_with_parent()
    status = run_rank(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
