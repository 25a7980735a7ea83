"""Map-reduce: partitions compute gradients, a tree sums them, and the driver updates the weights.

The driver then broadcasts the weights.

Source: the mini-batch gradient descent of Apache Spark's MLlib, class
``GradientDescent`` (mllib/optimization/GradientDescent.scala), and the updaters
beside it.  Rank 0 is the driver, and also holds partition 0.  Unlike Spark's
updaters, ours do not divide the learning rate by the square root of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.functional import softshrink

from dlpar.collectives import BROADCAST, star_reduce, tree_aggregate
from dlpar.comm import Comm
from dlpar.compression import LossyComm, codec_of
from dlpar.config.experiment import Experiment
from dlpar.replica import Replica
from dlpar.sync.scheme import Scheme

DRIVER = 0
"""The rank that updates the weights."""


class MapReduce(Scheme):
    """Bulk-synchronous map-reduce.

    An iteration is one aggregation to the driver and one broadcast from the driver.

    Every partition puts (gradient, loss, count) into one vector of parameters + 2 numbers.  ``reduce="sum"``
    and ``"collect"`` weight a partition by its samples, so the driver divides sums over samples by their
    count.  ``"mean"`` gives every partition with samples the weight 1.  The mean of these means is the mean
    over samples only if all partitions have equally many samples.  Rank 0 records the driver's divisor as
    ``count``, and the driver's loss as ``driver_loss``, with the penalty of the weights that rank 0 holds: all of
    them, or its part of a split model.
    """

    kept = ("optimizer", "path", "converged")

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        sync, n, dtype = experiment.sync, len(replica.weights), replica.weights.dtype
        self.batch = experiment.global_batch
        self.parameters, self.sums = n, comm.empty(n + 2, dtype)
        self.gradient, self.loss_and_count = self.sums[:n], self.sums[n:]
        self.loss_here, self.count_here = self.sums[n], self.sums[n + 1]
        self.reduce = star_reduce if sync.reduce == "collect" else partial(tree_aggregate, depth=sync.depth)
        self.broadcast = BROADCAST[sync.broadcast]
        self.order = comm.packet(n, dtype)  # its head says whether this is the last iteration
        self.count, self.driver_loss = 0, None
        self.converged = self.warned = False
        codec = codec_of(experiment.compression)  # loss and count are sent unencoded with the gradients
        self.path: Any = comm if codec is None else LossyComm(comm, codec, exact=2)

    def steps(self) -> Iterator[int]:
        for step in super().steps():
            if self.converged:
                return
            yield step

    def combine(self) -> None:
        samples = self.replica.samples
        weight = samples if self.experiment.sync.reduce != "mean" else min(samples, 1)
        # The replica's gradient is weighted by samples / batch, as it adds up in an all-reduce.
        scale = self.batch * weight / samples if samples else 0.0
        self.comm.compute(partial(self._weigh, weight, scale), cost=self.parameters)
        self.reduce(self.path, self.sums)
        if self.comm.rank == DRIVER:
            self.comm.compute(self._drive, cost=5 * self.parameters)
        self.broadcast(self.comm, self.order.wire, DRIVER)

    def update(self) -> None:
        self.begun = False
        if self.experiment.sync.tolerance:
            self.converged = bool(self.order.head[0])
        if self.comm.rank != DRIVER:
            self.comm.compute(partial(self.replica.weights.copy_, self.order.body), cost=self.parameters)

    def _weigh(self, weight: float, scale: float) -> None:
        """Write this partition's scaled gradient, its weighted loss and its count to the vector to sum."""
        torch.mul(self.replica.gradient, scale, out=self.gradient)
        self.loss_here.copy_(self.replica.loss).mul_(weight)  # a pipeline's loss is a float
        self.count_here.fill_(weight)

    def _drive(self) -> None:
        """Divide by the count, update the weights, and check convergence."""
        loss, count = self.loss_and_count.tolist()
        self.count, self.driver_loss = round(count), None
        weights, tolerance, self.begun = self.replica.weights, self.experiment.sync.tolerance, True
        if count:
            before = weights.clone() if tolerance else None
            self.driver_loss = loss / count + self._penalty()
            self._move(count)
            if before is not None:
                self.order.head[0] = is_converged(before, weights, tolerance)
        elif not self.warned:
            self.warned = True
            said = "no worker drew a sample in an iteration, so the weights stay as they are"
            print(f"mapreduce: {said}", flush=True)
        self.order.body.copy_(weights)

    def _penalty(self) -> float:
        """Return the regularisation term of the loss at the current weights."""
        kind, strength = self.experiment.sync.regularizer, self.experiment.sync.regularization
        if kind == "none":
            return 0.0
        weights = self.replica.weights
        return strength * (weights.abs().sum() if kind == "l1" else weights.dot(weights) / 2).item()

    def _move(self, count: float) -> None:
        kind, strength = self.experiment.sync.regularizer, self.experiment.sync.regularization
        weights, gradient = self.replica.weights, self.gradient.div_(count)
        if kind == "l2":
            gradient.add_(weights, alpha=strength)
        self.optimizer.step(gradient)
        if kind == "l1":  # proximal: a step without the penalty, then towards zero, but not beyond
            weights.copy_(softshrink(weights, self.optimizer.lr * strength))

    def facts(self) -> dict[str, Any]:
        facts = super().facts()
        if self.comm.rank == DRIVER:
            facts |= {"count": self.count, "driver_loss": self.driver_loss}
        return facts


def is_converged(before: torch.Tensor, after: torch.Tensor, tolerance: float) -> bool:
    """Return whether an update moved the weights by less than `tolerance` times their length (at least 1)."""
    return (after - before).norm().item() < tolerance * max(after.norm().item(), 1.0)
