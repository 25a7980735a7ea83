"""Parameter server: workers push gradients to servers that hold the weights, and get the weights back.

Sources: Li et al. (OSDI 2014) for key ranges; Dean et al. "DistBelief" (NIPS
2012) for pushing and fetching every n steps; Ho et al. (NIPS 2013) for clocks.
The servers' side is in ``server.py``, what both say to each other in ``client.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dlpar.comm import Comm
from dlpar.experiment import Experiment
from dlpar.split.data import Replica
from dlpar.sync.client import Client
from dlpar.sync.scheme import Scheme


class ParameterServer(Scheme):
    """A worker whose weights are a copy of the servers'; how old a copy, its consistency says."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        self.experiment, self.comm, self.replica, sync = experiment, comm, replica, experiment.sync
        self.separate, self.every = sync.pull == "separate", sync.push_every
        comm.broadcast((len(replica.weights), replica.weights.dtype))  # servers know no model, only keys
        roots = range(experiment.workers, experiment.workers + sync.servers)
        if comm.rank == 0:
            Client(comm, roots, replica.weights, experiment).initialise()
        leaf = leaf_of(experiment, comm.rank)
        self.client = Client(comm, roots if leaf is None else [leaf], replica.weights, experiment)
        self.accrued = torch.zeros_like(replica.gradient) if self.every > 1 else replica.gradient
        comm.barrier()  # the servers have the first weights: all begin together

    def steps(self) -> Iterator[int]:
        step = 0
        while self.agree(self.client.going_on):
            for _ in range(self.every):
                self.due = (step + 1) % self.every == 0
                yield step
                step += 1
        self.client.leave()

    def combine(self) -> None:
        if self.every > 1:
            self.accrued += self.replica.gradient
        if not self.due:
            return
        self.client.push(self.accrued, answered=not self.separate)
        if self.separate:
            self.client.ask()
        self.client.receive()
        if self.every > 1:
            self.accrued.zero_()

    def update(self) -> None:
        if not self.due:  # Downpour goes on from its own weights until it fetches the servers'
            self.replica.weights.add_(self.replica.gradient, alpha=-self.experiment.lr)

    def done(self, own: int) -> int:
        return self.agree(self.client.done) if self.experiment.free_running else self.client.done

    def state_bytes(self) -> int:
        """None: the servers update."""
        return 0

    def facts(self) -> dict[str, Any]:
        # Of the last push: a step between two pushes repeats what was counted of the one before.
        client = self.client
        return {"staleness": client.staleness, "lead": client.lead, "version": client.version}


def leaf_of(experiment: Experiment, worker: int) -> int | None:
    """The rank of a worker's leaf server; None where workers talk to the servers themselves."""
    sync, workers = experiment.sync, experiment.workers
    if not sync.groups:
        return None
    return workers + sync.servers + worker * sync.groups // workers
