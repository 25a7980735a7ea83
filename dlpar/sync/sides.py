"""Who asks and who answers in pairwise gossip.

Two workers that both wait for the other's answer would wait for ever, so AD-PSGD
has active workers, which ask, and passive ones, which answer (Lian et al., arXiv
1710.06952, section 3.2, for bipartite graphs).  Any graph is made bipartite here.
"""

from __future__ import annotations

from dlpar.sync.topology import Graph, components


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
