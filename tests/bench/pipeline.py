"""Steps per second of the same pipeline: dlpar's executor against torch.distributed.pipelining over gloo."""

from __future__ import annotations

from functools import partial

from compare import in_turns, show
from peer import torchrun

import dlpar
from dlpar import Experiment

WARM_UP, STAGES = 30, 4


def training(schedule: str) -> Experiment:
    """mlp 64-256-…-256-10 of eight layers on digits, 64 samples a step in 8 micro-batches, two layers a stage."""
    return Experiment(
        workers=STAGES,
        model={"width": 256, "depth": 7},
        batch=64,
        steps=230,
        evaluate_every=10_000,
        split={"kind": "pipeline", "schedule": schedule, "microbatches": 8},
        cluster={"threads": 1},
    )


def ours(experiment: Experiment) -> float:
    """Steps per second after the warm-up."""
    seconds = dlpar.launch(experiment).wait(300).curve["seconds"]
    return (len(seconds) - WARM_UP) / (seconds.iloc[-1] - seconds.iloc[WARM_UP - 1])


def report() -> None:
    for schedule in ("gpipe", "1f1b"):
        experiment = training(schedule)
        peer = "torch pipelining, gloo"
        measures = {f"dlpar {schedule}": partial(ours, experiment), peer: partial(theirs, experiment)}
        title = f"Pipeline, mlp of eight layers, {STAGES} stages, 8 micro-batches of 8 samples, {schedule}"
        show(title, in_turns(measures, n=5), "steps/s", {peer: 1.4})


def theirs(experiment: Experiment) -> float:
    return torchrun(experiment, WARM_UP, "pipelining.py")["steps_per_s"]
