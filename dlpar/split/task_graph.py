"""Computation as a graph of tasks with data dependencies, assigned to ranks by list scheduling.

Sources: Graham, "Bounds on multiprocessing timing anomalies" (SIAM J. Appl. Math. 17, 1969) for the schedule and its
bound; Zaharia et al., "Resilient distributed datasets" (NSDI 2012, sections 4 and 5), for stages between wide
dependencies.

>>> graph = [Task("x", partial(torch.arange, 4.0), 4), Task("y", lambda x: 2 * x, 4, (From("x"),))]
>>> spmd(lambda comm: run(comm, graph), workers=2)
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dlpar.comm import ANY, Comm, Request, wait_all


class From(NamedTuple):
    """Input of a task: another task's result, or part `part` of `parts`. The first parts may be longer."""

    task: str
    part: int = 0
    parts: int = 1

    def of(self, result: Tensor) -> Tensor:
        """Return the part of a result."""
        return result.tensor_split(self.parts)[self.part]

    def length(self, size: int) -> int:
        """Return the length of the part of a result with `size` numbers."""
        return size // self.parts + (self.part < size % self.parts)


class Task(NamedTuple):
    """Unit of work that takes the results of other tasks and produces one result.

    Attributes
    ----------
    name : str
    work : callable
        Takes a flat tensor for each input, and returns the result.
    size : int
        Numbers in the result, which is flat.
    inputs : tuple of From
    cost : float
        Floating-point operations.
    """

    name: str
    work: Callable[..., Tensor]
    size: int
    inputs: tuple[From, ...] = ()
    cost: float = 0.0


Graph = Sequence[Task]
"""Tasks in order: each comes after the tasks whose results it takes."""


def check(graph: Graph) -> None:
    """Raise `ValueError` for a repeated name, an input after its task, or a part that does not exist."""
    known: set[str] = set()
    for task in graph:
        if task.name in known:
            raise ValueError(f"graph: got task {task.name!r} twice, allowed is each name once")
        if missing := [each.task for each in task.inputs if each.task not in known]:
            raise ValueError(f"graph: got input {missing[0]!r} of {task.name!r}, allowed is a task before it")
        if wrong := [each for each in task.inputs if not 0 <= each.part < each.parts]:
            got = f"graph: got {wrong[0]} for {task.name!r}"
            raise ValueError(f"{got}, allowed is a part from 0 to parts - 1")
        known.add(task.name)


def work(graph: Graph) -> float:
    """Return W, the cost of all tasks in FLOPs."""
    return sum(task.cost for task in graph)


def to_the_end(graph: Graph) -> dict[str, float]:
    """Return the cost of the longest path from each task's start to the end.

    The largest cost is the depth D.
    """
    after: dict[str, float] = defaultdict(float)
    found = {}
    for task in reversed(graph):
        found[task.name] = task.cost + after[task.name]
        for each in task.inputs:
            after[each.task] = max(after[each.task], found[task.name])
    return found


def depth(graph: Graph) -> float:
    """Return D, the cost in FLOPs of the longest path."""
    return max(to_the_end(graph).values())


def stages(graph: Graph) -> dict[str, int]:
    """Return the number of the driver's stage for each task. A stage begins after wide dependencies.

    A dependency is narrow if no other task takes the parent's result (Zaharia et al., section 4).
    """
    users = Counter(name for task in graph for name in {each.task for each in task.inputs})
    found: dict[str, int] = {}
    for task in graph:
        found[task.name] = max((found[i.task] + (users[i.task] > 1) for i in task.inputs), default=0)
    return found


