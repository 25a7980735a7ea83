"""Setup of a simulated world, and execution of a program on its ranks in this process."""

from __future__ import annotations

import gc
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from dlpar.comm.ghost import Outline
from dlpar.config.experiment import Experiment
from dlpar.worlds.logical import Pace
from dlpar.worlds.platforms import Platform, nodes_of, platform_of, workload
from dlpar.worlds.platforms.lookup import charges
from dlpar.worlds.simulated.comm import Group, SimulatedComm, SimulatedWorld
from dlpar.worlds.simulated.network import Network
from dlpar.worlds.simulated.simulator import Activity, Simulator, place

STARVED = 0.8
"""Share of a core's time below which the ranks of a simulation move to another core."""


def simulated_world(
    nodes: list[int],
    platform: Platform,
    computes: bool,
    scale: float = 1.0,
    flops: float | None = None,
    seed: int = 0,
    kind: type[SimulatedComm] = SimulatedComm,
) -> tuple[Simulator, list[SimulatedComm]]:
    """Build a simulator and the communicators of its ranks.

    Parameters
    ----------
    nodes : list of int
        Node of each rank.
    platform : Platform
        Gives links, device and timing.
    computes : bool
        Whether ranks compute values or pass only sizes.
    scale : float
        Bytes charged for a byte sent.
    flops : float, optional
        FLOP/s of a device on the model. By default, the platform's FLOP/s for any model.
    seed : int
        Seed of times that vary.
    kind : type
        The class of the communicators.
    """
    ranks, simulator = range(len(nodes)), Simulator(Network(platform, nodes, scale), computes)
    speed, eager = flops or 1 / platform.device.seconds(1.0), int(platform.eager / scale)
    worlds = [SimulatedWorld(simulator, Pace(platform, speed, rank, seed), eager) for rank in ranks]
    group = Group(ranks)
    return simulator, [kind(world, group, rank, Activity(rank)) for rank, world in enumerate(worlds)]


def of_experiment(experiment: Experiment) -> tuple[Simulator, list[SimulatedComm]]:
    """Build the simulated world of an experiment."""
    cluster, nodes, platform = experiment.cluster, nodes_of(experiment), platform_of(experiment)
    computes = cluster.messages == "values"
    simulator, comms = simulated_world(nodes, platform, computes, *charges(experiment), experiment.seed)
    if cluster.stand_in_for is not None and not computes:
        simulator.made["outline"] = Outline.of(workload(cluster.stand_in_for))
    return simulator, comms


def run_program(
    simulator: Simulator,
    comms: list[SimulatedComm],
    program: Callable[[SimulatedComm], Any],
    patience: float,
    on_hang: Callable[[str], None] = lambda story: print(story, file=sys.stderr, flush=True),
    on_move: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Run ``program(comm)`` on every rank, and return each result.

    If one rank keeps all others waiting for `patience` seconds of the wall clock, another thread calls
    ``on_hang(story)`` once. Nothing in Python can interrupt the rank.  While ranks make progress, the thread
    calls ``on_move()`` now and then.

    Ranks that compute are threads that take turns. The kernel would wake the next one on a core that is idle
    for a moment, which takes longer than a turn.  So on Linux all take their turns on one core, unless their
    products use several threads.  If the process gets too little of this core, they move to a core drawn at
    random.

    Raises
    ------
    Deadlock
        If no rank can continue.
    BaseException
        The exception of the first rank that failed.
    """
    results: list[Any] = [None] * len(comms)

    def of_rank(comm: SimulatedComm) -> Callable[[], None]:
        def run() -> None:  # no partial, because each C function on a greenlet's stack slows its switches
            results[comm.rank] = program(comm)
            comm.close()

        return run

    stopped, main, cores = threading.Event(), threading.get_ident(), []
    if simulator.computes and sys.platform == "linux" and torch.get_num_threads() == 1:
        cores = sorted(os.sched_getaffinity(0))
        simulator.main.core = secrets.choice(cores)

    def watch() -> None:
        seen, since, used = None, time.monotonic(), time.process_time()
        while not stopped.wait(tick := min(1.0, patience / 4)):
            used, before = time.process_time(), used
            if cores and used - before < STARVED * tick:
                simulator.main.core = secrets.choice(cores)
            running = simulator.running
            # Check the clock as well, because a single rank's moments may not pass.
            now = simulator.passed, running, running and running.clock
            if running is None or now != seen:
                seen, since = now, time.monotonic()
                on_move()
            elif time.monotonic() - since > patience:
                thread = running.task.thread.ident if simulator.computes else main
                held = f"rank {running.rank} has kept all others waiting for {patience:g} s"
                on_hang(f"{held} and let no time pass, at {place(sys._current_frames().get(thread))}")
                return

    watcher = threading.Thread(target=watch, name="dlpar-watch", daemon=True)
    watcher.start()
    gc.freeze()  # thousands of ranks hold many objects, and few of these form reference cycles
    gc.disable()
    try:
        for comm in comms:
            simulator.add(comm.activity, of_rank(comm))
        simulator.run()
    finally:
        stopped.set()
        watcher.join(1.0)
        gc.enable()
        gc.unfreeze()
    return results
