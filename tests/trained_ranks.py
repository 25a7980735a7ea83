"""Training without a job or a run folder: what ranks of the simulated world are left with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from dlpar import Experiment
from dlpar.record import Unrecorded
from dlpar.train import train
from simulations import run

SMALL = {
    "mlp": dict(model={"name": "mlp", "width": 32, "depth": 3}, batch=30),
    "cnn": dict(model={"name": "cnn", "width": 32, "depth": 3}, batch=22),
    "transformer": dict(
        model={"name": "transformer", "width": 16, "depth": 2}, data={"name": "docstrings", "context": 8}, batch=10
    ),
}
"""Of each model a small one; batches that micro-batches do not divide evenly."""


class Kept(Unrecorded):
    """Keeps the facts of steps where they can be looked at."""

    def __init__(self, comm) -> None:
        super().__init__(comm)
        self.steps: list[dict] = []

    def step(self, step: int, **facts) -> None:
        self.steps.append(facts)


class Trained(NamedTuple):
    """``losses``, one a step, of the global batch; ``weights`` of the whole model in the end; ``facts[rank][step]``."""

    losses: np.ndarray
    weights: torch.Tensor
    facts: list[list[dict]]


def trained(steps: int = 20, **fields) -> Trained:
    """What an experiment comes to, in float64 unless told otherwise."""
    experiment = Experiment(**{"steps": steps, "dtype": "float64", "evaluate_every": 1000, **fields})

    def program(comm):
        if comm.rank >= experiment.workers:
            from dlpar.sync import serve

            return serve(comm, experiment, Unrecorded(comm))
        record = Kept(comm)
        model = train(comm, experiment, record)
        weights = torch.cat([p.detach().flatten() for p in model.parameters()]) if comm.rank == 0 else None
        return record.steps, weights

    ranks = run(program, experiment.ranks)[: experiment.workers]
    facts = [steps for steps, _ in ranks]
    losses = [
        sum(own[step]["loss"] * own[step]["samples"] for own in facts if own[step]["samples"]) / experiment.global_batch
        for step in range(steps)
    ]
    return Trained(np.array(losses), ranks[0][1], facts)


def apart(a, b) -> float:
    """Largest relative difference of losses."""
    return float(np.max(np.abs(a - b) / np.abs(a)))
