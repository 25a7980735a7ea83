"""Training without a job or a run folder: what ranks of the simulated world are left with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dlpar import Experiment, models
from dlpar.comm import Recorder
from dlpar.data import load
from dlpar.data.sampler import Sampler
from dlpar.train import serve, train
from dlpar.worlds.simulated.run import of_experiment, run_program

SMALL = {
    "mlp": dict(model={"name": "mlp", "width": 32, "depth": 3}, batch=30),
    "cnn": dict(model={"name": "cnn", "width": 32, "depth": 3}, batch=22),
    "transformer": dict(
        model={"name": "transformer", "width": 16, "depth": 2},
        data={"name": "docstrings", "context": 8},
        batch=10,
    ),
}
"""Of each model a small one; batches that micro-batches do not divide evenly."""

LARGE = {
    "mlp": dict(model={"width": 4096, "depth": 3}, batch=4096),
    "transformer": dict(
        model={"name": "transformer", "width": 512, "depth": 6, "heads": 8},
        data={"name": "docstrings", "context": 256},
        batch=64,
    ),
}
"""Of two models a large one, which keeps a GPU busy."""


class Kept(Recorder):
    """Keeps what is said of every step where it can be looked at."""

    def __init__(self, comm) -> None:
        self.now, self.steps = comm.now, list[dict[str, Any]]()

    def step(self, step: int, **facts: Any) -> None:
        facts["loss"] = None if facts["loss"] is None else float(facts["loss"])
        self.steps.append({"step": step, "t": self.now(), **facts})


class Trained(NamedTuple):
    """What came of a run: each worker's model, and ``facts[rank][step]``."""

    models: list[nn.Module]
    facts: list[list[dict[str, Any]]]

    @property
    def losses(self) -> np.ndarray:
        """Of each step, over the global batch."""
        steps = zip(*self.facts, strict=True)
        return np.array(
            [of_global_batch([(facts["loss"], facts["samples"]) for facts in step]) for step in steps]
        )

    @property
    def weights(self) -> torch.Tensor:
        """Of the first rank's whole model in the end, running statistics included."""
        return torch.cat([value.flatten() for value in self.models[0].state_dict().values()])


def trained(steps: int = 20, **fields: Any) -> Trained:
    """What an experiment comes to in the simulated world, in this process; in float64 unless told otherwise."""
    world = {"world": "simulated", **fields.pop("cluster", {})}
    given = {"steps": steps, "dtype": "float64", "evaluate_every": 1000, **fields}
    experiment = Experiment(cluster=world, **given)
    simulator, comms = of_experiment(experiment)
    records = [Kept(comm) for comm in comms]
    models = run_program(
        simulator, comms, lambda comm: take_part(comm, experiment, records[comm.rank]), patience=30
    )
    return Trained(models[: experiment.workers], [record.steps for record in records[: experiment.workers]])


def images_a_second(batch: int = 32, **fields: Any) -> float:
    """How many samples of a big model's workload simulated workers take in a second, `batch` a worker and step."""
    cluster = {"messages": "sizes", **fields.pop("cluster")}
    facts = trained(steps=6, batch=batch, scaling="weak", cluster=cluster, **fields).facts
    ends = [max(each["t"] for each in step) for step in zip(*facts)]
    # Nobody waits for anybody before the first step, or after the last.
    return batch * len(facts) * 3 / (ends[4] - ends[1])


class OneProcess:
    """An experiment's model and batches in one process, in float64: for algorithms as their papers write them."""

    def __init__(self, experiment: Experiment) -> None:
        self.dataset = load(experiment.data, experiment.seed, torch.float64, experiment.model.name)
        self.sampler = Sampler(experiment, self.dataset.train_y, len(self.dataset.train_x))
        self.network = models.build(experiment, self.dataset)
        self.weights = flat(self.network).detach()

    def gradient(self, weights: torch.Tensor, step: int, worker: int) -> tuple[float, torch.Tensor]:
        """Mean loss of a worker's samples of a step at some weights, and its gradient."""
        vector_to_parameters(weights, self.network.parameters())
        own, dataset = self.sampler.indices(step, worker), self.dataset
        loss = models.loss(dataset.task)(self.network(dataset.train_x[own]), dataset.train_y[own])
        found = torch.autograd.grad(loss, list(self.network.parameters()))
        return loss.item(), torch.cat([each.flatten() for each in found])


def flat(model: nn.Module) -> torch.Tensor:
    """All weights of a model in one vector."""
    return parameters_to_vector(model.parameters())


def take_part(comm, experiment: Experiment, record: Kept) -> nn.Module | None:
    """What a rank does: a worker trains, a server serves."""
    return (train if comm.rank < experiment.workers else serve)(comm, experiment, record)


def of_global_batch(ranks: list[tuple[float | None, int]]) -> float:
    """The loss over all ranks' samples of a step, from each rank's loss and samples; not a number if there are none."""
    samples = sum(number for _, number in ranks)
    return sum(loss * number for loss, number in ranks if number) / samples if samples else float("nan")


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Largest relative difference of losses."""
    return float(np.max(np.abs(a - b) / np.abs(a)))
