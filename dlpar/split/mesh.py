"""Ranks on a grid with named axes: which part of which replica each one is.

After the rank grids of Narayanan et al. (arXiv 2104.04473, figure 2): ranks that
differ along one axis only form a group, and each kind of message stays in one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.config.experiment import Experiment

T = TypeVar("T")


class Mesh:
    """This rank's place on the grid; collective.

    Parameters
    ----------
    comm : Comm
        All ranks of the grid, in row-major order: neighbours on the last axis are neighbours in `comm`.
    sizes : mapping of str to int
        Ranks along each axis, the outermost first: ``{"data": 2, "pipeline": 2, "tensor": 2}``.

    Attributes
    ----------
    sizes : dict of str to int
        As given.
    at : dict of str to int
        This rank's coordinates, 0-based.

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

    def __init__(self, comm: Comm, sizes: dict[str, int]) -> None:
        if math.prod(sizes.values()) != comm.size:
            product = " × ".join(f"{name} {size}" for name, size in sizes.items())
            raise ValueError(
                f"mesh: got {product}, allowed with {comm.size} ranks is sizes that multiply to {comm.size}"
            )
        self.comm, self.sizes, self.at = comm, dict(sizes), coordinates(comm.rank, sizes)

    def group(self, *axes: str) -> Comm:
        """The ranks that differ from this one along these axes only, in the order of the axes of the mesh; collective."""
        for axis in axes:
            if axis not in self.sizes:
                raise ValueError(f"mesh: got axis {axis!r}, allowed is one of {', '.join(self.sizes)}")
        others = [axis for axis in self.sizes if axis not in axes]
        return self.comm.split(self._number(others), self._number(axes))

    def _number(self, axes: Sequence[str]) -> int:
        """This rank's number among those that differ along `axes`."""
        number = 0
        for axis in self.sizes:
            if axis in axes:
                number = number * self.sizes[axis] + self.at[axis]
        return number

    def __str__(self) -> str:
        places = ", ".join(f"{name} {place}" for name, place in self.at.items())
        return f"rank {self.comm.rank}: {title(self.sizes)}, {places}"


def coordinates(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    """Where a rank stands on each axis, in row-major order."""
    at = {}
    for name, size in reversed(sizes.items()):
        rank, at[name] = divmod(rank, size)
    return {name: at[name] for name in sizes}


def groups(sizes: dict[str, int], *axes: str) -> list[list[int]]:
    """The ranks of each group that :meth:`Mesh.group` makes, in its order; groups by their first rank.

    >>> groups({"data": 2, "tensor": 2}, "data")
    [[0, 2], [1, 3]]
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(math.prod(sizes.values())):
        others = tuple(place for axis, place in coordinates(rank, sizes).items() if axis not in axes)
        found.setdefault(others, []).append(rank)
    return list(found.values())


def title(sizes: dict[str, int]) -> str:
    """A mesh in one word: ``DP(2)-TP(2)-PP(1)``."""
    letters = {"data": "DP", "pipeline": "PP", "tensor": "TP", "rows": "HP", "columns": "WP"}
    return "-".join(f"{letters.get(name, name)}({size})" for name, size in sizes.items())


def sizes_of(experiment: Experiment) -> dict[str, int]:
    """The axes of an experiment's workers, the outermost first; `data` takes what the model's axes leave."""
    model = experiment.split.axes(experiment.workers)
    sizes = {"data": experiment.replicas, **model}
    order = [axis for axis in getattr(experiment.split, "order", "").split(",") if axis]
    return {axis: sizes[axis] for axis in order or sizes}


class Place(NamedTuple):
    """Where a worker stands in its job.

    Attributes
    ----------
    number : int
        Of its replica, 0-based: which slice of each batch is its.
    twins : Comm
        The workers that hold the same part of the model, in the order of replicas, and that part's servers after them.
    mesh : Mesh or None
        All workers; None where every replica is one rank.
    mates : Comm or None
        The ranks of this replica, in the order of the mesh; None where it is one rank.
    """

    number: int
    twins: Comm
    mesh: Mesh | None = None
    mates: Comm | None = None

    def agree(self, own: T) -> T:
        """What the replica's first rank says: its ranks take the same decisions; collective over them."""
        return own if self.mates is None else self.mates.broadcast(own)


def placed(experiment: Experiment, comm: Comm) -> Place:
    """This worker's place; collective over workers and servers, which call :func:`twins`."""
    if experiment.replicas == experiment.workers:
        return Place(comm.rank, comm)
    of_part = twins(experiment, comm)
    workers = beside_servers(experiment, comm)
    mesh = Mesh(workers, sizes_of(experiment))
    return Place(mesh.at["data"], of_part, mesh, mesh.group(*(axis for axis in mesh.sizes if axis != "data")))


def beside_servers(experiment: Experiment, comm: Comm) -> Comm:
    """The workers by themselves; collective over workers and servers."""
    if comm.size == experiment.workers:
        return comm
    return comm.split(int(comm.rank >= experiment.workers), comm.rank)


def twins(experiment: Experiment, comm: Comm) -> Comm:
    """The ranks that hold the same part of the model, in different replicas, and its share of the servers; collective."""
    if experiment.replicas == experiment.workers:
        return comm
    return comm.split(part_of(experiment, comm.rank), comm.rank)


def part_of(experiment: Experiment, rank: int) -> int:
    """Which part of the model a rank has, 0-based, in the order of the mesh: a worker, a server or a leaf server."""
    workers, part = experiment.workers, 0
    if rank < workers:
        sizes = sizes_of(experiment)
        at = coordinates(rank, sizes)
        for axis in sizes:
            part = part if axis == "data" else part * sizes[axis] + at[axis]
        return part
    extra, servers = rank - workers, experiment.sync.servers  # servers, then leaves: each part has as many
    first, number = (0, servers) if extra < servers else (servers, experiment.sync.groups)
    return (extra - first) * (workers // experiment.replicas) // number
