"""Hogwild!: workers of one machine write to the same weights, and nobody locks anything.

Source: Recht, Ré, Wright and Niu (NIPS 2011).  An addition to a weight in shared
memory is a read and a write; of two workers' additions that fall into each other one
is lost.  Where gradients are sparse that is rare; where they are dense, SGD bears it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from dlpar.comm import Comm
from dlpar.experiment import Experiment
from dlpar.optim import Optimizer
from dlpar.sampling import generator
from dlpar.split.data import Replica
from dlpar.sync.scheme import Scheme
from dlpar.sync.tickets import Tickets

WATCHED = 256
"""Weights at most on which conflicts and lost additions are measured, drawn at random."""

LINE = 8
"""Numbers of 8 bytes in a cache line: counters of two workers do not share one."""


class Hogwild(Scheme):
    """One of the workers that share a model.

    Recorded of a step: ``staleness``, the updates of others between this worker's read
    (before its forward pass) and its write; ``written``, the weights it wrote; ``conflicts``,
    those of them that somebody else wrote in between; of each worker's last step also
    ``lost``, the share of all that was added to the weights which they do not hold in the
    end.  Conflicts and ``lost`` are estimates from `WATCHED` weights, exact below that many;
    rounding alone makes ``lost`` about 1e-7 in float32.
    """

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        replica.move_to(comm.shared(len(replica.weights), replica.weights.dtype))
        self.optimizer = Optimizer(experiment.optimizer, replica.weights, experiment.lr)
        self.tickets = Tickets(experiment, comm)
        self.updates = comm.shared((comm.size, LINE), torch.int64).numpy()[:, 0]  # made by each worker
        self.watch = Watch(experiment, comm, replica)
        self.seen: dict[str, Any] = {}
        comm.barrier()  # all have put the same first weights there; now they may change

    def steps(self) -> Iterator[int]:
        clock, more = 0, self.tickets.take()
        while more:
            self.read_at = self._others()
            self.watch.read()
            self.lead = clock - min(self.updates.tolist())
            yield clock
            # Asked for before the step is recorded (in facts): the record of the last one says what was lost.
            clock, more = clock + 1, self.more
        if not clock:
            self._finish()

    def combine(self) -> None:
        """Nothing to exchange: everybody's weights are these."""

    def update(self) -> None:
        gradient, sparse = self.replica.gradient, self.experiment.sync.sparse
        written = size = len(gradient)
        if sparse:
            places = self.comm.compute(lambda: gradient.nonzero().squeeze(1), cost=size)
            written = len(places)
            self.comm.compute(lambda: self._write_at(places), cost=2 * written)
        else:
            self.comm.compute(lambda: self.optimizer.step(gradient), cost=2 * size)
        conflicts = self.watch.wrote(sparse)
        stale = self._others() - self.read_at  # after the look for conflicts: who conflicts is counted as a rule
        self.updates[self.comm.rank] += 1
        self.seen = {"staleness": stale, "lead": self.lead, "written": written, "conflicts": conflicts}

    def facts(self) -> dict[str, Any]:
        self.more = self.tickets.take()
        if not self.more:
            self.seen["lost"] = self._finish()
        return self.seen

    def done(self, own: int) -> int:
        return sum(self.updates.tolist()) // self.experiment.workers

    def _write_at(self, places: torch.Tensor) -> None:
        self.replica.weights.index_add_(0, places, self.replica.gradient[places], alpha=-self.experiment.lr)

    def _others(self) -> int:
        return sum(self.updates.tolist()) - int(self.updates[self.comm.rank])

    def _finish(self) -> float:
        """Wait until everybody's last update is made; the share of additions that were lost."""
        self.watch.report()
        self.comm.traffic.waiting(self.comm.barrier)
        return self.watch.lost()


class Watch:
    """Some of the weights under observation; cheap enough to be done every step.

    Whoever writes a watched weight leaves a stamp, which no other update has: a stamp that
    changed between read and write is a conflict.  What each worker added is summed up in
    private and, at the end, compared with what the weights gained.
    """

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        self.comm, self.lr = comm, experiment.lr
        # NumPy's view of the same memory: on so few numbers it is quicker than torch.
        self.weights, self.gradient = replica.weights.numpy(), replica.gradient.numpy()
        size = len(self.weights)
        count = min(size, WATCHED)
        self.places = np.sort(generator(experiment.seed, "watched").choice(size, count, replace=False))
        self.scale = size / count
        self.stamps = comm.shared(count, torch.int32).numpy()
        self.before, self.stamp = self.stamps.copy(), comm.rank + 1 - comm.size
        self.first = self.weights[self.places].astype(np.float64)
        self.added, self.path = np.zeros(count), np.zeros(count)
        self.totals = comm.shared((comm.size, 2, count), torch.float64).numpy()

    def read(self) -> None:
        """Before the forward pass: remember who wrote last."""
        np.copyto(self.before, self.stamps)

    def wrote(self, sparse: bool) -> int:
        """After an update: how many of the weights it wrote others had written since :meth:`read`."""
        gradient = self.gradient.take(self.places)
        self.added += gradient
        self.path += np.abs(gradient)
        self.stamp += self.comm.size
        changed = self.stamps != self.before
        if sparse:
            mine = gradient != 0
            changed &= mine
            self.stamps[mine] = self.stamp
        else:
            self.stamps.fill(self.stamp)
        return round(np.count_nonzero(changed) * self.scale)

    def report(self) -> None:
        """Show the others what this worker added in all."""
        self.totals[self.comm.rank] = -self.lr * self.added, self.lr * self.path

    def lost(self) -> float:
        """Once all have reported: the sum of what was added but is not there, over the sum of all additions' sizes."""
        gained = self.weights[self.places] - self.first
        added, path = self.totals.sum(axis=0)
        return float(np.abs(added - gained).sum() / max(path.sum(), 1e-300))
