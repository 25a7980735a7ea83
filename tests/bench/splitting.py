"""Steps per second of a transformer on two ranks: dlpar's splits against torch's own over gloo."""

from __future__ import annotations

from functools import partial

from compare import in_turns, show
from peer import torchrun

import dlpar
from dlpar import Experiment

WARM_UP = 10


def training(split: dict, batch: int = 8, **sync) -> Experiment:
    """Two blocks, 128 wide, on samples of 32 characters."""
    return Experiment(
        workers=2,
        model={"name": "transformer", "width": 128, "depth": 2},
        data={"name": "docstrings", "context": 32},
        batch=batch,
        steps=110,
        evaluate_every=10_000,
        split=split,
        sync={"scheme": "ring", **sync},
        cluster={"threads": 1},
    )


def ours(experiment: Experiment) -> float:
    """Steps per second after the warm-up."""
    curve = dlpar.launch(experiment).wait(300).curve
    return (len(curve) - WARM_UP) / (curve["seconds"].iloc[-1] - curve["seconds"].iloc[WARM_UP - 1])


def theirs(experiment: Experiment) -> float:
    return torchrun(experiment, WARM_UP, "parallelize.py")["steps_per_s"]


TITLE = "transformer of 2 blocks 128 wide, 8 samples of 32 characters on a rank, 2 ranks"


def tensor() -> None:
    experiment = training({"kind": "tensor"})
    measures = {
        "dlpar tensor split": partial(ours, experiment),
        "torch parallelize_module, gloo": partial(theirs, experiment),
    }
    title = f"Tensor parallelism, {TITLE}"
    show(title, in_turns(measures, n=5), "steps/s", {"torch parallelize_module, gloo": 1.5})


def zero() -> None:
    experiment = partial(training, {"kind": "data", "zero": 3}, 16)
    measures = {
        "dlpar ZeRO 3, MPI's halves": partial(ours, experiment(allreduce="library")),
        "torch FSDP2, gloo": partial(theirs, experiment()),
        "dlpar ZeRO 3, overlapped": partial(ours, experiment(allreduce="library", overlap=True)),
        "dlpar ZeRO 3, ring": partial(ours, experiment()),
    }
    show(f"Sharded weights, {TITLE}", in_turns(measures, n=5), "steps/s", {"torch FSDP2, gloo": 0.95})
