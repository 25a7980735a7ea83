"""Samples per second of the same training: dlpar's ring against DistributedDataParallel over gloo."""

from __future__ import annotations

from functools import partial

from compare import in_turns, show
from peer import torchrun
from thin import thin

import dlpar
from dlpar import Experiment

STEPS, WARM_UP, BATCH, WIDTH = 350, 50, 64, 512


def training(workers: int, **sync) -> Experiment:
    """mlp 64-WIDTH-WIDTH-10 on digits, 64 samples a worker."""
    return Experiment(
        workers=workers,
        model={"width": WIDTH, "depth": 2},
        batch=BATCH,
        scaling="weak",
        steps=STEPS,
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


def by_hand(workers: int) -> float:
    """Samples per second of the thinnest loop on as many ranks of MPI."""
    return dlpar.spmd(thin, STEPS, WARM_UP, BATCH, WIDTH, workers=workers)[0]


def report() -> None:
    for workers, bar in ((2, 2.0), (4, 2.5)):
        library, ring = training(workers, allreduce="library"), training(workers)
        thinnest = partial(by_hand, workers)
        title = f"Throughput, mlp 64-{WIDTH}-{WIDTH}-10 on digits, {BATCH} samples a worker, {workers} ranks"
        measures = {"dlpar, MPI_Allreduce": partial(ours, library), "by hand, MPI_Allreduce": thinnest}
        show(title, in_turns(measures, n=5), "samples/s", {"by hand, MPI_Allreduce": 0.95})
        measures = {
            "dlpar ring": partial(ours, ring),
            "by hand, MPI_Allreduce": thinnest,
            "torch DDP, gloo": lambda: torchrun(ring, WARM_UP)["samples_per_s"],
            "dlpar ring, overlapped": partial(ours, training(workers, overlap=True, bucket_mb=0.6)),
        }
        bars = {"by hand, MPI_Allreduce": 0.9, "torch DDP, gloo": bar}
        show(title, in_turns(measures, n=5), "samples/s", bars)
