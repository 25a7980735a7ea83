"""Averaging models instead of gradients: workers take steps of their own and meet every `period` of them.

The scheme inside gets a worker's movement since the last meeting, divided by the number of workers, as if it
were a gradient.  Its optimizer applies the sum with learning rate 1.  So any scheme can average models:

    local            start - mean of what the workers moved: McMahan et al. (AISTATS 2017); Stich (ICLR 2019)
    block_momentum   the same with momentum: Chen and Huo (ICASSP 2016), block learning rate 1
    elastic          a centre follows the workers and they follow it: Zhang, Choromanska, LeCun (NIPS 2015), eq. 5-6
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from dlpar import sync
from dlpar.comm import Comm
from dlpar.config.experiment import Experiment
from dlpar.replica import Replica
from dlpar.sync.scheme import Scheme
from dlpar.sync.sketch import Sketch


def outer(experiment: Experiment) -> Experiment:
    """Return the experiment of the scheme inside: a step a block, on differences of models; servers run it, too.

    An experiment without averaging comes back as it is.
    """
    averaging = experiment.averaging
    rule: dict[str, Any] = {"optimizer": "sgd", "lr": 1.0}
    if averaging.method == "none":
        return experiment
    if averaging.method == "elastic":
        rule["lr"] = averaging.elasticity
    elif averaging.method == "block_momentum":
        given, usual = averaging.block_momentum, 1 - 1 / experiment.workers
        rule |= {"optimizer": "momentum", "momentum": usual if given is None else given}
    steps = experiment.steps // averaging.period
    return experiment.replace(steps=steps, averaging={"method": "none"}, **rule)


class Averaging(Scheme):
    """Local steps with the experiment's own optimizer, then an exchange through another scheme.

    With `elastic`, a worker goes on from its own weights, drawn towards the centre;
    with the others from what the exchange gave.  At the end every worker holds the
    centre, or the average.
    """

    kept = ("inner", "optimizer", "agreed", "own")

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        self.inner = sync.exchange(outer(experiment), comm, replica)
        # After the inner scheme, which may have moved the weights.
        super().__init__(experiment, comm, replica)
        self.period, self.elastic = experiment.averaging.period, experiment.averaging.method == "elastic"
        self.pull = experiment.averaging.elasticity / experiment.workers if self.elastic else 0.0
        # The weights that all agreed on last: the start of the block, or the centre.
        self.agreed, self.own = replica.weights.clone(), replica.weights.clone()
        self.sketch = Sketch(replica.weights, experiment.seed)
        self.ends_block = False

    def steps(self) -> Iterator[int]:
        weights = self.replica.weights
        for block in self.inner.steps():
            if self.elastic:
                weights.copy_(self.own)
            for i in range(self.period):
                self.ends_block = i == self.period - 1
                yield block * self.period + i
            if self.elastic:  # the inner scheme may end here; servers then send the last centre
                weights.copy_(self.agreed)

    def resume(self, own: int, done: int) -> None:
        self.inner.resume(own // self.period, done // self.period)

    def combine(self) -> None:
        if self.ends_block:
            self._step()
            self.comm.compute(self._offer, cost=2 * len(self.own))
            self.inner.combine()

    def update(self) -> None:
        if self.ends_block:
            self.inner.update()
            self.comm.compute(self._take, cost=2 * len(self.own))
        else:
            self._step()

    def _step(self) -> None:
        """A step of this worker's own: the global gradient as it is seen from here."""
        gradient, workers = self.replica.gradient, self.experiment.workers
        # No worker knows the size of a sampled batch alone, so its expected size is used.
        share = workers / getattr(self.experiment.sync, "fraction", 1.0)
        self.comm.compute(partial(self.optimizer.step, gradient.mul_(share)), cost=3 * len(gradient))

    def _offer(self) -> None:
        """Put what was moved in the place of a gradient, and the last agreement in the place of the weights."""
        replica, workers = self.replica, self.experiment.workers
        self.own.copy_(replica.weights)
        replica.gradient.copy_(self.agreed).sub_(self.own).div_(workers)
        replica.weights.copy_(self.agreed)
        replica.samples = self.experiment.global_batch / workers  # every model has the same weight

    def _take(self) -> None:
        """Go on from what was agreed; with `elastic` from this worker's own weights, drawn to the old centre."""
        weights = self.replica.weights
        if self.elastic:
            self.own.lerp_(self.agreed, self.pull)
            self.agreed.copy_(weights)
            weights.copy_(self.own)
        else:
            self.agreed.copy_(weights)

    def done(self, own: int) -> int:
        return self.inner.done(own // self.period) * self.period

    def facts(self) -> dict[str, Any]:
        # Not charged: it serves the record only.
        sketch = self.comm.compute(lambda: self.sketch.of(self.replica.weights))
        return {**self.inner.facts(), "sketch": sketch}