def schedule(graph: Graph, workers: int) -> tuple[dict[str, int], float]:
    """Assign tasks by list scheduling. A free worker takes the ready task with the longest remaining path.

    Messages take no time in this plan.  Its length T, for p workers, obeys ``max(W/p, D) ≤ T ≤ W/p + D`` (Graham).

    Returns
    -------
    dict of str to int, float
        The worker of each task, in the order in which tasks start; and T, in FLOPs.
    """
    check(graph)
    urgency, missing, users = to_the_end(graph), {}, defaultdict(list)
    for number, task in enumerate(graph):
        missing[task.name] = len({each.task for each in task.inputs})
        for name in {each.task for each in task.inputs}:
            users[name].append((number, task))
    ready = [(-urgency[task.name], n, task) for n, task in enumerate(graph) if not task.inputs]
    free, running, plan, now = list(range(workers)), list[tuple[float, int, Task]](), dict[str, int](), 0.0
    heapq.heapify(ready)
    while ready or running:
        while ready and free:
            *_, task = heapq.heappop(ready)
            plan[task.name] = heapq.heappop(free)
            heapq.heappush(running, (now + task.cost, plan[task.name], task))
        now, worker, ended = heapq.heappop(running)
        heapq.heappush(free, worker)
        for number, task in users[ended.name]:
            missing[task.name] -= 1
            if not missing[task.name]:
                heapq.heappush(ready, (-urgency[task.name], number, task))
    return plan, now


ORDER, DONE, EDGES = 1, 2, 3
"""Tags of the driver's orders, of workers' reports, and of results (plus the number of the edge)."""


def run(
    comm: Comm, graph: Graph, driver: float | None = None, dtype: torch.dtype = torch.float64
) -> Mapping[str, Tensor]:
    """Run a graph on all ranks, and return the results of this rank's tasks by name. Collective.

    A result goes directly from its worker to the workers that need it.  Without a driver a task starts as
    soon as its inputs arrive, as in the dataflow of Minerva and TensorFlow.

    Parameters
    ----------
    comm : Comm
        Its ranks are the workers. With a driver, rank 0 is not a worker.
    graph : sequence of Task
        The same on every rank.
    driver : float, optional
        FLOPs that a driver on rank 0 spends on each task. It starts the tasks of a stage one by one, and the
        next stage when all have reported, as Spark does.
    dtype : torch.dtype, default float64
        Type of all results.

    Raises
    ------
    ValueError
        If a name is repeated, a task precedes its input, a part does not exist, or there is a driver but no worker.
    RuntimeError
        If a result has another number of elements than its task's size.
    """
    first = int(driver is not None)
    if comm.size <= first:
        raise ValueError(f"comm: got {comm.size} rank, allowed with a driver is at least 2")
    # The world keeps the graph, so that no other gets its id.
    key = f"cut {id(graph)} {len(graph)}"
    _, rank_of, consumers, tags = comm.world.once(key, partial(_cut, graph, comm.size, first))
    if driver is not None and comm.rank == 0:
        _drive(comm, graph, rank_of, driver, dtype)
        return {}
    by_name = {task.name: task for task in graph}
    results, sending = dict[str, Tensor](), list[Request]()
    for name in (name for name in rank_of if rank_of[name] == comm.rank):
        task = by_name[name]
        if driver is not None:
            comm.recv(comm.empty(1, dtype), 0, ORDER)
        inputs = []
        for place, each in enumerate(task.inputs):
            if each.task in results:
                inputs.append(each.of(results[each.task]))
            else:
                inputs.append(comm.empty(each.length(by_name[each.task].size), dtype))
                comm.recv(inputs[-1], rank_of[each.task], tags[name, place])
        result = results[name] = comm.empty(task.size, dtype)
        comm.compute(lambda: result.copy_(task.work(*inputs).reshape(task.size)), cost=task.cost)
        for consumer, place in consumers[name]:
            if rank_of[consumer] != comm.rank:
                part = by_name[consumer].inputs[place].of(result)
                sending.append(comm.isend(part, rank_of[consumer], tags[consumer, place]))
        if driver is not None:
            sending.append(comm.isend(comm.empty(1, dtype), 0, DONE))
    wait_all(sending)
    return results


Wiring = tuple[Graph, dict[str, int], dict[str, list[tuple[str, int]]], dict[tuple[str, int], int]]
"""The graph; rank of each task; consumers of each task, with the input's position; and the tags of these inputs."""


