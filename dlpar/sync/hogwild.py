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

WATCHED = 1024
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
            self.lead = int(clock - self.updates.min())
            yield clock
            # Asked for before the step is recorded (in facts): the record of the last one says what was lost.
            clock, more = clock + 1, self.more
        if not clock:
            self._finish()

    def combine(self) -> None:
        """Nothing to exchange: everybody's weights are these."""

    def update(self) -> None:
        gradient, nonzero = self.replica.gradient, None
        if self.experiment.sync.sparse:
            nonzero = self.comm.compute(lambda: gradient.nonzero().squeeze(1), cost=len(gradient))
            self.comm.compute(lambda: self._write_at(nonzero), cost=2 * len(nonzero))
        else:
            self.comm.compute(lambda: self.optimizer.step(gradient), cost=2 * len(gradient))
        conflicts = self.watch.wrote(nonzero)
        written = len(gradient) if nonzero is None else len(nonzero)
        stale = int(self._others() - self.read_at)  # after the look for conflicts: who conflicts is counted as a rule
        self.updates[self.comm.rank] += 1
        self.seen = {"staleness": stale, "lead": self.lead, "written": written, "conflicts": conflicts}

    def facts(self) -> dict[str, Any]:
        self.more = self.tickets.take()
        if not self.more:
            self.seen["lost"] = self._finish()
        return self.seen

    def done(self, own: int) -> int:
        return int(self.updates.sum()) // self.experiment.workers

    def _write_at(self, places: torch.Tensor) -> None:
        self.replica.weights.index_add_(0, places, self.replica.gradient[places], alpha=-self.experiment.lr)

    def _others(self) -> int:
        return self.updates.sum() - self.updates[self.comm.rank]

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
        self.comm, self.replica, self.lr = comm, replica, experiment.lr
        size = len(replica.weights)
        if size <= WATCHED:
            self.places = torch.arange(size)
        else:
            drawn = generator(experiment.seed, "watched").choice(size, WATCHED, replace=False)
            self.places = torch.from_numpy(np.sort(drawn))
        self.scale = size / len(self.places)
        count = len(self.places)
        self.stamps = comm.shared(count, torch.int32).numpy()
        self.stamp = comm.rank + 1 - comm.size
        self.first = replica.weights[self.places].double()
        self.added = torch.zeros(count, dtype=torch.float64)
        self.path = torch.zeros(count, dtype=torch.float64)
        self.totals = comm.shared((comm.size, 2, count), torch.float64)

    def read(self) -> None:
        """Before the forward pass: remember who wrote last."""
        self.before = self.stamps.copy()

    def wrote(self, nonzero: torch.Tensor | None) -> int:
        """After an update of the weights at `nonzero`, or of all: how many others had written since :meth:`read`."""
        delta = self.replica.gradient[self.places].double().mul_(-self.lr)
        self.added += delta
        self.path += delta.abs()
        self.stamp += self.comm.size
        changed = self.stamps != self.before
        if nonzero is None:
            self.stamps[:] = self.stamp
        else:
            mine = delta.numpy() != 0
            changed &= mine
            self.stamps[mine] = self.stamp
        return round(int(np.count_nonzero(changed)) * self.scale)

    def report(self) -> None:
        """Show the others what this worker added in all."""
        self.totals[self.comm.rank, 0], self.totals[self.comm.rank, 1] = self.added, self.path

    def lost(self) -> float:
        """Once all have reported: the sum of what was added but is not there, over the sum of all additions' sizes."""
        gained = self.replica.weights[self.places].double() - self.first
        added, path = self.totals.sum(0)
        return float((added - gained).abs().sum() / path.sum().clamp_min(1e-300))
