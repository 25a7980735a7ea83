"""A run folder written at a known pace, by the recorder real ranks use.

``python ranks.py folder workers steps steps_per_s`` stands in for MPI ranks where a test
needs to know when a step was written, or wants more of them than this machine could compute.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

from dlpar.jobs.run import Run

if TYPE_CHECKING:
    from dlpar.jobs.record import Recorder


def write(
    folder: Path, workers: int, steps: int, pace: float, stopped: Callable[[], bool] = lambda: False
) -> None:
    """Record `steps` steps of `workers` ranks, `pace` of them a second, until `stopped`."""
    lock = open(folder / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Here: it imports torch, and a folder without a lock counts as lost.
    from dlpar.jobs.record import Recorder

    experiment = json.loads((folder / "experiment.json").read_bytes())
    sync, world = experiment["sync"], experiment["cluster"]["world"]
    servers = sync.get("servers", 0)
    begun = time.time()
    ranks = [Recorder(folder, _Rank(r, lambda: time.time() - begun, world)) for r in range(workers + servers)]
    for number, rank in enumerate(ranks):
        rank.header(role="worker" if number < workers else "server", threads=1)
        rank.event("start", launch_s=0.4, epoch=begun)
    owner = os.getppid()
    for step in range(steps):
        if stopped() or os.getppid() != owner:  # like a real job, it ends with its kernel
            return
        for rank in ranks[:workers]:
            _step(rank, step, max(1 / pace, 2e-5), _facts(sync, rank.comm.rank, step, workers))
        if step % max(1, steps // 20) == 0:
            with ranks[0].span("evaluate"):
                pass
            ranks[0].evaluation(step, accuracy=1 - 0.9 * math.exp(-3 * step / steps), loss=0.4, samples=360)
        time.sleep(max(0.0, begun + (step + 1) / pace - time.time()))
    for rank in ranks[workers:]:
        rank.event("served", version=steps * workers, pushes=steps * workers, bytes=1000 * steps * workers)
    for rank in ranks:
        rank.end(steps)
    summary = Run(folder).summary  # kept by a real job's guardian, not computed by who looks
    (folder / "summary.json").write_text(json.dumps(summary))
    end = {"k": "end", "at": time.time(), "status": "done", "reason": "", "rank": None}
    (folder / "job.jsonl").write_text(json.dumps(end) + "\n")


def _facts(sync: dict, rank: int, step: int, workers: int) -> dict:
    """Staleness, lead and sketch as a scheme might have them: asynchronous workers N - 1 updates apart on average."""
    found = {"staleness": 0, "lead": 0}
    if sync.get("consistency", "bsp") != "bsp":
        found = {"staleness": max(0, workers - 1 + (rank + step) % 3 - 1), "lead": (step + rank) % 4}
    if sync["scheme"] == "gossip":
        found["sketch"] = [0.9**step * math.sin(rank + bucket) + bucket for bucket in range(32)]
    return found


class _CPU(str):
    """A device without torch, which takes seconds to import."""

    type = "cpu"


class _Rank:
    """What a recorder asks of a communicator; `at` is the moment its clock shows while a step is made up."""

    device = _CPU("cpu")

    def __init__(self, rank: int, clock: Callable[[], float], world: str) -> None:
        self.rank, self._clock, self.at = rank, clock, None
        self.traffic = SimpleNamespace(waited=0.0)
        self.world = SimpleNamespace(
            carrier="simulated" if world == "simulated" else "mpi",
            clock={"real": "wall", "paced": "logical", "simulated": "virtual"}[world],
            state=lambda: {"slip": 0.012, "lag": 0.001} if world == "paced" else {},
            while_asleep=lambda call: None,
        )

    def now(self) -> float:
        return self._clock() if self.at is None else self.at


def _step(rank: Recorder, step: int, seconds: float, facts: dict) -> None:
    """One step: spans that fill the time since the last one, written now."""
    comm, end = rank.comm, rank.now()
    for part, name in enumerate(("forward", "backward", "communicate", "update")):
        comm.at = end - seconds * (0.9 - 0.22 * part)
        with rank.span(name):
            comm.at += 0.2 * seconds
            comm.traffic.waited += 0.05 * seconds
    comm.at = None
    loss = 2.3 * math.exp(-step / 400) + 0.02 * math.sin(step + comm.rank)
    rank.step(step, loss=loss, samples=64, bytes=1000, messages=6, **facts)


if __name__ == "__main__":
    os.nice(5)
    sys.modules["torch"] = MagicMock()  # to import it takes over a second, and nothing is computed here
    write(Path(sys.argv[1]), *(int(n) for n in sys.argv[2:4]), float(sys.argv[4]))
