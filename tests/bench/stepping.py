"""Host time of a step: one worker of dlpar against a plain loop of torch, which take turns in one process.

Seconds are those that the process computes, because other programs may hold the cores.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from time import process_time

import torch
from compare import limit
from torch.nn.functional import cross_entropy

import dlpar
from dlpar import Experiment, models
from dlpar.data import load
from dlpar.jobs.record import Recorder
from dlpar.train import train

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


def plain(experiment: Experiment, device: torch.device) -> Callable[[int], None]:
    """Return one step of the loop that a textbook would print, for the same model, samples and update rule.

    It never reads its loss, so it never waits for a GPU.
    """
    dataset = load(experiment.data, experiment.seed, model=experiment.model.name)
    model = models.build(experiment, dataset).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.lr)
    x, y, batch = dataset.train_x.to(device), dataset.train_y.to(device), experiment.batch
    epochs = -(-2 * batch // len(x))  # a batch may be larger than an epoch
    order = torch.cat([torch.randperm(len(x)) for _ in range(epochs)]).to(device)
    mixed = partial(torch.autocast, device.type, torch.bfloat16)
    forward = mixed if experiment.precision == "bf16" else nullcontext

    def step(number: int) -> None:
        start = number * batch % (len(order) - batch)
        samples = order[start : start + batch]
        with forward():
            output = model(x[samples])
            loss = cross_entropy(output.flatten(0, -2), y[samples].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


class InTurns(Recorder):
    """Recorder that lets another loop run after each block of recorded steps.

    Parameters
    ----------
    folder, comm
        As of every recorder.
    block : int
        Steps of a block.
    clock : callable
        Returns seconds.
    other : callable
        Takes one step of the other loop, with its number.

    Attributes
    ----------
    seconds : list of (float, float)
        Of each block dlpar's seconds, and the other loop's.
    """

    def __init__(
        self, folder: str, comm, block: int, clock: Callable[[], float], other: Callable[[int], None]
    ) -> None:
        super().__init__(folder, comm)
        self.block, self.clock, self.other = block, clock, other
        self.seconds: list[tuple[float, float]] = []
        self.began = clock()

    def step(self, number: int, **facts) -> None:
        super().step(number, **facts)
        if (number + 1) % self.block == 0:
            done = self.clock()
            for n in range(number + 1 - self.block, number + 1):
                self.other(n)
            before, self.began = self.began, self.clock()
            self.seconds.append((done - before, self.began - done))


def blocks(
    comm, experiment: Experiment, block: int, clock: Callable[[], float], other: Callable[[int], None]
) -> list[tuple[float, float]]:
    """Train, and return of each block dlpar's seconds and the other loop's; the first tenth or more warms up."""
    torch.set_num_threads(1)  # threads that wait for each other would count their waits as work
    with tempfile.TemporaryDirectory() as folder:
        record = InTurns(folder, comm, block, clock, other)
        train(comm, experiment, record)
        record.flush()
    return record.seconds[-(-len(record.seconds) // 10) :]


def paired(comm, fields: dict) -> list[float]:
    """Return seconds of dlpar's steps over seconds of the plain loop's, block by block."""
    experiment = Experiment(workers=1, steps=BLOCK * PAIRS, evaluate_every=10**7, **fields)
    taken = blocks(comm, experiment, BLOCK, process_time, plain(experiment, comm.device))
    return [ours / theirs for ours, theirs in taken]


def report() -> None:
    for name, fields in SIZES.items():
        ratios = dlpar.spmd(paired, fields, workers=1, timeout=300)[0]
        limit(f"time of a step over a plain loop's, {name}, 1 rank", ratios, "×", 1.05)
