"""Programs that run task graphs: BigDL's step as two jobs of a driver, and Spark's shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dlpar.comm import Comm
from dlpar.split.task_graph import run, stages, two_jobs, word_count
from dlpar.systems.least_squares import LeastSquares


def counted(comm: Comm, lines: Sequence[str], words: Sequence[str], keys: int) -> dict[str, Any]:
    """Run the graph of :func:`word_count` with a driver.

    Return this rank's joined keys and the number of stages.
    """
    graph = word_count(lines, words, keys)
    found = run(comm, graph, driver=1.0)
    joined = {name: part.tolist() for name, part in found.items() if name.startswith("join")}
    return {**joined, "stages": max(stages(graph).values()) + 1}


def descent(comm: Comm, steps: int, lr: float) -> float:
    """Train on diabetes as a dataflow of tasks, without a driver. Return the distance to one process.

    Every rank updates and compares its own slices of the weights.
    """
    problem = LeastSquares()
    weights = problem.start

    def contribution(step: int, worker: int, weights: Tensor) -> Tensor:
        return problem.portion(worker, comm.size, weights)[1]

    found = run(comm, two_jobs(contribution, weights, comm.size, steps, lr))
    for step in range(steps):
        weights = weights - lr * sum(contribution(step, worker, weights) for worker in range(comm.size))
    right = weights.tensor_split(comm.size)
    own = [(part, found[name]) for k, part in enumerate(right) if (name := f"weights {steps} {k}") in found]
    return max((float((part - mine).abs().max() / weights.norm()) for part, mine in own), default=0.0)


def seconds(comm: Comm, workers: int, driver: float) -> float:
    """Run a step on this rank and return its end time. Messages carry only sizes. A gradient takes 2 TFLOP."""
    numbers = torch.zeros(1000)
    graph = lambda: two_jobs(lambda *_: numbers, numbers, workers, steps=1, lr=0.1, cost=2e12)
    run(comm, comm.world.once("two jobs", graph), driver)
    return comm.now()
