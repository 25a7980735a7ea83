"""How soon the first step is recorded, and what a rank costs in memory."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from compare import in_turns, limit, show
from peer import torchrun

import dlpar
from dlpar import Experiment

TRAINING = Experiment(workers=4, steps=20, evaluate_every=1000)


def to_first_step() -> float:
    """Seconds from ``launch()`` to the first recorded step of a fresh run."""
    run = dlpar.launch(TRAINING).wait(120)
    start = run.events.query("name == 'start'").iloc[0]
    return start["launch_s"] - start["t"] + run.steps.query("step == 0")["t"].min()


def torchrun_to_first_step() -> float:
    began = time.time()
    return torchrun(TRAINING, warm_up=1)["first"] - began


def cold_to_first_step() -> float:
    os.environ["DLPAR_WARM_IDLE"] = "0"
    try:
        return to_first_step()
    finally:
        del os.environ["DLPAR_WARM_IDLE"]


def private_megabytes() -> float:
    """Private memory of a warm rank of the default training, in MB (10^6 bytes): the mean over its ranks."""
    job = dlpar.launch(Experiment(workers=4, steps=1_000_000))
    while len(job.run.steps) < 200:
        time.sleep(0.1)
    used = [_private(pid) for pid in job.run.ranks["pid"]]
    job.stop()
    return sum(used) / len(used)


def _private(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(kb) for kb in re.findall(r"^Private_\w+:\s+(\d+) kB", text, re.M)) * 1024 / 1e6


def report() -> None:
    dlpar.launch(TRAINING).wait(120)  # the fork server is there
    measures = {"warm": to_first_step, "cold": cold_to_first_step, "torchrun": torchrun_to_first_step}
    taken = in_turns(measures, n=5)
    show("Launch to first recorded step, 4 ranks", taken, "s", {"torchrun": 5}, higher_is_better=False)
    limit("warm launch to first recorded step, 4 ranks", taken["warm"], "s", 1.0)
    limit("private memory of a warm rank", [private_megabytes() for _ in range(3)], "MB", 45)
