"""What surviving costs a step: a snapshot every 50 steps, and MPI's reports of deaths (ULFM)."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from compare import in_turns, limit

import dlpar
from dlpar import Experiment

EVERY, PAIRS = 50, 60
"""Steps between snapshots, and stretches of as many steps with a snapshot, each beside one without."""

JOBS, STEPS, WARM_UP = 7, 1200, 200
"""Jobs with and without reports of deaths, and their steps."""


def stretches(comm, folder: str) -> list[tuple[float, float]]:
    """Train with a snapshot in every other stretch; return seconds and processor time of each, of this rank."""
    from dlpar.jobs.record import Recorder
    from dlpar.jobs.snapshot import Keeper, Orders
    from dlpar.train import train

    steps = 2 * EVERY * PAIRS
    experiment = Experiment(
        workers=comm.size, steps=steps, evaluate_every=0, snapshot={"every": 2 * EVERY, "keep": 2}
    )
    marks = []

    class Timed(Keeper):
        def after(self, own, done, at_end=False):
            if done % EVERY == 0:
                self.close()  # what is still being written belongs to the stretch before
                marks.append((time.perf_counter(), time.process_time()))
            super().after(own, done, at_end)

    record, orders = Recorder(folder, comm), Orders(Path(folder), experiment, comm.rank, 0)
    train(comm, experiment, record, Timed(Path(folder), experiment, record, comm.rank, orders))
    return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks)]


def snapshots() -> None:
    """Print the cost of snapshots: each stretch with one is compared with the stretches before and after it."""
    with tempfile.TemporaryDirectory() as folder:
        of_ranks = dlpar.spmd(stretches, folder, workers=4, timeout=600)
    wall = [seconds for seconds, _ in of_ranks[0]]
    processors = [sum(of_rank[n][1] for of_rank in of_ranks) for n in range(len(wall))]
    what = f"of steps with a snapshot every {EVERY}, over that of steps without, 4 ranks"
    for name, taken in (("time", wall), ("processor time", processors)):
        ratios = [2 * taken[n] / (taken[n - 1] + taken[n + 1]) for n in range(1, len(taken) - 1, 2)]
        tenths = [statistics.median(ratios[n::5]) for n in range(5)]
        limit(f"{name} {what}", tenths, "×", 1.01)


def of_a_step(on_death: str) -> tuple[float, float]:
    """Return the median seconds of a step, and the processor time of all ranks in a step."""
    experiment = Experiment(steps=STEPS, evaluate_every=0, deaths=on_death)
    run = dlpar.launch(experiment).wait(300)
    seconds = run.curve["seconds"].diff().iloc[WARM_UP:].median()
    spent = {r["rank"]: r["spent"] for _, r in run.records() if r.get("name") == "processor time"}
    run.delete()
    return float(seconds), sum(spent.values()) / STEPS


def reports_of_deaths() -> None:
    """Print the cost of ULFM: jobs with and without it take turns."""
    os.environ |= {"DLPAR_PLUGINS": "processor_time", "PYTHONPATH": str(Path(__file__).parent)}
    taken = in_turns({how: lambda how=how: of_a_step(how) for how in ("shrink", "end")}, JOBS)
    for n, name in enumerate(("time", "processor time")):
        ratios = [a[n] / b[n] for a, b in zip(taken["shrink"], taken["end"])]
        limit(f"{name} of a step with reports of deaths over that of one without, 4 ranks", ratios, "×", 1.02)


def report() -> None:
    snapshots()
    reports_of_deaths()
