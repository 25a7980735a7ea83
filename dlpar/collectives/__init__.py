"""Collectives built only from ``send`` and ``recv``. Each is short enough to fit on one slide.

Each works in place on a flat tensor of any length, on any number of ranks.  Names with the prefix
``library_`` stand for the library's own collectives. :func:`dlpar.theory.counts.closed_form` predicts how
much each collective sends.
"""

from __future__ import annotations

from collections.abc import Callable

from dlpar.collectives.double_tree import double_tree_allreduce
from dlpar.collectives.ring import (
    gather_in_order,
    halving_doubling_allreduce,
    library_allgather,
    library_allreduce,
    library_reduce_scatter,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    scatter_in_order,
)
from dlpar.collectives.tree import (
    hierarchical_allreduce,
    star_allreduce,
    star_broadcast,
    star_reduce,
    torrent_broadcast,
    tree_aggregate,
    tree_allreduce,
    tree_broadcast,
    tree_reduce,
)

ALLREDUCE: dict[str, Callable[..., None]] = {
    "ring": ring_allreduce,
    "library": library_allreduce,
    "star": star_allreduce,
    "tree": tree_allreduce,
    "double_tree": double_tree_allreduce,
    "halving_doubling": halving_doubling_allreduce,
    "hierarchical": hierarchical_allreduce,
}
"""All-reduce algorithms, by their names in experiments."""

HALVES = {"ring": (scatter_in_order, gather_in_order), "library": (library_reduce_scatter, library_allgather)}
"""Reduce-scatter and all-gather of each all-reduce that has both. A rank owns the chunk of its own number."""


BROADCAST: dict[str, Callable[..., None]] = {"tree": tree_broadcast, "torrent": torrent_broadcast}
"""Broadcast algorithms of a driver, by their names in experiments."""


__all__ = [
    "ALLREDUCE", "BROADCAST", "HALVES", "halving_doubling_allreduce", "hierarchical_allreduce",
    "library_allgather", "library_allreduce", "library_reduce_scatter", "ring_allgather", "ring_allreduce",
    "ring_reduce_scatter", "star_allreduce", "star_broadcast", "star_reduce", "torrent_broadcast",
    "tree_aggregate", "tree_allreduce", "tree_broadcast", "tree_reduce",
]  # fmt: skip
