"""All-reduce in two halves, with the update between them: each worker updates only the weights that are its own.

An all-reduce is a reduce-scatter, after which each of N workers has the sum of one
chunk, and an all-gather.  Who updates a chunk in between needs the optimizer's state
for that chunk alone: an N-th of it, for the same messages (Rajbhandari et al., "ZeRO",
arXiv 1910.02054, sections 5.1 and 7.2.1).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from dlpar.collectives import library_allgather, library_reduce_scatter, ring_allgather, ring_reduce_scatter
from dlpar.optim import Optimizer
from dlpar.sync.ring import Ring
from dlpar.sync.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm
    from dlpar.experiment import Experiment
    from dlpar.split.data import Replica

HALVES = {
    "ring": (ring_reduce_scatter, ring_allgather),
    "library": (library_reduce_scatter, library_allgather),
}
"""Reduce-scatter and all-gather of each all-reduce that has halves; chunk ``rank + 1`` (mod N) is a rank's own."""


def own_chunk(comm: Comm) -> int:
    """Which of N chunks is this rank's."""
    return (comm.rank + 1) % comm.size


class ShardedOptimizer(Ring):
    """ZeRO stage 1: every worker holds all weights and gradients, and an N-th of the optimizer's state.

    Each bucket has N chunks.  What a worker updates is a chunk of every bucket.
    """

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        self.reduce_scatter, self.allgather = HALVES[experiment.sync.allreduce]
        self.collective = self._add_up
        own = own_chunk(comm)
        self.weights: list[list[torch.Tensor]] = []  # of each bucket, in chunks
        self.shards: list[
            tuple[Optimizer, torch.Tensor]
        ] = []  # of each bucket, the own chunk of the gradient
        start = 0
        for bucket in replica.buckets:
            end = start + len(bucket)
            chunks = replica.weights[start:end].tensor_split(comm.size)
            rule = Optimizer(experiment.optimizer, chunks[own], experiment.lr, experiment.momentum)
            self.weights.append(chunks)
            self.shards.append((rule, bucket.tensor_split(comm.size)[own]))
            start = end

    def _add_up(self, comm: Comm, bucket: torch.Tensor) -> None:
        self.reduce_scatter(comm, bucket.tensor_split(comm.size))

    def update(self) -> None:
        for optimizer, gradient in self.shards:
            self.comm.compute(partial(optimizer.step, gradient), cost=2 * len(gradient))

    def spread(self, span: Callable[[str], AbstractContextManager]) -> None:
        with span("communicate"):
            for chunks in self.weights:
                self.allgather(self.comm, chunks)

    def state_bytes(self) -> int:
        return sum(optimizer.nbytes for optimizer, _ in self.shards)


class ShardedWeights(Scheme):
    """ZeRO stage 3: a worker's weights are its own alone, and their gradient was summed as it was finished.

    What is left is the update; who sums gradients and lends weights is :class:`dlpar.split.zero.ZeroSplit`.
    """

    def combine(self) -> None:
        """Nothing: it is done."""


ZERO: dict[int, type[Scheme]] = {1: ShardedOptimizer, 3: ShardedWeights}
"""By stage."""
