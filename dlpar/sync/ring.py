"""Bulk-synchronous all-reduce: sum the gradients, then make the same update on every replica.

Sources: Patarasuk and Yuan (JPDC 2009); Sergeev and Del Balso, "Horovod"
(arXiv 1802.05799).  No worker ever holds an old version: staleness is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from dlpar.collectives import ALLREDUCE, HALVES
from dlpar.collectives.auto import Speed, measured, quickest, quickest_allreduce
from dlpar.comm import Comm, Request, wait_all
from dlpar.comm.base import Collective
from dlpar.compression import CompressedAllreduce, codec_of
from dlpar.compression.factors import factored
from dlpar.config.experiment import Experiment
from dlpar.replica import Replica
from dlpar.sync.optim import Optimizer
from dlpar.sync.scheme import Scheme

if TYPE_CHECKING:
    import torch


class Ring(Scheme):
    """Scheme in which every rank is a worker, and all wait for the slowest in each step."""

    kept: tuple[str, ...] = ("optimizer", "collective", "speed")
    speed: Sequence[float] = ()
    """Measured speed of the ranks. A resumed run keeps it, so that its algorithms and rounding stay the same."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        sync = experiment.sync
        layers = factored(replica.model, experiment, comm.size) if sync.factors else []
        replica.cut(sync.bucket_mb * 1e6, [each.layer for each in layers])
        self.by_factors = {replica.bucket_of(each.layer): each for each in layers}
        if layers:
            self.chosen = {"factors": len(layers)}
        self.collective = self._allreduce()
        self.under_way: list[Request] = []
        if sync.overlap:
            replica.when_ready(self._start)

    def _start(self, bucket: int) -> None:
        self.under_way.append(self.comm.start(self.collective, self.replica.buckets[bucket]))

    def combine(self) -> None:
        # Overlapped buckets have started during the backward pass.  Others start now.
        if self.under_way:
            wait_all(self.under_way)
        else:
            for number, bucket in enumerate(self.replica.buckets):
                exchange = self.by_factors[number].sum_up if number in self.by_factors else self.collective
                exchange(self.comm, bucket)

    def rest(self) -> Callable[[], None] | None:
        # A subclass may do more, and a codec's error of a step is added to the next.
        is_whole = type(self) is Ring and codec_of(self.experiment.compression) is None
        return partial(self.replica.descend, self.optimizer) if is_whole and self.comm.size == 1 else None

    def _allreduce(self) -> Collective:
        """Return the experiment's all-reduce.

        With compression, the owner of a slice sums all its codes, because partial sums are not codes.
        """
        sync, codec = self.experiment.sync, codec_of(self.experiment.compression)
        if codec is not None:
            return CompressedAllreduce(codec)
        if sync.allreduce == "hierarchical":
            return partial(ALLREDUCE[sync.allreduce], group=sync.node_size)
        return self._quickest() if sync.allreduce == "auto" else ALLREDUCE[sync.allreduce]

    def _quickest(self) -> Collective:
        """Measure the ranks' speed with a chunk of the longest bucket. Then choose the algorithms."""
        comm, buckets = self.comm, self.replica.buckets
        self.speed = speed = measured(comm, max(2, max(map(len, buckets)) // comm.size))
        names = [quickest(comm.size, bucket.nbytes, speed) for bucket in buckets]
        self.chosen = {**self.chosen, "allreduce": names}
        if comm.rank == 0:
            chosen = ", ".join(f"{name} for {n} of {len(names)}" for name, n in Counter(names).items())
            print(f"allreduce auto: {chosen} buckets", flush=True)
        return lambda comm, bucket: quickest_allreduce(comm, bucket, Speed(*self.speed))


class ShardedOptimizer(Ring):
    """ZeRO stage 1: every worker holds all weights and gradients, and 1/N of the optimizer state.

    Each bucket has N chunks, and a worker updates one chunk of every bucket.
    """

    kept = ("optimizers",)

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        reduce_scatter, self.allgather = HALVES[experiment.sync.allreduce]
        self.collective = lambda comm, bucket: reduce_scatter(comm, bucket.tensor_split(comm.size))
        self.weights: list[Sequence[torch.Tensor]] = []  # each bucket, cut into chunks
        # For each bucket: this rank's chunk of the gradient, and its update rule.
        self.shards: list[tuple[Optimizer, torch.Tensor]] = []
        start = 0
        for bucket in replica.buckets:
            chunks = replica.weights[start : start + len(bucket)].tensor_split(comm.size)
            rule = Optimizer(experiment.optimizer, chunks[comm.rank], experiment.lr, experiment.momentum)
            self.weights.append(chunks)
            self.shards.append((rule, bucket.tensor_split(comm.size)[comm.rank]))
            start += len(bucket)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Return the update rule of each bucket's chunk."""
        return [optimizer for optimizer, _ in self.shards]

    def update(self) -> None:
        for optimizer, gradient in self.shards:
            self.comm.compute(partial(optimizer.step, gradient), cost=2 * len(gradient))

    def spread(self, span: Callable[[str], AbstractContextManager]) -> None:
        with span("communicate"):
            for chunks in self.weights:
                self.allgather(self.comm, chunks)

    def state_bytes(self) -> int:
        return sum(optimizer.nbytes for optimizer in self.optimizers)


class ShardedWeights(Scheme):
    """ZeRO stage 3: a worker holds its own part of the weights. The gradient is already summed.

    Only the update remains, because :class:`dlpar.split.zero.ZeroSplit` sums gradients and gathers weights.
    """

    def combine(self) -> None:
        """Do nothing. The gradient is already summed."""


ZERO: dict[int, type[Scheme]] = {1: ShardedOptimizer, 3: ShardedWeights}
"""Schemes of ZeRO, by stage."""
