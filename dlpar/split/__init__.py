"""Splits: one model cut over the ranks of a replica, one class per split, all with the same few calls."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.split.split import Split, Task

SPLITS = {
    "data": "dlpar.split.split:Split",
    "zero": "dlpar.split.zero:ZeroSplit",
    "tensor": "dlpar.split.tensor:TensorSplit",
    "spatial": "dlpar.split.spatial:SpatialSplit",
    "pipeline": "dlpar.split.pipeline:PipelineSplit",
    "hybrid": "dlpar.split.pipeline:PipelineSplit",
}
"""The class of each kind of split, a subclass of :class:`~dlpar.split.split.Split`; imported when it is used."""


def make_split(task: Task) -> Split:
    """Make the split that an experiment names, ready on this rank; collective over the ranks of a replica."""
    split = task.experiment.split
    kind = split.kind if task.place.mp_group else "data"  # one rank has nothing to cut
    if getattr(split, "zero", 0) == 3:
        kind = "zero"
    return resolve_name(SPLITS[kind])(task)


__all__ = ["SPLITS", "make_split"]
