"""Host time of a step: one worker of dlpar against a plain loop of torch, which take turns in one process.

Seconds are those that the process computes, because other programs may hold the cores.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from time import process_time

from compare import limit

import dlpar

BLOCK, PAIRS = 10, 40
"""Steps of one loop before the other's turn, and the number of turns."""

SIZES = {
    "mlp 64-256-256-10, 256 digits": {},
    "mlp 64-64-64-10, 64 digits": {"model": {"width": 64}, "batch": 64},
    "transformer 2 x 64, 16 x 32 characters": {
        "model": {"name": "transformer", "width": 64, "heads": 4, "depth": 2},
        "data": "docstrings",
        "batch": 16,
    },
}


def plain(experiment: dlpar.Experiment) -> Callable[[int], float]:
    """Return one step of the loop that a textbook would print, for the same model, samples and update rule."""
    import torch
    from torch.nn.functional import cross_entropy

    from dlpar import models
    from dlpar.data import load

    dataset = load(experiment.data, experiment.seed, model=experiment.model.name)
    model = models.build(experiment, dataset)
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.lr)
    x, y, size = dataset.train_x, dataset.train_y, len(dataset.train_x)
    order = torch.randperm(size)

    def step(number: int) -> float:
        start = number * experiment.batch % (size - experiment.batch)
        samples = order[start : start + experiment.batch]
        output = model(x[samples])
        loss = cross_entropy(output.flatten(0, -2), y[samples].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def paired(comm, fields: dict, folder: str) -> list[float]:
    """Return seconds of dlpar's steps over seconds of the plain loop's, block by block."""
    import torch

    from dlpar import Experiment
    from dlpar.jobs.record import Recorder
    from dlpar.train import train

    torch.set_num_threads(1)  # threads that wait for each other would count their waits as work
    experiment = Experiment(workers=1, steps=BLOCK * PAIRS, evaluate_every=10**7, **fields)
    step, ratios = plain(experiment), []

    class InTurns(Recorder):
        """Lets the plain loop run after each block of recorded steps."""

        def step(self, number: int, **facts) -> None:
            super().step(number, **facts)
            if (number + 1) % BLOCK == 0:
                done = process_time()
                for n in range(number + 1 - BLOCK, number + 1):
                    step(n)
                self.began, before = process_time(), self.began
                ratios.append((done - before) / (self.began - done))

    record = InTurns(folder, comm)
    record.began = process_time()
    train(comm, experiment, record)
    return ratios[PAIRS // 10 :]


def report() -> None:
    for name, fields in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            ratios = dlpar.spmd(paired, fields, folder, workers=1, timeout=300)[0]
        limit(f"time of a step over a plain loop's, {name}, 1 rank", ratios, "×", 1.05)
