"""Pushes per second of an asynchronous parameter server, answered with the weights: dlpar against torch's RPC."""

from __future__ import annotations

from functools import partial

from compare import in_turns, show
from peer import torchrun

import dlpar
from dlpar import Experiment

WARM_UP = 100


def training(workers: int, width: int, steps: int, **sync) -> Experiment:
    """mlp 64-width-width-10 on digits, 16 samples a worker."""
    return Experiment(
        workers=workers,
        model={"width": width, "depth": 2},
        batch=16,
        scaling="weak",
        steps=steps,
        evaluate_every=10_000,
        sync={"scheme": "ps", "consistency": "asp", **sync},
        cluster={"threads": 1},
    )


def ours(experiment: Experiment) -> float:
    """Pushes per second over all steps after the warm-up."""
    curve = dlpar.launch(experiment).wait(300).curve
    seconds = curve["seconds"].iloc[-1] - curve["seconds"].iloc[WARM_UP - 1]
    return (len(curve) - WARM_UP) * experiment.workers / seconds


def theirs(experiment: Experiment) -> float:
    return torchrun(experiment, WARM_UP, "rpc.py", experiment.workers + 1)["pushes_per_s"]


def report() -> None:
    # A wide push takes ten times as long.
    for workers, width, steps, bar in ((4, 64, 600, 1.0), (4, 512, 200, None)):
        experiment = training(workers, width, steps)
        measures = {
            "dlpar ps, asp": partial(ours, experiment),
            "torch.distributed.rpc": partial(theirs, experiment),
            "dlpar ps, asp, 2 servers": partial(ours, training(workers, width, steps, servers=2)),
        }
        title = f"Asynchronous parameter server, mlp 64-{width}-{width}-10, {workers} workers"
        bars = {} if bar is None else {"torch.distributed.rpc": bar}
        show(title, in_turns(measures, n=5), "pushes/s", bars)
