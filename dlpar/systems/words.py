"""Classification of docstrings by words. Weights are rows of a table, and a step reads its words' rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dlpar.comm import Comm
from dlpar.config.generator import generator
from dlpar.config.parts import Data
from dlpar.data import Dataset, load
from dlpar.sync.table import Table, serve


def texts() -> Dataset:
    """Return docstrings as float64 word counts."""
    return load(Data(name="docstrings"), 0, torch.float64, "logistic")


def batch(data: Dataset, step: int, size: int, worker: int, workers: int) -> tuple[Tensor, Tensor]:
    """Return a worker's share of a step's global batch."""
    drawn = torch.from_numpy(generator(0, "words", step).permutation(len(data.train_x))[:size])
    own = drawn.tensor_split(workers)[worker]
    return data.train_x[own], data.train_y[own]


def direction(x: Tensor, y: Tensor, weights: Tensor, size: int) -> Tensor:
    """Return this worker's contribution to the mean gradient of softmax regression over a global batch."""
    errors = (x @ weights).softmax(dim=1)
    errors[torch.arange(len(y)), y] -= 1
    return x.T @ errors / size


def train(
    comm: Comm, servers: int, steps: int, size: int, lr: float, staleness: int = 0, threshold: float = 0.0
) -> dict[str, Any]:
    """Train on all ranks except the last `servers` ranks, which hold the table.

    Returns
    -------
    dict
        On a worker, its counts and the largest age of its reads; on a server, its weights.
    """
    data = comm.world.once("words", texts)
    workers, shape = comm.size - servers, (data.shape[0], data.classes)
    holders = list(range(workers, comm.size))
    if comm.rank >= workers:
        return {"weights": serve(comm, range(workers), holders, shape, staleness)}
    table, oldest = Table(comm, holders, shape, staleness, threshold), 0
    for step in range(steps):
        x, y = batch(data, step, size, comm.rank, workers)
        rows = (x != 0).any(dim=0).nonzero().view(-1)
        weights = table.get(rows)
        oldest = max(oldest, int(step - table.stamp[rows].min()))
        flops = 6 * x.shape[0] * weights.numel()
        gradient = comm.compute(lambda: direction(x[:, rows], y, weights, size), cost=flops)
        table.add(rows, -lr * gradient)
        table.clock()
    table.leave()
    return {**table.counts, "oldest": oldest}


def accuracy(found: list[dict[str, Any]], servers: int) -> float:
    """Return the share of held-out docstrings that the servers' weights classify correctly."""
    data = texts()
    weights = torch.empty(data.shape[0], data.classes, dtype=torch.float64)
    for number, each in enumerate(found[-servers:]):
        weights[number::servers] = each["weights"]
    return ((data.test_x @ weights).argmax(dim=1) == data.test_y).double().mean().item()
