"""Averaging of models instead of gradients. Workers take local steps and exchange every `period` steps.

The inner scheme treats a worker's change since the last exchange, divided by the number of workers, as a
gradient.  Its optimizer applies the sum with learning rate 1.  So any scheme can average models:

    local            start + mean of the workers' changes: McMahan et al. (AISTATS 2017); Stich (ICLR 2019)
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
    """Return the experiment of the inner scheme. Servers use it too.

    It has one step per block, and each step works on differences of models.

    An experiment without averaging is returned unchanged.
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
    """Scheme of local steps with the experiment's optimizer, followed by an exchange through another scheme.

    With `elastic`, a worker continues from its own weights, pulled towards the centre. With the other kinds,
    it continues from the result of the exchange.  At the end every worker holds the centre, or the average.
    """

    kept = ("inner", "optimizer", "agreed", "own")

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        self.inner = sync.exchange(outer(experiment), comm, replica)
        # This comes after the inner scheme, which may have changed the weights.
        super().__init__(experiment, comm, replica)
        self.chosen = self.inner.chosen
        self.period, self.elastic = experiment.averaging.period, experiment.averaging.method == "elastic"
        self.pull = experiment.averaging.elasticity / experiment.workers if self.elastic else 0.0
        # The last weights on which all agreed: the start of the block, or the centre.
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
        # A worker's snapshot and that of free servers are of different moments. The servers' counts.
        if self.experiment.sync.runs_free and not self.elastic:
            self.agreed.copy_(self.replica.weights)

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
        """Take a local step with N times this worker's contribution to the global gradient.

        With equal shares this is its mean gradient.
        """
        gradient, workers = self.replica.gradient, self.experiment.workers
        # A single worker does not know the size of a sampled batch, so its expected size is used.
        share = workers / getattr(self.experiment.sync, "fraction", 1.0)
        self.comm.compute(partial(self.optimizer.step, gradient.mul_(share)), cost=3 * len(gradient))

    def _offer(self) -> None:
        """Replace the gradient with this worker's change, and the weights with the last agreed weights."""
        replica, workers = self.replica, self.experiment.workers
        self.own.copy_(replica.weights)
        replica.gradient.copy_(self.agreed).sub_(self.own).div_(workers)
        replica.weights.copy_(self.agreed)
        replica.samples = self.experiment.global_batch / workers  # every model has the same weight

    def _take(self) -> None:
        """Continue from the agreed weights.

        With `elastic`, continue from this worker's own weights, pulled towards the old centre.
        """
        if self.elastic:
            self.own.lerp_(self.agreed, self.pull)
        self.agreed.copy_(self.replica.weights)
        if self.elastic:
            self.replica.weights.copy_(self.own)

    def done(self, own: int) -> int:
        return self.inner.done(own // self.period) * self.period

    def facts(self) -> dict[str, Any]:
        # No clock is charged for this, because only the record needs it.
        sketch = self.comm.compute(lambda: self.sketch.of(self.replica.weights))
        return {**self.inner.facts(), "sketch": sketch}
