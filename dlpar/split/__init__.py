"""How one model is cut over ranks: one class per split, all with the same few calls (:class:`Split`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.split.split import Split, Task

__all__ = ["make_split"]


def make_split(task: Task) -> Split:
    """The split an experiment names, ready on this rank; collective over the ranks of a replica."""
    kind = task.experiment.split.kind
    if kind == "data" and task.experiment.split.zero == 3:
        from dlpar.split.zero import ZeroSplit as make
    elif kind == "data" or task.place.mates is None:  # one rank has nothing to cut
        from dlpar.split.split import Split as make
    elif kind == "tensor":
        from dlpar.split.tensor import TensorSplit as make
    elif kind == "spatial":
        from dlpar.split.spatial import SpatialSplit as make
    else:
        from dlpar.split.pipeline import PipelineSplit as make
    return make(task)
