"""A scheme from outside: gradients are summed along a line of workers, and the sum comes back."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dlpar.config.experiment import register
from dlpar.config.rules import ANY
from dlpar.config.sync import SyncPart
from dlpar.sync import Scheme


class Relay(SyncPart):
    """Sum along a line, and back."""

    implementation = "relay:RelayScheme"
    rules = (("sync", ANY, "averaging.method", ("none",), "its line sums gradients alone"),)

    scheme: Literal["relay"] = Field("relay", title="sync")
    """How replicas agree."""


class RelayScheme(Scheme):
    """The sum grows from worker to worker; the last one sends it back."""

    def combine(self) -> None:
        comm, gradient = self.comm, self.replica.gradient
        before, after = comm.rank - 1, comm.rank + 1
        arrived = comm.empty(len(gradient), gradient.dtype)
        if before >= 0:
            comm.recv(arrived, before, tag=0)
            comm.compute(lambda: gradient.add_(arrived), cost=len(gradient))
        if after < comm.size:
            comm.send(gradient, after)
            comm.recv(gradient, after, tag=0)
        if before >= 0:
            comm.send(gradient, before)


register(Relay)
