"""Simulated training whose records stay in memory and whose models are at hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from dlpar import Experiment
from dlpar.launcher.simulate import of_experiment, run_program
from dlpar.record import Unrecorded
from dlpar.train import train


class Kept(Unrecorded):
    """Keeps what is said of every step."""

    def __init__(self, comm) -> None:
        super().__init__(comm)
        self.steps: list[dict[str, Any]] = []

    def step(self, step: int, **facts: Any) -> None:
        self.steps.append({"step": step, "t": self.now(), **facts})


class Trained(NamedTuple):
    """What came of a run."""

    models: list[nn.Module]
    steps: list[list[dict[str, Any]]]

    @property
    def losses(self) -> np.ndarray:
        """Of each step, over the global batch."""
        return np.array([
            sum(r["loss"] * r["samples"] for r in ranks if r["samples"]) / sum(r["samples"] for r in ranks)
            for ranks in zip(*self.steps)
        ])  # fmt: skip

    @property
    def weights(self) -> dict[str, Tensor]:
        """Of the first rank's model, in the end."""
        return self.models[0].state_dict()


def kept(**fields: Any) -> Trained:
    """Run an experiment of few steps in the simulated world, in this process."""
    world = {"world": "simulated", **fields.pop("cluster", {})}
    experiment = Experiment(cluster=world, **{"steps": 20, "evaluate_every": 1000, "dtype": "float64", **fields})
    simulator, comms = of_experiment(experiment)
    records = [Kept(comm) for comm in comms]
    models = run_program(simulator, comms, lambda comm: train(comm, experiment, records[comm.rank]), patience=30)
    return Trained(models, [record.steps for record in records])


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Largest relative difference."""
    return float(np.max(np.abs(a - b) / np.abs(a)))


def weights_apart(a: Trained, b: Trained) -> float:
    """Largest difference between the weights of two runs."""
    assert a.weights.keys() == b.weights.keys()
    return max(float((value - b.weights[name]).abs().max()) for name, value in a.weights.items())
