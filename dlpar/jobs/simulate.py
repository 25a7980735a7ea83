"""A simulated job: all ranks in this process, on a virtual clock."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlpar.comm.ghost import Outline
from dlpar.config.experiment import Experiment
from dlpar.jobs.record import RankFile, Recorder
from dlpar.jobs.tail import ALL_RANKS
from dlpar.worlds.platforms import Platform, nodes_of, platform_of, workload
from dlpar.worlds.platforms.lookup import charges
from dlpar.worlds.simulated.comm import Group, SimulatedComm
from dlpar.worlds.simulated.network import Network, Pace
from dlpar.worlds.simulated.simulator import Activity, Deadlock, Simulator, place

PATIENCE = 0.7
"""Of a job's timeout, after which a rank that never yields is named: before the job is ended without."""


class NeverYields(RuntimeError):
    """A rank that computes for ever and never calls its communicator."""


def simulated_world(
    nodes: list[int],
    platform: Platform,
    computes: bool,
    scale: float = 1.0,
    flops: float | None = None,
    seed: int = 0,
) -> tuple[Simulator, list[SimulatedComm]]:
    """A simulator and the communicators of its ranks.

    Parameters
    ----------
    nodes : list of int
        Node of each rank.
    platform : Platform
        Its links, device and timing.
    computes : bool
        Whether ranks really compute, or pass sizes only.
    scale : float
        Bytes charged for a byte sent.
    flops : float, optional
        FLOP/s of a device on the model; default: what the platform says of any.
    seed : int
        Of times that vary.
    """
    network = Network(platform, nodes, scale)
    simulator, group = Simulator(network, computes), Group(range(len(nodes)), network)
    speed, eager = flops or 1 / platform.seconds(1.0), int(platform.eager / scale)
    comms = [
        SimulatedComm(simulator, group, rank, Activity(rank), Pace(platform, speed, rank, seed), eager)
        for rank in range(len(nodes))
    ]
    return simulator, comms


def say(story: str) -> None:
    """What to do about a rank that never yields where nothing else can be done."""
    print(story, file=sys.stderr, flush=True)


def run_program(
    simulator: Simulator,
    comms: list[SimulatedComm],
    program: Callable[[SimulatedComm], Any],
    patience: float,
    on_hang: Callable[[str], None] = say,
    on_move: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Run ``program(comm)`` on every rank; what each returned.

    If one rank keeps all others waiting for `patience` seconds of the wall clock, nothing in
    Python can interrupt it; then ``on_hang(story)`` is called, once, on another thread.  While
    ranks go on, ``on_move()`` is called there every now and then.

    Raises
    ------
    Deadlock
        If no rank can go on.
    BaseException
        What the first rank that failed raised.
    """
    results: list[Any] = [None] * len(comms)

    def of_rank(comm: SimulatedComm) -> Callable[[], None]:
        def run() -> None:  # no partial: each C function on a greenlet's stack makes its switches dearer
            results[comm.rank] = program(comm)
            comm.close()

        return run

    watch = Watch(simulator, patience, on_hang, on_move)
    gc.freeze()  # thousands of ranks hold many objects, and few of them ever go in circles
    gc.disable()
    try:
        for comm in comms:
            simulator.add(comm.activity, of_rank(comm))
        simulator.run()
    finally:
        gc.enable()
        gc.unfreeze()
        watch.stop()
    return results


class Watch:
    """Notices a rank that never lets the others run."""

    def __init__(
        self,
        simulator: Simulator,
        patience: float,
        on_hang: Callable[[str], None],
        on_move: Callable[[], None],
    ) -> None:
        self.simulator, self.patience, self.stopped = simulator, patience, threading.Event()
        self.on_hang, self.on_move = on_hang, on_move
        self.main = threading.get_ident()
        self.thread = threading.Thread(target=self._run, name="dlpar-watch", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        seen, since = None, time.monotonic()
        while not self.stopped.wait(min(1.0, self.patience / 4)):
            simulator, running = self.simulator, self.simulator.running
            now = (
                simulator.passed,
                running,
                running and running.clock,
            )  # for a rank by itself no moment passes
            if running is None or now != seen:
                seen, since = now, time.monotonic()
                self.on_move()
            elif time.monotonic() - since > self.patience:
                self.on_hang(self.story())
                return

    def story(self) -> str:
        """Who keeps the others waiting, and where."""
        running = self.simulator.running
        thread = running.task.thread.ident if self.simulator.computes else self.main
        where = place(sys._current_frames().get(thread))
        return (
            f"rank {running.rank} has kept all others waiting for {self.patience:g} s and let no time "
            f"pass, at {where}"
        )

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join(1.0)


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


def of_experiment(experiment: Experiment) -> tuple[Simulator, list[SimulatedComm]]:
    """The world an experiment's ranks live in."""
    cluster = experiment.cluster
    computes = cluster.messages == "values"
    simulator, comms = simulated_world(
        nodes_of(experiment), platform_of(experiment), computes, *charges(experiment), experiment.seed
    )
    if cluster.stand_in_for is not None and not computes:
        simulator.outline = Outline(workload(cluster.stand_in_for))
    return simulator, comms


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
            import traceback

            traceback.print_exc()
        return 1
    finally:
        records[0].close()
