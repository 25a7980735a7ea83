"""Lab 00: four processes are not four times faster, and they learn the same."""

from __future__ import annotations

from dlpar.config.experiment import Experiment
from dlpar.jobs.control_groups import cores


def four_times_faster() -> list[Experiment]:
    """Lab 00, "N processes run N times faster": one, as many as there are cores, and twice as many.

    Large layers, so that computing outweighs messages; one thread a process, so
    that one process cannot use a second core.
    """
    heavy = Experiment(
        model={"name": "mlp", "width": 1024},
        batch=512,
        steps=15,
        lr=0.05,
        evaluate_every=1000,
        cluster={"threads": 1},
    )
    worlds = sorted({1, 2, 4, min(cores(), 16), min(2 * cores(), 32)})
    return [heavy.replace(workers=workers) for workers in worlds]


def four_gpus() -> Experiment:
    """Lab 00: the same four processes by the clock of four GPUs in one box; a small network stands in for ResNet-50."""
    return Experiment(
        model={"name": "mlp", "width": 64, "depth": 1},
        batch=32,
        steps=6,
        evaluate_every=1000,
        sync={"scheme": "ring", "bucket_mb": 4096},
        cluster={"world": "paced", "platform": "v100-nvlink", "stand_in_for": "resnet50", "threads": 1},
    )


def same_answer() -> list[Experiment]:
    """Lab 00, "parallel training changes the answer": 1, 2, 3 and 4 workers, same seed, same batches."""
    common = Experiment(model={"name": "mlp", "width": 64}, batch=250, steps=100, dtype="float64")
    return [common.replace(workers=workers) for workers in (1, 2, 3, 4)]


def first_run() -> Experiment:
    """Lab 00: four processes train on handwritten digits for a few seconds."""
    return Experiment(workers=4, steps=200)
