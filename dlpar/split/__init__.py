"""Splits of one model over the ranks of a replica. Each is a class with the methods of :class:`Split`."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.split.split import Split, Task


def make_split(task: Task) -> Split:
    """Make the experiment's split, ready on this rank. Collective over the ranks of a replica."""
    split = task.experiment.split
    kind = split.implementation
    if getattr(split, "zero", 0) == 3:
        kind = "dlpar.split.zero:ZeroSplit"
    elif task.place.mp_group is None:  # one rank has nothing to cut
        kind = "dlpar.split.split:Split"
    return resolve_name(kind)(task)


__all__ = ["make_split"]
