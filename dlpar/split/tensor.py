"""Tensor parallelism: every layer cut over the ranks of a replica, which compute each sample together.

The cut itself is in :mod:`dlpar.split.cut`, what ranks say to each other in :mod:`dlpar.split.conjugate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from dlpar.split.cut import cut, joined, level
from dlpar.split.data import Replica
from dlpar.split.derivative import propagate
from dlpar.split.redundant import Overlapping
from dlpar.split.split import Split, Task


class TensorSplit(Split):
    """A replica whose every layer is cut over its ranks (Shoeybi et al., Megatron-LM, arXiv 1909.08053).

    Parameters
    ----------
    task : Task
        What to compute.

    Attributes
    ----------
    part : nn.Sequential
        This rank's pieces of all layers.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.comm, self.record, self.mates = task, task.comm, task.record, task.place.mates
        self._passes = {name: task.record.span(name) for name in ("forward", "backward")}
        self.part = cut(task.model, self.mates, self._pause, task.experiment.split.redundancy)
        self.replica = Replica(self.part, task.comm)
        # Time is charged layer by layer as gradients come, in every world: what they finish can be told at once.
        self.replica.inside = lambda call: call()
        self.loss, self.samples = None, 0
        self._overlapping = [layer for layer in self.part if isinstance(layer, Overlapping)]
        for layer in self._overlapping:
            task.memory.hold("gathered", layer.copies)

    def gradient(self, step: int) -> None:
        task, replica = self.task, self.replica
        x, y = task.batch(step)
        replica.zero_gradient()
        with self._passes["forward"], task.forward_pass():
            self._agree()
            value = task.criterion(self.part(x), y)
        with self._passes["backward"]:
            propagate(value, task.share(len(y)))
        replica.loss, replica.samples = value.detach(), len(y)
        self.loss, self.samples = (replica.loss, replica.samples) if self.mates.rank == 0 else (None, 0)

    def _agree(self) -> None:
        """Where ranks hold copies of a weight, let them be equal."""
        for layer in self._overlapping:
            layer.refresh()
        if self.task.experiment.free_running:
            with self._pause("forward"):
                level(self.part, self.mates)

    @contextmanager
    def _pause(self, during: str) -> Iterator[None]:
        """A pass stops, and goes on when messages are there."""
        self._passes[during].__exit__(None, None, None)
        with self.record.span("communicate"):
            yield
        self._passes[during].__enter__()

    def whole(self) -> nn.Module | None:
        parameters = joined(self.part, self.mates)
        if parameters is None:
            return None
        for whole, present in zip(self.task.model.parameters(), parameters, strict=True):
            whole.data.copy_(present)
        return self.task.model
