"""The base of every scheme: a few calls that the training loop makes each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.config.experiment import Experiment
    from dlpar.replica import Replica


class Scheme:
    """A scheme: it makes this worker's replica agree with the others'.

    A scheme of your own needs :meth:`combine` alone; ``Experiment(sync=MyScheme)`` runs it.

    Parameters
    ----------
    experiment : Experiment
        What is run.
    comm : Comm
        All ranks: workers first (0 to N-1), then the servers of a scheme that has any.
    replica : Replica
        The weights and the gradient of this worker, each one flat tensor of shape (parameters,).

    Notes ----- ``replica.gradient`` holds this worker's *contribution* to the gradient of the global batch's
    mean loss: the sum over workers is that gradient.
    """

    chosen: Mapping[str, Any] = MappingProxyType({})
    """Choices that the scheme made itself when it was set up, for the record."""

    kept: tuple[str, ...] = ("optimizer",)
    """Attributes that are its state, in a snapshot."""

    first = 0
    """Number of the first step."""

    begun = False
    """Whether the weights hold an update of the present step already, while messages of it are still under way."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        # Imported here, so that a notebook that defines a scheme need not load torch.
        from dlpar.sync.optim import Optimizer

        self.experiment, self.comm, self.replica = experiment, comm, replica
        self.optimizer = Optimizer(experiment.optimizer, replica.weights, experiment.lr, experiment.momentum)

    def steps(self) -> Iterable[int]:
        """Numbers of the steps this worker does; batches follow from them."""
        return range(self.first, self.experiment.steps)

    def resume(self, own: int, done: int) -> None:
        """Go on where a worker that did `own` of `done` global steps stopped; collective, the kept state is there."""
        self.first = own

    def combine(self) -> None:
        """Exchange what the backward pass left in ``replica.gradient``, or weights, with whom the scheme says."""
        raise NotImplementedError

    def update(self) -> None:
        """Move the replica's weights; by default by its gradient, with the experiment's optimizer."""
        step = partial(self.optimizer.step, self.replica.gradient)
        self.comm.compute(step, cost=2 * self.replica.gradient.numel())

    def spread(self, span: Callable[[str], AbstractContextManager]) -> None:
        """Give the others what only this worker has updated, in a span of the record; by default nothing."""

    def done(self, own: int) -> int:
        """Global steps all workers together have done, as far as this one knows, which did `own`."""
        return own

    def state_bytes(self) -> int:
        """Bytes that the update rule keeps on this worker from step to step."""
        return self.optimizer.nbytes

    def facts(self) -> dict[str, Any]:
        """Return facts to record of the step just done: at least ``staleness`` (updates) and ``lead`` (clocks)."""
        return {"staleness": 0, "lead": 0}


class Tickets:
    """steps × workers worker-steps for all workers together, each done once; collective.

    Parameters
    ----------
    experiment : Experiment
        Gives steps and workers.
    comm : Comm
        Its ranks count together.
    """

    def __init__(self, experiment: Experiment, comm: Comm) -> None:
        self.counter, self.workers, self.all_steps = comm.counter(), experiment.workers, experiment.steps
        self.last = self.before = self.clock = 0

    def resume(self, own: int, done: int) -> None:
        """Count what all workers did before: `done` global steps, this one `own` steps."""
        self.clock, self.before = own, done * self.workers

    def steps(self, agree: Callable[[bool], bool]) -> Iterator[int]:
        """Clocks of this worker, 0, 1, 2, ..., as long as there are worker-steps left for anybody.

        `agree` makes the ranks of one replica do the same steps.
        """
        while agree(self.take()):
            yield self.clock
            self.clock += 1

    def take(self) -> bool:
        """Ask for a worker-step; False once all are taken."""
        self.last = self.before + self.counter.take()
        return self.last < self.all_steps * self.workers

    @property
    def done(self) -> int:
        """Global steps, of `workers` worker-steps each, that were given out before this worker's last one."""
        return min(self.last // self.workers, self.all_steps)
