"""Samples per second of the same training: dlpar's ring against DistributedDataParallel over gloo."""

from __future__ import annotations

from functools import partial

from compare import in_turns, show
from peer import torchrun

import dlpar
from dlpar import Experiment

WARM_UP = 50


def training(workers: int, **sync) -> Experiment:
    """mlp 64-512-512-10 on digits, 64 samples a worker."""
    return Experiment(
        workers=workers,
        model={"width": 512, "depth": 2},
        batch=64,
        scaling="weak",
        steps=350,
        evaluate_every=10_000,
        sync={"scheme": "ring", **sync},
        cluster={"threads": 1},
    )


def ours(experiment: Experiment) -> float:
    """Samples per second over all steps after the warm-up."""
    run = dlpar.launch(experiment).wait(300)
    curve = run.curve
    seconds = curve["seconds"].iloc[-1] - curve["seconds"].iloc[WARM_UP - 1]
    return (len(curve) - WARM_UP) * experiment.global_batch / seconds


def report() -> None:
    for workers, bar in ((2, 2.0), (4, 2.5)):
        measures = {
            "dlpar ring": partial(ours, training(workers)),
            "torch DDP, gloo": lambda: torchrun(training(workers), WARM_UP)["samples_per_s"],
            "dlpar, MPI_Allreduce": partial(ours, training(workers, allreduce="library")),
            "dlpar ring, overlapped": partial(ours, training(workers, overlap=True, bucket_mb=0.6)),
        }
        title = f"Throughput, mlp 64-512-512-10 on digits, 64 samples a worker, {workers} ranks"
        show(title, in_turns(measures, n=5), "samples/s", {"torch DDP, gloo": bar})
