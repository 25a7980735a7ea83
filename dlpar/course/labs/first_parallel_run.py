"""Lab 00: four processes are not four times as fast as one process, and they learn the same model."""

from __future__ import annotations

from pathlib import Path

from dlpar import Experiment
from dlpar.course.labs.scaling import paced
from dlpar.course.rehearse import Row, cores_limit, learns, measured, on, same_losses
from dlpar.jobs.control_groups import cores
from dlpar.systems.record import rate

_ALONE = dict(workers=1, batch=512, steps=15, lr=0.05, evaluate_every=1000)
HEAVY = Experiment(model={"name": "mlp", "width": 1024}, **_ALONE, cluster={"threads": 1})
"""Experiment with much computation in one process with one thread."""

RECORDING = Path(__file__).parents[1] / "recordings" / "first_parallel_run"
"""Run folder of `first_run`."""


def first_run() -> Experiment:
    """Train one process on handwritten digits for a few seconds, with the network of `four_times_faster`."""
    return HEAVY.replace(steps=40, seed=1, evaluate_every=2)


def four_times_faster() -> list[Experiment]:
    """Train on one process, on as many processes as there are cores, and on twice as many.

    Layers are large, so that computation takes longer than communication.  A process has one thread, so that
    it cannot use a second core.
    """
    return [HEAVY.replace(workers=n) for n in sorted({1, 2, 4, min(cores(), 16), min(2 * cores(), 32)})]


def four_gpus() -> Experiment:
    """Run processes on the clock of GPUs in one box. A small network stands in for ResNet-50."""
    return paced().replace(scaling="strong", steps=6, cluster={"platform": "v100-nvlink"})


def same_answer() -> list[Experiment]:
    """Train 1, 2, 3 and 4 workers with the same seed and the same batches."""
    common = Experiment(model={"name": "mlp", "width": 64}, batch=250, steps=100, dtype="float64")
    return [common.replace(workers=workers) for workers in (1, 2, 3, 4)]


TABLE = (
    Row(first_run, "A process learns to classify digits", learns(0.93)),
    Row(four_times_faster, '"Four processes are four times faster"', lambda runs: cores_limit(runs, 0.75)),
    Row(four_gpus, "Four GPUs are nearly four times as fast",
        measured(rate, lambda gained: 3.4 < gained < 4, "four ranks with a GPU each are {:.1f} times as fast as one",
                 relative=True), lambda: on([four_gpus()], 1, 4)),
    Row(same_answer, '"Parallel training changes the answer"', same_losses(1e-9)),
)  # fmt: skip
