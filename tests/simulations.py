"""Simulations without a job: programs and experiments run in the process of the test."""

from __future__ import annotations

import json
from pathlib import Path

from dlpar import Experiment, Run
from dlpar.jobs.rank import simulate
from dlpar.lab.sweep import Outcome, run_all
from dlpar.worlds.platforms import Device, Link, Platform
from dlpar.worlds.simulated.run import run_program, simulated_world

MS, KB = 1e-3, 1000
LINK = Link(latency=1 * MS, bandwidth=1e6)  # 1 ms, and 1 ms a kilobyte
QUICK = Device(name="quick", flops=1e18)
"""Beside messages its computing takes no time."""


def cluster(nodes: int = 64, link: Link = LINK, **fields) -> Platform:
    """Equal nodes, one device each, on equal links."""
    return Platform(**{"name": "test", "device": QUICK, "nodes": nodes, "between": link, **fields})


def run(
    program, ranks: int | list[int], platform: Platform | None = None, computes: bool = True, seed: int = 0
) -> list:
    """What ``program(comm)`` returns on every rank; `ranks` is their number, or the node of each."""
    nodes = list(range(ranks)) if isinstance(ranks, int) else ranks
    simulator, comms = simulated_world(nodes, platform or cluster(), computes, seed=seed)
    return run_program(simulator, comms, program, patience=20)


def ends(
    program, ranks: int | list[int], platform: Platform | None = None, computes: bool = False
) -> list[float]:
    """Seconds at which each rank has done ``program(comm)``."""

    def timed(comm) -> float:
        program(comm)
        return comm.now()

    return run(timed, ranks, platform, computes)


def trained(folder, platform: Platform | None = None, **fields) -> Run:
    """A finished run of an experiment in the simulated world."""
    world = {"world": "simulated", **fields.pop("cluster", {})}
    folder.mkdir()
    if platform is not None:
        (folder / "platform.json").write_text(platform.model_dump_json())
        world["platform"] = str(folder / "platform.json")
    return simulation_of(Experiment(cluster=world, **{"evaluate_every": 1000, **fields}), folder)


def simulation_of(experiment: Experiment, folder) -> Run:
    """A finished run in the simulated world, whatever the experiment's own."""
    folder.mkdir(exist_ok=True)
    experiment = experiment.replace(cluster={"world": "simulated"})
    (folder / "experiment.json").write_text(experiment.to_json())
    assert simulate(folder, experiment) == 0
    return Run(folder)


class Simulations:
    """Stands in for ``run_all``: simulations run in this process, and equal ones once.

    To start and end a job takes as long as most of them.  A worker alone computes the same in every world.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.done = folder, dict[str, Run]()

    def __call__(self, experiments: list[Experiment], *given, **named) -> list[Outcome]:
        outcomes = []
        for each in experiments:
            if each.cluster.world == "simulated" or (
                each.workers == each.ranks == 1 and each.delays.kind == "none"
            ):
                outcomes.append(Outcome(each, "done", run=self.run_of(each)))
            else:
                outcomes += run_all([each], *given, **named)
        return outcomes

    def run_of(self, experiment: Experiment) -> Run:
        """A finished run of a simulated experiment."""
        key = experiment.to_json()
        if key not in self.done:
            run = self.done[key] = simulation_of(experiment, self.folder / str(len(self.done)))
            (run.path / "summary.json").write_text(json.dumps(run.summary))
        return self.done[key]
