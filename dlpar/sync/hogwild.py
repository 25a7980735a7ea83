"""Hogwild!: workers on one machine update shared weights without locks.

Source: Recht, Ré, Wright and Niu (NIPS 2011).  Their analysis assumes sparse updates, and that the addition to
one weight is atomic.  Here an addition is a read and a write. If the additions of two workers overlap, one is
lost. For dense updates there is no such analysis: lab 05 measures the effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from dlpar.comm import Comm
from dlpar.config.experiment import Experiment
from dlpar.config.generator import generator
from dlpar.replica import Replica
from dlpar.sync.optim import Optimizer
from dlpar.sync.scheme import Scheme, Tickets

WATCHED = 256
"""Maximum number of randomly drawn weights used to measure conflicts and lost additions."""

TOGETHER = 64
"""Number of steps whose watched gradients are summed up together: most steps then need one call instead of four."""

LINE = 8
"""Number of 8-byte integers per cache line. Each worker's counter has its own line."""


class Hogwild(Scheme):
    """Scheme whose workers share one copy of the weights, and write to it without locks.

    A step records ``staleness``, the updates of others between this worker's read (before its forward pass)
    and its write.  It records ``written``, the number of weights it wrote.  ``conflicts`` is how many of
    these another worker also wrote in between.  Each worker's last step also records ``lost``: the share of
    all additions that the final weights lack.  ``lost`` and the conflicts of sparse updates are estimates
    from `WATCHED` weights. They are exact for smaller models. Rounding alone makes ``lost`` about 1e-7 in
    float32.  A dense update writes all weights.  So it conflicts in all weights, or in none if no other
    worker updated.
    """

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        self.sparse = experiment.sync.sparse
        # Worker 0 decides, because workers of a resumed run have weights from different moments.
        weights = comm.shared(len(replica.weights), replica.weights.dtype)
        replica.move_to(weights, copy=comm.rank == 0)
        comm.barrier()
        self.optimizer = Optimizer(experiment.optimizer, replica.weights, experiment.lr)
        self.tickets = Tickets(experiment, comm)
        self.updates = comm.shared((comm.size, LINE), torch.int64).numpy()[:, 0]  # each worker counts its own
        self.meter = ConflictMeter(experiment, comm, replica)
        self.seen: dict[str, Any] = {}
        comm.barrier()  # worker 0 has written the initial weights; from now on these may change

    def resume(self, own: int, done: int) -> None:
        super().resume(own, done)
        self.updates[self.comm.rank] = own
        self.tickets.resume(own, done)
        self.comm.barrier()  # a worker that goes on earlier would take the others' counts for zero

    def steps(self) -> Iterator[int]:
        clock, more = self.first, self.tickets.take()
        while more:
            made = self.updates.tolist()
            self.read_at, self.lead = sum(made) - made[self.comm.rank], clock - min(made)
            if self.sparse:
                self.meter.read()
            yield clock
            # Counted before the step is recorded (in facts), so that the last record has the lost updates.
            clock, more = clock + 1, self.more
        if clock == self.first:
            self._finish()

    def combine(self) -> None:
        """Exchange nothing. All workers share these weights."""

    def update(self) -> None:
        gradient = self.replica.gradient
        written = size = len(gradient)
        if self.sparse:
            places = self.comm.compute(lambda: gradient.nonzero().squeeze(1), cost=size)
            written = len(places)
            self.comm.compute(lambda: self._write_at(places), cost=2 * written)
        else:
            self.comm.compute(lambda: self.optimizer.step(gradient), cost=2 * size)
        self.meter.added()
        conflicts = self.meter.wrote() if self.sparse else 0
        made = self.updates.tolist()  # after the search for conflicts, so that most conflicts are counted
        stale = sum(made) - made[self.comm.rank] - self.read_at
        if stale and not self.sparse:
            conflicts = written  # every update wrote every weight
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

    def _finish(self) -> float:
        """Wait for every worker's last update. Return the share of lost additions."""
        self.meter.report()
        self.comm.traffic.waiting(self.comm.barrier)
        return self.meter.lost()


class ConflictMeter:
    """Meter of conflicts and lost additions in a sample of the weights. It is cheap enough for every step.

    Each worker sums up its additions privately, and finally compares the sums with the change of the weights.
    A sparse update leaves its own stamp on each watched weight that it writes.  A stamp that changed between
    read and write is a conflict.
    """

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        self.comm, self.lr = comm, experiment.lr
        # NumPy's view of the same memory is faster than torch on so few numbers.
        self.weights, self.gradient = replica.weights.numpy(), replica.gradient.numpy()
        size = len(self.weights)
        count = min(size, WATCHED)
        self.places = np.sort(generator(experiment.seed, "watched").choice(size, count, replace=False))
        self.scale = size / count
        self.stamps = comm.shared(count, torch.int32).numpy()
        self.before, self.stamp = self.stamps.copy(), comm.rank + 1 - comm.size
        self.first = self.weights[self.places].astype(np.float64)
        self.recent, self.held = np.zeros((TOGETHER, count), self.gradient.dtype), 0
        self.sum, self.path = np.zeros(count), np.zeros(count)
        self.totals = comm.shared((comm.size, 2, count), torch.float64).numpy()

    def read(self) -> None:
        """Record before the forward pass which worker wrote each weight last."""
        np.copyto(self.before, self.stamps)

    def wrote(self) -> int:
        """Return how many of an update's weights other workers had written since :meth:`read`."""
        mine = self.gradient.take(self.places) != 0
        changed = (self.stamps != self.before) & mine
        self.stamp += self.comm.size
        self.stamps[mine] = self.stamp
        return round(np.count_nonzero(changed) * self.scale)

    def added(self) -> None:
        """Record the values that an update added."""
        # Mode "raise" would copy first.
        self.gradient.take(self.places, out=self.recent[self.held], mode="clip")
        self.held += 1
        if self.held == TOGETHER:
            self._sum_up()

    def _sum_up(self) -> None:
        """Add the recent gradients to ``sum``, and their magnitudes to ``path``, in double precision."""
        recent, self.held = self.recent[: self.held], 0
        self.sum += recent.sum(axis=0, dtype=np.float64)
        self.path += np.abs(recent).sum(axis=0, dtype=np.float64)

    def report(self) -> None:
        """Send this worker's sum of additions to the others."""
        self._sum_up()
        self.totals[self.comm.rank] = -self.lr * self.sum, self.lr * self.path

    def lost(self) -> float:
        """Return the magnitude of missing additions divided by the magnitude of all additions.

        All workers must have reported.
        """
        gained = self.weights[self.places] - self.first
        added, path = self.totals.sum(axis=0)
        return float(np.abs(added - gained).sum() / max(path.sum(), 1e-300))
