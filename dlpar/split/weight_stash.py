"""Versions of a stage's weights: a micro-batch goes back through the weights it came through.

Without a flush, weights move between the forward and the backward pass of a
micro-batch.  PipeDream keeps those of its forward pass for its backward pass (Harlap
et al., arXiv 1806.03377, section 3.3, weight stashing).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from dlpar.memory import Memory
    from dlpar.split.data import Replica


class WeightStash:
    """Weights of one stage as they were.

    Parameters
    ----------
    replica : Replica
        Whose weights; they move in place.
    memory : Memory
        Where versions that are kept are counted.

    Attributes
    ----------
    version : int
        Of the present weights: how many updates have been made.
    """

    def __init__(self, replica: Replica, memory: Memory) -> None:
        self.replica, self.memory, self.version = replica, memory, 0
        self._version_of: dict[int, int] = {}  # of each micro-batch in flight
        self._kept: dict[int, Tensor] = {}

    @property
    def versions(self) -> int:
        """Different versions of the weights that are there, the present one included."""
        return len({self.version, *self._kept})

    def keep(self, micro: int) -> None:
        """The present weights are those of a micro-batch; one copy serves all that share a version."""
        self._version_of[micro] = self.version
        if self.version not in self._kept:  # a copy: the present ones move in place
            kept = self._kept[self.version] = self.replica.weights.clone()
            if isinstance(kept, Tensor):
                self.memory.hold("weights", kept)

    def let_go(self, micro: int) -> int:
        """A micro-batch is back; how many updates were made since it came."""
        version = self._version_of.pop(micro)
        if version not in self._version_of.values():
            kept = self._kept.pop(version)
            if isinstance(kept, Tensor):
                self.memory.drop(kept)
        return self.version - version

    @contextmanager
    def used(self, micro: int) -> Iterator[None]:
        """Compute with the weights of a micro-batch meanwhile."""
        present = self.replica.weights
        self.replica.look_at(self._kept[self._version_of[micro]])
        try:
            yield
        finally:
            self.replica.look_at(present)
