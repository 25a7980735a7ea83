"""BigDL's training step as two jobs of a driver (Dai et al., SoCC 2019, section 3.2), as a graph of tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from dlpar.comm import Comm
from dlpar.split.task_graph import From, Task, run


def two_jobs(
    gradient: Callable[[int, int, Tensor], Tensor],
    weights: Tensor,
    workers: int,
    steps: int,
    lr: float,
    cost: float = 0.0,
) -> list[Task]:
    """Return training as a graph of two jobs a step: gradients, then a shuffle of slices that are updated.

    Task k of the second job takes slice k of every gradient, adds them up, and updates slice k of the
    weights. The gradients of the next step take all slices.

    Parameters
    ----------
    gradient : callable
        ``gradient(step, worker, weights)`` gives a worker's contribution, of the shape of the weights.
    weights : Tensor, shape (n,)
        At first.
    workers, steps : int
    lr : float
        Learning rate of SGD.
    cost : float
        FLOPs of a gradient.
    """
    n, slices = len(weights), weights.tensor_split(workers)
    graph = [Task(f"weights 0 {k}", partial(_given, own), len(own)) for k, own in enumerate(slices)]
    for step in range(steps):
        held = tuple(From(f"weights {step} {k}") for k in range(workers))
        for worker in range(workers):
            of = partial(_gradient, gradient, step, worker)
            graph.append(Task(f"gradient {step} {worker}", of, n, held, cost))
        for k in range(workers):
            shuffled = tuple(From(f"gradient {step} {worker}", k, workers) for worker in range(workers))
            size = len(slices[k])
            inputs = (held[k], *shuffled)
            graph.append(Task(f"weights {step + 1} {k}", partial(_update, lr), size, inputs, workers * size))
    return graph


def _gradient(
    gradient: Callable[[int, int, Tensor], Tensor], step: int, worker: int, *slices: Tensor
) -> Tensor:
    return gradient(step, worker, torch.cat(slices))


def _update(lr: float, weights: Tensor, *gradients: Tensor) -> Tensor:
    return weights - lr * sum(gradients)


def _given(weights: Tensor) -> Tensor:
    return weights


def seconds(comm: Comm, workers: int, driver: float) -> float:
    """Run a step on sizes, in which a gradient takes 2 TFLOP, and return the time at its end on this rank."""
    numbers = torch.zeros(1000)

    def graph() -> list[Task]:
        return two_jobs(lambda *_: numbers, numbers, workers, steps=1, lr=0.1, cost=2e12)

    run(comm, comm.world.once("two jobs", graph), driver)
    return comm.now()
