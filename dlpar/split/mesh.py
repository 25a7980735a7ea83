"""Mesh: ranks on a grid with named axes, and each rank's part of a replica.

The mesh follows the rank grids of Narayanan et al. (arXiv 2104.04473, figure 2). Ranks that differ only along
one axis form a group, and each kind of message stays within one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from dlpar.comm.base import Comm, T
    from dlpar.config.experiment import Experiment


class Mesh:
    """Grid of ranks with named axes, seen from one of them.

    Parameters
    ----------
    comm : Comm
        All ranks of the mesh, in row-major order: neighbours on the last axis are neighbours in `comm`.
    sizes : mapping of str to int
        Ranks along each axis, the outermost first: ``{"data": 2, "pipeline": 2, "tensor": 2}``.

    Attributes
    ----------
    sizes : dict of str to int
        The same as the parameter.
    at : dict of str to int
        Coordinates of this rank, 0-based.

    Raises
    ------
    ValueError
        If the sizes do not multiply to the number of ranks.

    Examples
    --------
    >>> mesh = Mesh(comm, {"data": 2, "tensor": 2})
    >>> print(mesh)
    rank 3: DP(2)-TP(2), data 1, tensor 1
    """

    def __init__(self, comm: Comm, sizes: Mapping[str, int]) -> None:
        if math.prod(sizes.values()) != comm.size:
            product = " × ".join(f"{name} {size}" for name, size in sizes.items())
            allowed = f"allowed with {comm.size} ranks is sizes that multiply to {comm.size}"
            raise ValueError(f"mesh: got {product}, {allowed}")
        self.comm, self.sizes, self.at = comm, dict(sizes), coordinates(comm.rank, sizes)

    def group(self, *axes: str) -> Comm:
        """Form the group of ranks that differ from this rank only along `axes`. Collective.

        Ranks of the group are in row-major order of `axes`.
        """
        for axis in axes:
            if axis not in self.sizes:
                raise ValueError(f"mesh: got axis {axis!r}, allowed is one of {', '.join(self.sizes)}")
        others = [axis for axis in self.sizes if axis not in axes]
        return self.comm.split(_number(self.at, self.sizes, others), _number(self.at, self.sizes, axes))

    def rank(self, **at: int) -> int:
        """Return the rank at the given coordinates. Missing coordinates are this rank's own."""
        return _number({**self.at, **at}, self.sizes, self.sizes)

    def __str__(self) -> str:
        places = ", ".join(f"{name} {place}" for name, place in self.at.items())
        return f"rank {self.comm.rank}: {title(self.sizes)}, {places}"


def _number(at: Mapping[str, int], sizes: Mapping[str, int], axes: Iterable[str]) -> int:
    """Return the row-major index of coordinates along these axes."""
    return reduce(lambda number, axis: number * sizes[axis] + at[axis], axes, 0)


def coordinates(rank: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the coordinates of a rank on each axis, in row-major order."""
    return dict(zip(sizes, map(int, np.unravel_index(rank, tuple(sizes.values())))))


def groups(sizes: Mapping[str, int], *axes: str) -> list[list[int]]:
    """List the ranks of each group that :meth:`Mesh.group` forms. Groups are ordered by their first rank.

    >>> groups({"data": 2, "tensor": 2}, "data")
    [[0, 2], [1, 3]]
    """
    ranks = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    last = np.moveaxis(ranks, [list(sizes).index(axis) for axis in axes], range(-len(axes), 0))
    return last.reshape(-1, math.prod(sizes[axis] for axis in axes)).tolist()


def shares(size: int, pieces: int) -> list[range]:
    """Cut an axis into equal shares. The first shares may be longer by one."""
    share, rest = divmod(size, pieces)
    return [range(*ends) for ends in pairwise(p * share + min(p, rest) for p in range(pieces + 1))]


def title(sizes: Mapping[str, int]) -> str:
    """Return the name of a mesh as one word, such as ``DP(2)-TP(2)-PP(1)``."""
    letters = {"data": "DP", "pipeline": "PP", "tensor": "TP", "rows": "HP", "columns": "WP"}
    return "-".join(f"{letters.get(name, name)}({size})" for name, size in sizes.items())


def sizes_of(experiment: Experiment) -> dict[str, int]:
    """Return the axes of an experiment's workers, the outermost first. `data` counts the replicas."""
    sizes = {"data": experiment.replicas, **experiment.split.axes(experiment.workers)}
    order = [axis for axis in getattr(experiment.split, "order", "").split(",") if axis]
    return {axis: sizes[axis] for axis in order or sizes}


def holders(e: Experiment) -> list[int]:
    """Return, for each rank with state, the first rank that has the same state after each step.

    Replicas that add up their gradients are equal, so the first replica writes the snapshots of all.
    """
    held = list(range(e.members))
    summed = e.sync.sends_gradients and not (e.sync.has_driver or e.sync.server_ranks)
    differ = e.compression.codec != "none" or e.averaging.method != "none" or e.model.norm == "batch"
    if summed and not (differ or getattr(e.split, "zero", False)):
        for first, *others in groups(sizes_of(e), "data"):
            for rank in others:
                held[rank] = first
    return held


class Place(NamedTuple):
    """Place of a rank in its job.

    Attributes
    ----------
    replica : int
        Number of the worker's replica, 0-based. It decides which slice of each batch the worker computes.
    dp_group : Comm
        Data-parallel group: workers with the same part of the model, in the order of replicas, then that
        part's servers.
    mesh : Mesh or None
        All workers; None if every replica is one rank, and on servers.
    mp_group : Comm or None
        Model-parallel group: the ranks of this replica, in row-major order of the split's axes; None if the
        replica is one rank.
    """

    replica: int
    dp_group: Comm
    mesh: Mesh = None  # type: ignore[assignment]  # splits that cut a model have both
    mp_group: Comm = None  # type: ignore[assignment]

    def agree(self, own: T) -> T:
        """Broadcast the decision of the replica's first rank. Collective over the replica's ranks."""
        return own if self.mp_group is None else self.mp_group.broadcast(own)


def placed(experiment: Experiment, comm: Comm) -> Place:
    """Find this rank's place. Collective over workers and servers."""
    if experiment.replicas == experiment.workers:
        return Place(comm.rank, comm)
    dp_group = comm.split(part_of(experiment, comm.rank), comm.rank)
    is_server = comm.rank >= experiment.workers
    workers = comm.split(int(is_server), comm.rank) if comm.size > experiment.workers else comm
    if is_server:
        return Place(0, dp_group)
    mesh = Mesh(workers, sizes_of(experiment))
    return Place(mesh.at["data"], dp_group, mesh, mesh.group(*experiment.split.axes(experiment.workers)))


def part_of(experiment: Experiment, rank: int) -> int:
    """Return the number of the part of the model that a worker or server holds.

    Numbers are 0-based, in the order of the mesh.
    """
    workers, sizes = experiment.workers, sizes_of(experiment)
    if rank < workers:
        return _number(coordinates(rank, sizes), sizes, [axis for axis in sizes if axis != "data"])
    # Servers come first, then leaves. Each part of the model has the same number of both.
    extra, servers = rank - workers, experiment.sync.servers
    first, number = (0, servers) if extra < servers else (servers, experiment.sync.groups)
    return (extra - first) * (workers // experiment.replicas) // number
