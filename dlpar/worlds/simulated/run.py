"""Building a simulated world and running a program on its ranks, in this process."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from dlpar.comm.ghost import Outline
from dlpar.config.experiment import Experiment
from dlpar.worlds.logical import Pace
from dlpar.worlds.platforms import Platform, nodes_of, platform_of, workload
from dlpar.worlds.platforms.lookup import charges
from dlpar.worlds.simulated.comm import Group, SimulatedComm, SimulatedWorld
from dlpar.worlds.simulated.network import Network
from dlpar.worlds.simulated.simulator import Activity, Simulator, place


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
    worlds = [
        SimulatedWorld(simulator, Pace(platform, speed, rank, seed), eager) for rank in range(len(nodes))
    ]
    comms = [SimulatedComm(world, group, rank, Activity(rank)) for rank, world in enumerate(worlds)]
    return simulator, comms


def of_experiment(experiment: Experiment) -> tuple[Simulator, list[SimulatedComm]]:
    """The world an experiment's ranks live in."""
    cluster = experiment.cluster
    computes = cluster.messages == "values"
    simulator, comms = simulated_world(
        nodes_of(experiment), platform_of(experiment), computes, *charges(experiment), experiment.seed
    )
    if cluster.stand_in_for is not None and not computes:
        simulator.made["outline"] = Outline.of(workload(cluster.stand_in_for))
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
