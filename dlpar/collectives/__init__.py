"""Collectives made of ``send`` and ``recv`` alone, each short enough to project on a wall.

Every one works in place on a flat tensor of any length, on any number of ranks.
Beside each stands the library's own (``library_…``), and what it must send is
known in advance: :func:`closed_form`.
"""

from __future__ import annotations

from dlpar.collectives.closed_forms import Cost, closed_form
from dlpar.collectives.halving_doubling import halving_doubling_allreduce
from dlpar.collectives.hierarchical import hierarchical_allreduce
from dlpar.collectives.library import (
    library_allgather,
    library_allreduce,
    library_broadcast,
    library_reduce,
    library_reduce_scatter,
)
from dlpar.collectives.ring import ring_allgather, ring_allreduce, ring_reduce_scatter
from dlpar.collectives.star import star_allreduce, star_broadcast, star_reduce
from dlpar.collectives.tree import tree_aggregate, tree_allreduce, tree_broadcast, tree_reduce

ALLREDUCE = {
    "ring": ring_allreduce,
    "library": library_allreduce,
    "star": star_allreduce,
    "tree": tree_allreduce,
    "halving_doubling": halving_doubling_allreduce,
    "hierarchical": hierarchical_allreduce,
}
"""All-reduce algorithms by the name an experiment gives them."""

__all__ = [
    "ALLREDUCE",
    "Cost",
    "closed_form",
    "halving_doubling_allreduce",
    "hierarchical_allreduce",
    "library_allgather",
    "library_allreduce",
    "library_broadcast",
    "library_reduce",
    "library_reduce_scatter",
    "ring_allgather",
    "ring_allreduce",
    "ring_reduce_scatter",
    "star_allreduce",
    "star_broadcast",
    "star_reduce",
    "tree_aggregate",
    "tree_allreduce",
    "tree_broadcast",
    "tree_reduce",
]
