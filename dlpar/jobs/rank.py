"""One rank from its start to its end: join the others, do the work, record what goes wrong.

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import mpi4py

from dlpar.jobs.tail import CALL, REFUSAL, result_path

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from dlpar.config.experiment import Experiment

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
    if _world_of(folder) == "simulated":  # all ranks in this process; MPI is not needed
        from dlpar.jobs.simulate import simulate

        experiment, call = _read_work(folder)
        with _stack_on_request(folder, 0):
            return simulate(folder, experiment, launched, call)
    library = MPI.Get_library_version()
    if MPI.Init_thread(MPI.THREAD_MULTIPLE) < MPI.THREAD_MULTIPLE:  # some ranks send from two threads
        return _refuse(
            folder, f"this MPI has no MPI_THREAD_MULTIPLE, which ranks need: {library.splitlines()[0]}"
        )
    world = MPI.COMM_WORLD
    if world.size != ranks:
        return _refuse(
            folder,
            f"workers: got a world of {world.size} ranks, allowed is {ranks}: this launcher and this MPI do not "
            f"know each other; start ranks with the mpiexec that belongs to {library.split(',')[0]}",
        )
    # On a machine that does not see the job's folder, a rank writes to a private one.
    here = folder if folder.is_dir() else Path(tempfile.mkdtemp(prefix="dlpar-rank-"))
    with _stack_on_request(here, world.rank):
        status = _work(here, launched)
    if status == 0:
        MPI.Finalize()
    if here != folder:
        shutil.rmtree(here, ignore_errors=True)  # brought home, or in the log
    return status


def _refuse(folder: Path, said: str) -> int:
    """Say why ranks cannot run with this MPI, in the log and to the guardian; returns the exit status."""
    from mpi4py import MPI

    print(said, file=sys.stderr)
    with suppress(OSError):  # on a machine that does not see the job's folder
        (folder / REFUSAL).write_text(said)
    MPI.Finalize()
    return 2


def _world_of(folder: Path) -> str | None:
    """Return the world of the job's ranks; None where its folder is not seen."""
    try:
        return json.loads((folder / "experiment.json").read_bytes())["cluster"]["world"]
    except (OSError, ValueError, KeyError):
        return None


@contextmanager
def _stack_on_request(folder: Path, rank: int) -> Iterator[None]:
    """Write Python's stack to ``rank-<rank>.stack`` on SIGUSR1, with which the guardian asks where ranks are."""
    with open(folder / f"rank-{rank}.stack", "w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        yield
        faulthandler.unregister(signal.SIGUSR1)


def _work(folder: Path, launched: float | None) -> int:
    import cloudpickle
    from mpi4py import MPI

    from dlpar.config.user_code import unpack
    from dlpar.jobs.record import Recorder
    from dlpar.train import role, serve, train
    from dlpar.worlds.connect import join
    from dlpar.worlds.mpi import meet

    world, record = MPI.COMM_WORLD, None
    try:
        meet(world)
        experiment, call = world.bcast(_read_work(folder) if world.rank == 0 else None)
        comm = join(experiment, on_host=call is not None)
        record = Recorder(folder, comm)
        threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        record.header(role=role(experiment, comm.rank), threads=threads)
        if comm.rank == 0:
            record.event("start", launch_s=time.time() - launched if launched else None)
        if call is not None:
            function, arguments = unpack(call)
            result_path(folder, comm.rank).write_bytes(cloudpickle.dumps(function(comm, *arguments)))
        else:
            # A growing file shows that the rank is well.
            comm.world.while_asleep(lambda: record.event("asleep"))
            (train if comm.rank < experiment.workers else serve)(comm, experiment, record)
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


def _read_work(folder: Path) -> tuple[Experiment, bytes | None]:
    """Read the experiment and, where its ranks call a function instead of training, the packed function."""
    from dlpar.config.experiment import Experiment

    call = folder / CALL
    experiment = Experiment.from_json((folder / "experiment.json").read_bytes())
    return experiment, call.read_bytes() if call.exists() else None


def _bring_home(folder: Path, world: Intracomm) -> None:
    """Copy the files of ranks on other machines into the job's own folder, which rank 0 sees."""
    from dlpar.worlds.mpi import meet

    meet(world)
    home = world.bcast(str(folder))
    away = {} if str(folder) == home else {p.name: p.read_bytes() for p in folder.iterdir()}
    brought = world.gather(away)
    for files in brought or ():
        for name, body in files.items():
            (folder / name).write_bytes(body)


def main() -> None:
    """Start cold, in a process of its own."""
    from dlpar.jobs.processes import die_with_parent

    die_with_parent()
    status = run_rank(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
