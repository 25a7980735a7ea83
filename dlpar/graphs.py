"""Graphs of workers, the neighbours' averaging weights, and the rate at which replicas agree.

Sources: Xiao and Boyd (Systems & Control Letters 2004) for the rate; Xiao, Boyd and Lall (IPSN 2005) for
Metropolis weights; Ying et al. (arXiv 2110.13363) for the exponential graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isqrt
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from dlpar.config import sync as parts
from dlpar.config.generator import generator

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment
    from dlpar.config.sync import SyncPart

Graph = list[tuple[int, ...]]
"""Neighbours of each worker, ascending, without the worker. In a directed graph, these are its receivers."""

Edges = Iterable[tuple[int, int]]
"""Pairs (from, to). Edges from a worker to itself, which small graphs have, are ignored."""

REDRAWS = 20
"""Maximum number of random graphs drawn to find a connected one."""

DIRECTED = {"ring", "exp2", "edges"}
"""Topologies with one-way edges under push-sum."""


def _ring(n: int) -> Edges:
    return [(i, (i + 1) % n) for i in range(n)]


def _grid(n: int) -> Edges:
    _, columns = grid_shape(n)
    right = [(i, i + 1) for i in range(n) if (i + 1) % columns]
    return right + [(i, i + columns) for i in range(n - columns)]


def _exponential(n: int) -> Edges:
    return [(i, (i + 2**k) % n) for i in range(n) for k in range((n - 1).bit_length())]


TOPOLOGIES: dict[str, Callable[[int], Edges]] = {
    "ring": _ring,
    "grid": _grid,
    "exp2": _exponential,
    "star": lambda n: [(0, i) for i in range(1, n)],
    "complete": lambda n: [(i, j) for i in range(n) for j in range(i + 1, n)],
}
"""Functions that list the edges of n workers, by graph. ``random`` and ``edges`` need further settings."""


def register(name: str, edges: Callable[[int], Edges]) -> None:
    """Add a topology that experiments can name. ``edges(n)`` lists the edges of n workers."""
    TOPOLOGIES[name] = edges
    parts.TOPOLOGIES.append(name)


def neighbours(sync: SyncPart, workers: int, seed: int) -> Graph:
    """Return the undirected graph in which workers average.

    Parameters
    ----------
    sync : SyncPart
        Its ``topology``.  ``ring``; ``grid``: a mesh with borders, as square as a divisor of
        `workers` allows (a path if that is prime), numbered row by row; ``exp2``: i and i ± 2^k;
        ``star`` around worker 0; ``complete``; ``random``: every worker has ``degree``
        neighbours; ``edges``: your own.
    workers : int
        At least 1. One worker has no neighbours.
    seed : int
        Seed of the random graph: the first connected one of `REDRAWS` draws, or the last draw.

    Returns
    -------
    list of tuple of int
        Neighbours of each worker.
    """
    if sync.topology != "random" or workers == 1:
        return _adjacency(_joined(_edges(sync, workers), workers))
    for attempt in range(REDRAWS):
        draw = int(generator(seed, "graph", attempt).integers(2**31))
        graph = nx.random_regular_graph(sync.degree, workers, seed=draw)
        if nx.is_connected(graph):
            break
    return _adjacency(graph)


def one_peer_shift(round: int, workers: int) -> int:
    """Return a worker's distance to its receiver in a round of the one-peer exponential graph.

    Distances are 1, 2, 4, …, repeated.
    """
    return 2 ** (round % max(1, (workers - 1).bit_length()))


def receivers(sync: SyncPart, workers: int, seed: int) -> Graph:
    """Return the directed graph of push-sum as the receivers of each worker.

    Ring: i to i + 1.  exp2: i to i + 2^k.  edges: your pairs (from, to).  Other graphs have every edge in
    both directions.
    """
    if sync.topology not in DIRECTED:
        return neighbours(sync, workers, seed)
    return _adjacency(_joined(_edges(sync, workers), workers, nx.DiGraph))


def senders(graph: Graph) -> Graph:
    """Return the senders of each worker in a directed graph."""
    return _adjacency(nx.DiGraph(dict(enumerate(graph))).reverse())


def _edges(sync: SyncPart, n: int) -> Edges:
    return TOPOLOGIES[sync.topology](n) if sync.topology in TOPOLOGIES else sync.edges


def _adjacency(graph: nx.Graph) -> Graph:
    return [tuple(sorted(graph[worker])) for worker in range(len(graph))]


def _joined(edges: Edges, n: int, kind: type[nx.Graph] = nx.Graph) -> nx.Graph:
    """Return the graph of n workers with these edges, undirected by default."""
    graph = nx.empty_graph(n, kind)
    graph.add_edges_from((a, b) for a, b in edges if a != b)
    return graph


def grid_shape(workers: int) -> tuple[int, int]:
    """Return the rows and columns of the grid of exactly this many workers that is closest to a square.

    >>> grid_shape(12)
    (3, 4)
    """
    rows = next(r for r in range(isqrt(workers), 0, -1) if workers % r == 0)
    return rows, workers // rows


def components(graph: Graph) -> list[list[int]]:
    """Return the connected components of a graph, each ascending. Directions are ignored."""
    return [sorted(part) for part in nx.connected_components(nx.Graph(dict(enumerate(graph))))]


def warning(experiment: Experiment) -> str | None:
    """Return in one sentence why the replicas of an experiment cannot agree, or None if they can."""
    sync, workers = experiment.sync, experiment.workers
    if not sync.has_graph or sync.topology == "complete":  # this graph has too many edges to look at
        return None
    parts = components(neighbours(sync, workers, experiment.seed))
    if len(parts) == 1:
        return None
    shown = " | ".join(" ".join(map(str, part)) for part in parts)
    return f"The graph is in {len(parts)} parts (workers {shown}), so its replicas cannot agree"


def partners(graph: Graph) -> tuple[set[int], Graph]:
    """Choose active workers, which request averages, and passive workers, which answer.

    Two workers that wait for each other's answer would deadlock.  So AD-PSGD needs a bipartite graph
    (Lian et al., arXiv 1710.06952, section 3.2).  In any other graph, edges within a side are dropped.
    The sides come from a large cut.  The search starts with even and odd workers on opposite sides, and moves
    one worker at a time. If the cut disconnects workers that the graph connects, a breadth-first tree gives
    the sides.  The larger side is active, because every active worker starts one average per step.

    Returns
    -------
    (set of int, list of tuple of int)
        The active workers, and the partners of each worker.  Every worker with a neighbour has a partner.
        Connected workers stay connected.
    """
    whole = nx.Graph(dict(enumerate(graph)))
    if nx.is_bipartite(whole):
        first = {worker for worker, side in nx.bipartite.color(whole).items() if side}
    else:
        first = _large_cut(graph)
        if nx.number_connected_components(_across(whole, first)) > nx.number_connected_components(whole):
            first = _odd_levels(whole)
    active = first if 2 * len(first) > len(graph) else set(whole) - set(first)
    return set(active), _adjacency(_across(whole, first))


def _large_cut(graph: Graph) -> set[int]:
    """Return one side of a cut. No move of a single worker makes the cut larger.

    As networkx's ``one_exchange`` with seed 0, which counts the whole cut again for each possible move.
    """
    side, draw = set(range(1, len(graph), 2)), nx.utils.create_py_random_state(0)
    gain = lambda worker: sum(1 if (other in side) == (worker in side) else -1 for other in graph[worker])
    gains = list(map(gain, range(len(graph))))
    while True:
        workers = list(range(len(graph)))
        draw.shuffle(workers)  # equal moves are drawn
        best = max(workers, key=gains.__getitem__)
        if gains[best] <= 0:
            return side
        side ^= {best}
        for worker in (best, *graph[best]):
            gains[worker] = gain(worker)


def _across(graph: nx.Graph, side: set[int]) -> nx.Graph:
    """Return the edges between the two sides."""
    return _joined(((a, b) for a, b in graph.edges if (a in side) != (b in side)), len(graph))


def _odd_levels(graph: nx.Graph) -> set[int]:
    """Return the workers at an odd distance from the first worker of their component."""
    starts = map(min, nx.connected_components(graph))
    levels = (nx.single_source_shortest_path_length(graph, start) for start in starts)
    return {worker for level in levels for worker, distance in level.items() if distance % 2}


def mixing_matrix(graph: Graph) -> np.ndarray:
    """Return the Metropolis weights of an undirected graph. The matrix is symmetric and doubly stochastic.

    Returns
    -------
    numpy.ndarray
        (workers, workers), float64.  Neighbours i and j with d_i and d_j neighbours have W_ij = 1 / (1 +
        max(d_i, d_j)).  W_ii makes each row sum to 1.
    """
    matrix = np.zeros((len(graph), len(graph)))
    for worker in range(len(graph)):
        for other, share in metropolis(graph, worker).items():
            matrix[worker, other] = share
    return matrix


def metropolis(graph: Graph, worker: int) -> dict[int, float]:
    """Return one worker's row of :func:`mixing_matrix`: its weights for its neighbours and for itself."""
    degree = len(graph[worker])
    row, own = {j: 1 / (1 + max(degree, len(graph[j]))) for j in graph[worker]}, 1 / (1 + degree)
    # Not 1 - sum, so that on a complete graph every weight is exactly 1/n.
    return {**row, worker: own + sum(own - share for share in row.values())}


def pushing_matrix(graph: Graph) -> np.ndarray:
    """Return push-sum's weights, (workers, workers).

    Column i holds 1 / (receivers of i + 1) for i and its receivers.
    """
    matrix = np.zeros((len(graph), len(graph)))
    for i, others in enumerate(graph):
        matrix[[i, *others], i] = 1 / (1 + len(others))
    return matrix


def second_eigenvalue(matrix: np.ndarray) -> float:
    """Return |λ₂|, the second largest modulus of an eigenvalue.

    The largest modulus is 1. For a single worker, the result is 0.

    In the long run each step multiplies the consensus distance by this factor.
    """
    symmetric = np.array_equal(matrix, matrix.T)
    moduli = np.abs(np.linalg.eigvalsh(matrix) if symmetric else np.linalg.eigvals(matrix))
    return float(np.sort(moduli)[-2]) if len(matrix) > 1 else 0.0
