"""Ring all-reduce, bulk-synchronous: sum the gradients, then every replica makes the same update.

Sources: Patarasuk and Yuan (JPDC 2009); Sergeev and Del Balso, "Horovod"
(arXiv 1802.05799).  Nobody ever holds an old version: staleness is 0.
"""

from __future__ import annotations

from functools import partial

from dlpar.collectives import ALLREDUCE
from dlpar.comm import Comm, Request
from dlpar.experiment import Experiment
from dlpar.optim import Optimizer
from dlpar.split.data import Replica


class Ring:
    """Every rank is a worker; each step all of them wait for the slowest."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        self.comm, self.replica = comm, replica
        self.total_steps = experiment.steps
        self.allreduce = ALLREDUCE[experiment.sync.allreduce]
        self.optimizer = Optimizer(experiment.optimizer, replica.weights, experiment.lr)
        self.under_way: list[Request] = []
        if experiment.sync.overlap:
            replica.when_ready(self._start)

    def steps(self) -> range:
        return range(self.total_steps)

    def _start(self, bucket: int) -> None:
        self.under_way.append(self.comm.start(self.allreduce, self.replica.buckets[bucket]))

    def combine(self) -> None:
        # Overlapped buckets are on their way since the backward pass; otherwise they start now.
        if self.under_way:
            for request in self.under_way:
                request.wait()
            self.under_way.clear()
        else:
            for bucket in self.replica.buckets:
                self.allreduce(self.comm, bucket)

    def update(self) -> None:
        flops = 2 * self.replica.weights.numel()
        self.comm.compute(partial(self.optimizer.step, self.replica.gradient), cost=flops)

    def facts(self) -> dict[str, int]:
        return {"staleness": 0, "lead": 0}
