"""A simulated job: all ranks in this process, on a virtual clock."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.jobs.record import RankFile, Recorder
from dlpar.jobs.tail import ALL_RANKS
from dlpar.worlds.simulated.comm import SimulatedComm
from dlpar.worlds.simulated.run import of_experiment, run_program
from dlpar.worlds.simulated.simulator import Deadlock, Simulator

PATIENCE = 0.7
"""Of a job's timeout, after which a rank that never yields is named: before the job is ended without."""


class NeverYields(RuntimeError):
    """A rank that computes for ever and never calls its communicator."""


def simulate(folder: Path, experiment: Experiment, launched: float | None) -> int:
    """Run an experiment's ranks in this process and record them in `folder`; the exit status."""
    from dlpar.train import role, serve, train

    file = RankFile(folder / f"{ALL_RANKS}.jsonl", time.monotonic)
    simulator, comms = of_experiment(experiment)
    records = [Recorder(folder, comm, file) for comm in comms]
    for record in records:
        record.header(role=role(experiment, record.comm.rank), threads=1)
    records[0].event("start", launch_s=time.time() - launched if launched else None)

    def program(comm: SimulatedComm) -> None:
        (train if comm.rank < experiment.workers else serve)(comm, experiment, records[comm.rank])

    def work(on_hang: Callable[[str], None]) -> None:
        run_program(
            simulator, comms, program, PATIENCE * experiment.cluster.timeout, on_hang, on_move=file.touch
        )

    return _guarded(simulator, records, work)


def simulate_call(folder: Path, world: Experiment, body: bytes) -> int:
    """Run a packed function on every rank of a world; the exit status."""
    from dlpar.config.user_code import unpack
    from dlpar.jobs.payload import save_result

    file = RankFile(folder / f"{ALL_RANKS}.jsonl", time.monotonic)
    simulator, comms = of_experiment(world)
    records = [Recorder(folder, comm, file) for comm in comms]
    for record in records:
        record.header(role="worker", threads=1)

    def work(on_hang: Callable[[str], None]) -> None:
        function, arguments = unpack(body)  # here: what cannot be read is an error of the ranks'
        program = lambda comm: function(comm, *arguments)
        results = run_program(simulator, comms, program, PATIENCE * world.cluster.timeout, on_hang)
        for rank, result in enumerate(results):
            simulator.failed_rank = rank  # if it cannot be written
            save_result(folder, rank, result)

    return _guarded(simulator, records, work)


def _guarded(
    simulator: Simulator, records: list[Recorder], work: Callable[[Callable[[str], None]], Any]
) -> int:
    """Do it; whatever goes wrong is recorded by the rank it went wrong on."""

    def hangs(story: str) -> None:
        records[simulator.running.rank].error(NeverYields(story))
        os._exit(1)

    try:
        work(hangs)
        return 0
    except BaseException as error:
        rank = simulator.failed_rank or 0
        records[rank].error(error)
        if not isinstance(error, Deadlock):
            traceback.print_exc()
        return 1
    finally:
        records[0].close()
