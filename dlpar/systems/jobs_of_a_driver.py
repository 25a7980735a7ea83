"""Task graphs: BigDL's step as two driver jobs (Dai et al., SoCC 2019, section 3.2), and Spark's shuffle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dlpar.comm import Comm
from dlpar.split.task_graph import From, Task, run, stages
from dlpar.systems.least_squares import LeastSquares

Contribution = Callable[[int, int, Tensor], Tensor]
"""Function ``gradient(step, worker, weights)``: a worker's contribution, shaped like the weights."""


def two_jobs(
    gradient: Contribution, weights: Tensor, workers: int, steps: int, lr: float, cost: float = 0.0
) -> list[Task]:
    """Return training as a task graph with two jobs per step: gradients, then shuffled and updated slices.

    Task k of the second job takes slice k of every gradient, adds them up, and updates slice k of the
    weights. The gradients of the next step take all slices.

    Parameters
    ----------
    gradient : callable
        See :data:`Contribution`.
    weights : Tensor, shape (n,)
        Initial weights.
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


def _gradient(gradient: Contribution, step: int, worker: int, *slices: Tensor) -> Tensor:
    return gradient(step, worker, torch.cat(slices))


def _update(lr: float, weights: Tensor, *gradients: Tensor) -> Tensor:
    return weights - lr * sum(gradients)


def _given(weights: Tensor) -> Tensor:
    return weights


def word_count(lines: Sequence[str], words: Sequence[str], keys: int) -> list[Task]:
    """Return Spark's textFile, map, groupByKey and join as a task graph.

    The result is each word's count times its number.

    Parameters
    ----------
    lines : sequence of str
        Partitions of the text.
    words : sequence of str
        All words. A word's index is its key.
    keys : int
        Number of grouping tasks. Each handles a range of the keys.
    """
    graph, n = list[Task](), len(words)
    numbers = torch.arange(n, dtype=torch.float64)
    for number, line in enumerate(lines):
        text = torch.tensor([float(words.index(word)) for word in line.split()], dtype=torch.float64)
        graph.append(Task(f"textFile {number}", partial(_given, text), len(text)))
        graph.append(Task(f"map {number}", partial(_counts, n), n, (From(f"textFile {number}"),)))
    for key, table in enumerate(numbers.tensor_split(keys)):
        shuffled = tuple(From(f"map {number}", key, keys) for number in range(len(lines)))
        graph.append(Task(f"groupByKey {key}", lambda *counts: sum(counts), len(table), shuffled))
        graph.append(Task(f"table {key}", partial(_given, table), len(table)))
        both = From(f"groupByKey {key}"), From(f"table {key}")
        graph.append(Task(f"join {key}", torch.mul, len(table), both))
    return graph


def _counts(words: int, text: Tensor) -> Tensor:
    return torch.bincount(text.long(), minlength=words).double()


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
    """Run a step with only sizes, and gradients of 2 TFLOP. Return the time of its end on this rank."""
    numbers = torch.zeros(1000)

    def graph() -> list[Task]:
        return two_jobs(lambda *_: numbers, numbers, workers, steps=1, lr=0.1, cost=2e12)

    run(comm, comm.world.once("two jobs", graph), driver)
    return comm.now()
