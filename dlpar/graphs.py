"""Graphs of workers for gossip, the weights with which they average, and how fast that makes them agree.

Sources: Xiao and Boyd (Systems & Control Letters 2004) for Metropolis weights and
the rate; Ying et al. (arXiv 2110.13363) for the exponential graph.  Needs NumPy only.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from dlpar.data.generator import generator

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment
    from dlpar.config.sync import Gossip


Graph = list[tuple[int, ...]]
"""The neighbours of each worker, ascending, itself not among them; in a directed graph those it sends to."""

REDRAWS = 20
"""Random graphs drawn, at most, until one is connected."""


def neighbours(sync: Gossip, workers: int, seed: int) -> Graph:
    """The undirected graph of a gossip scheme.

    Parameters
    ----------
    sync : Gossip
        Its ``topology``.  ``ring``; ``grid``: a mesh with borders, as square as a divisor of
        `workers` allows (a path if that is prime), numbered row by row; ``exp2``: i and i ± 2^k;
        ``star`` around worker 0; ``complete``; ``random``: every worker has ``degree``
        neighbours; ``edges``: your own.
    workers : int
        At least 1; one worker has no neighbours.
    seed : int
        Draws the random graph.

    Returns
    -------
    list of tuple of int
        Neighbours of each worker.
    """
    if sync.topology == "random":
        return _regular(workers, sync.degree, seed)
    return _undirected(_edges(sync, workers), workers)


def receivers(sync: Gossip, workers: int, seed: int) -> Graph:
    """The directed graph of push-sum: to whom each worker sends.

    Ring: i to i + 1; exp2: i to i + 2^k; edges: as given, a pair being (from, to);
    the other graphs have every edge in both directions.
    """
    if sync.topology in ("ring", "exp2", "edges"):
        sends = [{b for a, b in _edges(sync, workers) if a == worker != b} for worker in range(workers)]
        return [tuple(sorted(to)) for to in sends]
    return neighbours(sync, workers, seed)


def senders(graph: Graph) -> Graph:
    """From whom each worker hears in a directed graph."""
    return [tuple(i for i, to in enumerate(graph) if worker in to) for worker in range(len(graph))]


def _edges(sync: Gossip, n: int) -> list[tuple[int, int]]:
    """Edges as (from, to); an edge to itself, as small graphs have, counts for nothing."""
    if sync.topology == "ring":
        return [(i, (i + 1) % n) for i in range(n)]
    if sync.topology == "exp2":
        return [(i, (i + 2**k) % n) for i in range(n) for k in range((n - 1).bit_length())]
    if sync.topology == "star":
        return [(0, i) for i in range(1, n)]
    if sync.topology == "complete":
        return [(i, j) for i in range(n) for j in range(i + 1, n)]
    if sync.topology == "grid":
        rows, columns = grid_shape(n)
        right = [(i, i + 1) for i in range(n) if (i + 1) % columns]
        return right + [(i, i + columns) for i in range(n - columns)]
    return list(sync.edges)


def grid_shape(workers: int) -> tuple[int, int]:
    """Rows and columns of the most square grid of exactly so many workers.

    >>> grid_shape(12)
    (3, 4)
    """
    rows = next(r for r in range(isqrt(workers), 0, -1) if workers % r == 0)
    return rows, workers // rows


def _undirected(edges: list[tuple[int, int]], n: int) -> Graph:
    beside: list[set[int]] = [set() for _ in range(n)]
    for a, b in edges:
        if a != b:
            beside[a].add(b)
            beside[b].add(a)
    return [tuple(sorted(others)) for others in beside]


def _regular(n: int, degree: int, seed: int) -> Graph:
    """A random graph with `degree` neighbours each; of `REDRAWS` the first that is connected, else the last.

    A circulant graph is shuffled by switching: two edges exchange an end wherever that
    keeps the graph simple, and all degrees with it (Rao, Jana and Bandyopadhyay 1996).
    """
    if n == 1:
        return [()]
    near = [(i, (i + k) % n) for i in range(n) for k in range(1, degree // 2 + 1)]
    across = [(i, i + n // 2) for i in range(n // 2)] if degree % 2 else []
    for attempt in range(REDRAWS):
        draw = generator(seed, "graph", attempt)
        edges = [tuple(sorted(edge)) for edge in near + across]
        present = set(edges)
        pairs, turned = (
            draw.integers(len(edges), size=(10 * len(edges), 2)),
            draw.random(10 * len(edges)) < 0.5,
        )
        for (first, second), turn in zip(pairs.tolist(), turned.tolist()):
            (a, b), (c, d) = edges[first], edges[second]
            c, d = (d, c) if turn else (c, d)
            switched = tuple(sorted((a, d))), tuple(sorted((c, b)))
            if len({a, b, c, d}) == 4 and not present & set(switched):
                present -= {edges[first], edges[second]}
                present |= set(switched)
                edges[first], edges[second] = switched
        graph = _undirected(edges, n)
        if len(components(graph)) == 1:
            break
    return graph


def components(graph: Graph) -> list[list[int]]:
    """The parts of a graph between which no message ever passes, each ascending; directions are ignored."""
    both = _undirected([(a, b) for a, to in enumerate(graph) for b in to], len(graph))
    parts, seen = [], set()
    for worker in range(len(graph)):
        if worker not in seen:
            parts.append(sorted(reached(both, worker)))
            seen |= set(parts[-1])
    return parts


def reached(graph: Graph, start: int) -> set[int]:
    """All workers to whom what `start` sends gets in the end, `start` among them."""
    found, front = {start}, [start]
    while front:
        front = [b for a in front for b in graph[a] if b not in found]
        found |= set(front)
    return found


def mixing_matrix(graph: Graph) -> np.ndarray:
    """Metropolis weights of an undirected graph: symmetric and doubly stochastic.

    Returns
    -------
    numpy.ndarray
        (workers, workers), float64.  W_ij = 1 / (1 + max(d_i, d_j)) between neighbours of
        d_i and d_j neighbours; what is missing to 1 a worker gives itself.
    """
    matrix = np.zeros((len(graph), len(graph)))
    for worker in range(len(graph)):
        for other, share in metropolis(graph, worker).items():
            matrix[worker, other] = share
    return matrix


def metropolis(graph: Graph, worker: int) -> dict[int, float]:
    """One worker's row of :func:`mixing_matrix`: what it gives each neighbour's weights, and its own."""
    degree = len(graph[worker])
    row, own = {j: 1 / (1 + max(degree, len(graph[j]))) for j in graph[worker]}, 1 / (1 + degree)
    # Summed so, not as 1 - sum: on a complete graph every weight is 1/n to the last bit.
    return {**row, worker: own + sum(own - share for share in row.values())}


def pushing_matrix(graph: Graph) -> np.ndarray:
    """Weights of push-sum, (workers, workers): column i is 1 / (receivers of i + 1) for them and i itself."""
    matrix = np.zeros((len(graph), len(graph)))
    for i, others in enumerate(graph):
        matrix[[i, *others], i] = 1 / (1 + len(others))
    return matrix


def second_eigenvalue(matrix: np.ndarray) -> float:
    """|λ₂|, the largest modulus of an eigenvalue when one eigenvalue 1 is set aside; 0 for a single worker.

    The consensus distance shrinks by this factor a step, in the long run.
    """
    symmetric = np.array_equal(matrix, matrix.T)
    moduli = np.abs(np.linalg.eigvalsh(matrix) if symmetric else np.linalg.eigvals(matrix))
    return float(np.sort(moduli)[-2]) if len(matrix) > 1 else 0.0


def spectral_gap(matrix: np.ndarray) -> float:
    """1 - |λ₂|: 0 where the workers can never agree, 1 where one step does it."""
    return 1 - second_eigenvalue(matrix)


def warning(experiment: Experiment) -> str | None:
    """Why the replicas of a gossip experiment cannot agree, in one sentence; None where they can."""
    sync, workers = experiment.sync, experiment.workers
    if sync.scheme != "gossip" or sync.exchange == "random":
        return None
    graph = neighbours(sync, workers, experiment.seed)
    parts = components(graph)
    if len(parts) == 1:
        return None
    shown = " | ".join(" ".join(map(str, part)) for part in parts)
    return f"The graph is in {len(parts)} parts (workers {shown}), so its replicas cannot agree"


def one_way(graph: Graph) -> tuple[int, int] | None:
    """Two workers of a directed graph of which the first reaches the second but not the other way; None: no such."""
    reach = [reached(graph, worker) for worker in range(len(graph))]
    return next(((a, b) for a, to in enumerate(graph) for b in to if a not in reach[b]), None)


def partners(graph: Graph) -> tuple[set[int], Graph]:
    """The active workers, and with whom each worker may average: neighbours on the other side.

    On a bipartite graph no edge is lost.  Elsewhere workers start as even and odd and change
    sides while that leaves fewer edges within a side.  Should that part workers whom the
    graph joins, the sides are those of a breadth-first tree, which keeps all joined.  The
    larger side is active, as every active worker starts an average a step.

    Returns
    -------
    (set of int, list of tuple of int)
        A worker with a neighbour has a partner; connected workers stay connected.
    """
    sides = _by_depth(graph)
    kept = _across(graph, sides)
    if kept != graph:
        fewer = _by_moving(graph)
        if len(components(_across(graph, fewer))) == len(components(graph)):
            sides, kept = fewer, _across(graph, fewer)
    larger = 1 if 2 * sum(sides) > len(sides) else 0
    return {worker for worker, side in enumerate(sides) if side == larger}, kept


def _across(graph: Graph, sides: list[int]) -> Graph:
    return [tuple(j for j in others if sides[j] != sides[i]) for i, others in enumerate(graph)]


def _by_depth(graph: Graph) -> list[int]:
    """Sides by the parity of the distance from the first worker of each component."""
    sides = [-1] * len(graph)
    for part in components(graph):
        sides[part[0]], front = 0, [part[0]]
        while front:
            found = {j: 1 - sides[i] for i in front for j in graph[i] if sides[j] < 0}
            for j, side in found.items():
                sides[j] = side
            front = list(found)
    return sides


def _by_moving(graph: Graph) -> list[int]:
    """Even against odd, then whoever has more neighbours on the own side changes it, until nobody has."""
    sides, moved = [worker % 2 for worker in range(len(graph))], True
    while moved:  # ends: each move takes edges out of the sides
        moved = False
        for i, others in enumerate(graph):
            own = sum(sides[j] == sides[i] for j in others)
            if 2 * own > len(others):
                sides[i], moved = 1 - sides[i], True
    return sides
