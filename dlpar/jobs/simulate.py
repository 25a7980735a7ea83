"""A simulated job: all ranks in this process, on a virtual clock."""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path

import cloudpickle

from dlpar.config.experiment import Experiment
from dlpar.config.user_code import unpack
from dlpar.jobs.record import RankFile, Recorder
from dlpar.jobs.tail import ALL_RANKS, result_path
from dlpar.train import role, serve, train
from dlpar.worlds.simulated.comm import SimulatedComm
from dlpar.worlds.simulated.run import of_experiment, run_program
from dlpar.worlds.simulated.simulator import Deadlock

PATIENCE = 0.7
"""Share of a job's timeout after which a rank that never yields is named, before the guardian ends the job."""


class NeverYields(RuntimeError):
    """A rank that computes for ever and never calls its communicator."""


def simulate(folder: Path, experiment: Experiment, launched: float | None, call: bytes | None = None) -> int:
    """Run an experiment's ranks in this process and record them in `folder`.

    Parameters
    ----------
    launched : float, optional
        Unix time at which the job was launched.
    call : bytes, optional
        A packed function that ranks call instead of training; its results are files in `folder`.

    Returns
    -------
    int
        The exit status; an error is recorded by the rank that raised it.
    """
    file = RankFile(folder / f"{ALL_RANKS}.jsonl", time.monotonic)
    simulator, comms = of_experiment(experiment)
    records = [Recorder(folder, comm, file) for comm in comms]
    for record in records:
        record.header(role=role(experiment, record.comm.rank), threads=1)
    records[0].event("start", launch_s=time.time() - launched if launched else None)
    patience = PATIENCE * experiment.cluster.timeout

    def program(comm: SimulatedComm) -> None:
        (train if comm.rank < experiment.workers else serve)(comm, experiment, records[comm.rank])

    def hangs(story: str) -> None:
        records[simulator.running.rank].error(NeverYields(story))
        os._exit(1)

    try:
        if call is None:
            run_program(simulator, comms, program, patience, hangs, on_move=file.touch)
            return 0
        function, arguments = unpack(call)  # a failure of it is an error of the ranks
        results = run_program(simulator, comms, lambda comm: function(comm, *arguments), patience, hangs)
        for rank, result in enumerate(results):
            simulator.failed_rank = rank  # if it cannot be written
            result_path(folder, rank).write_bytes(cloudpickle.dumps(result))
        return 0
    except BaseException as error:
        records[simulator.failed_rank or 0].error(error)
        if not isinstance(error, Deadlock):
            traceback.print_exc()
        return 1
    finally:
        file.close()
