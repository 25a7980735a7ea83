"""Published systems, each run by its own mechanism and compared with its authors' figures."""

from __future__ import annotations

from dlpar.systems import allreduce, clusters, decentralised, mapreduce, servers, split
from dlpar.systems.record import BadSystem, Figure, Found, System, compare, find, run

SYSTEMS: tuple[System, ...] = (
    *mapreduce.SYSTEMS, *servers.SYSTEMS, *allreduce.SYSTEMS, *decentralised.SYSTEMS, *split.SYSTEMS,
    *clusters.SYSTEMS,
)  # fmt: skip
"""All records, by mechanism and year."""

__all__ = ["SYSTEMS", "BadSystem", "Figure", "Found", "System", "compare", "find", "run"]
