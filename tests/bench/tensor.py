"""Steps per second of a transformer cut over two ranks: dlpar against torch's own tensor parallelism over gloo."""

from __future__ import annotations

from functools import partial

from compare import in_turns, show
from peer import torchrun

import dlpar
from dlpar import Experiment

WARM_UP = 10


def training(**split) -> Experiment:
    """Two blocks, 128 wide, on 8 samples of 32 characters."""
    return Experiment(
        workers=2,
        model={"name": "transformer", "width": 128, "depth": 2},
        data={"name": "docstrings", "context": 32},
        batch=8,
        steps=110,
        evaluate_every=10_000,
        split={"kind": "tensor", **split},
        cluster={"threads": 1},
    )


def ours(experiment: Experiment) -> float:
    """Steps per second after the warm-up."""
    curve = dlpar.launch(experiment).wait(300).curve
    return (len(curve) - WARM_UP) / (curve["seconds"].iloc[-1] - curve["seconds"].iloc[WARM_UP - 1])


def theirs(experiment: Experiment) -> float:
    return torchrun(experiment, WARM_UP, "parallelize.py")["steps_per_s"]


def report() -> None:
    experiment = training()
    measures = {
        "dlpar tensor split": partial(ours, experiment),
        "torch parallelize_module, gloo": partial(theirs, experiment),
    }
    title = "Tensor parallelism, transformer of 2 blocks 128 wide, 8 samples of 32 characters, 2 ranks"
    show(title, in_turns(measures, n=5), "steps/s", {"torch parallelize_module, gloo": 1.5})