def _cut(graph: Graph, ranks: int, first: int) -> Wiring:
    plan, _ = schedule(graph, ranks - first)
    consumers, tags = defaultdict(list), dict[tuple[str, int], int]()
    for task in graph:
        for place, each in enumerate(task.inputs):
            consumers[each.task].append((task.name, place))
            tags[task.name, place] = EDGES + len(tags)
    order = sorted(plan, key=stages(graph).__getitem__) if first else plan
    return graph, {name: plan[name] + first for name in order}, consumers, tags  # no other graph gets its id


def _drive(comm: Comm, graph: Graph, rank_of: Mapping[str, int], cost: float, dtype: torch.dtype) -> None:
    """Start the tasks stage by stage. A stage begins after all reports of the previous stage."""
    number, token = stages(graph), comm.empty(1, dtype)
    for stage in range(max(number.values()) + 1):
        tasks = [name for name in rank_of if number[name] == stage]
        for name in tasks:
            comm.compute(lambda: None, cost=cost)
            comm.send(token, rank_of[name], ORDER)
        for _ in tasks:
            comm.recv(token, ANY, DONE)


# ---- graphs of published systems --------------------------------------------------------


Contribution = Callable[[int, int, Tensor], Tensor]
"""Function ``gradient(step, worker, weights)``: a worker's contribution, shaped like the weights."""


def two_jobs(
    gradient: Contribution, weights: Tensor, workers: int, steps: int, lr: float, cost: float = 0.0
) -> list[Task]:
    """Return training as a task graph with two jobs per step: gradients, then shuffled and updated slices.

    Source: Dai et al., "BigDL" (SoCC 2019, section 3.2).

    Task k of the second job takes slice k of every gradient, adds them up, and updates slice k of the
    weights. The gradients of the next step take all slices.

    Parameters
    ----------
    gradient : callable
        See :data:`Contribution`.
    weights : Tensor, shape (n,)
        Initial weights, on the device of the ranks.
    workers, steps : int
    lr : float
        Learning rate of SGD.
    cost : float
        FLOPs of a gradient.
    """
    graph, start = list[Task](), weights.tensor_split(workers)
    for step in range(steps):
        # The first step's tasks have the initial weights.
        held = tuple(From(f"weights {step} {k}") for k in range(workers)) if step else ()
        for worker in range(workers):
            of = lambda *taken, step=step, worker=worker: gradient(step, worker, torch.cat(taken or start))
            graph.append(Task(f"gradient {step} {worker}", of, len(weights), held, cost))
        for k, own in enumerate(start):
            shuffled = tuple(From(f"gradient {step} {worker}", k, workers) for worker in range(workers))
            update = partial(_update, lr) if step else partial(_update, lr, own)
            inputs = (*held[k : k + 1], *shuffled)
            graph.append(Task(f"weights {step + 1} {k}", update, len(own), inputs, workers * len(own)))
    return graph


def _update(lr: float, weights: Tensor, *gradients: Tensor) -> Tensor:
    return weights - lr * sum(gradients)


def word_count(lines: Sequence[str], words: Sequence[str], keys: int) -> list[Task]:
    """Return Spark's textFile, map, reduceByKey and join as a task graph.

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
    counts = lambda text: torch.bincount(text.long(), minlength=n).double()
    for number, line in enumerate(lines):
        text = torch.tensor([float(words.index(word)) for word in line.split()], dtype=torch.float64)
        graph.append(Task(f"textFile {number}", text.clone, len(text)))
        graph.append(Task(f"map {number}", counts, n, (From(f"textFile {number}"),)))
    for key, table in enumerate(torch.arange(n, dtype=torch.float64).tensor_split(keys)):
        shuffled = tuple(From(f"map {number}", key, keys) for number in range(len(lines)))
        graph.append(Task(f"reduceByKey {key}", lambda *counts: sum(counts), len(table), shuffled))
        graph.append(Task(f"table {key}", table.clone, len(table)))
        both = From(f"reduceByKey {key}"), From(f"table {key}")
        graph.append(Task(f"join {key}", torch.mul, len(table), both))
    return graph
