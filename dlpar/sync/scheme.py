"""Base class of all schemes, with the calls that the training loop makes in each step."""

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
    """Scheme that keeps this worker's replica in agreement with the other replicas.

    Your own scheme needs only :meth:`combine`. ``Experiment(sync=MyScheme)`` runs it.

    Parameters
    ----------
    experiment : Experiment
        The experiment.
    comm : Comm
        All ranks: workers first (0 to N-1), then the scheme's servers, if any.
    replica : Replica
        This worker's weights and gradient, each a flat tensor of shape (parameters,).

    Notes
    -----
    ``replica.gradient`` holds this worker's *contribution* to the gradient of the global batch's
    mean loss: the sum over workers is that gradient.
    """

    chosen: Mapping[str, Any] = MappingProxyType({})
    """Choices that the scheme made at its start, for the record."""

    kept: tuple[str, ...] = ("optimizer",)
    """Names of the attributes that hold the scheme's state, for snapshots."""

    first = 0
    """Number of the first step."""

    begun = False
    """Whether the weights already hold the current step's update while its messages are still under way."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        # Imported here, so that a notebook can define a scheme without loading torch.
        from dlpar.sync.optim import Optimizer

        self.experiment, self.comm, self.replica = experiment, comm, replica
        self.optimizer = Optimizer(experiment.optimizer, replica.weights, experiment.lr, experiment.momentum)

    def steps(self) -> Iterable[int]:
        """Yield the numbers of this worker's steps. They determine its batches."""
        return range(self.first, self.experiment.steps)

    def resume(self, own: int, done: int) -> None:
        """Continue with restored state after `done` global steps and `own` steps of this worker. Collective."""
        self.first = own

    def combine(self) -> None:
        """Exchange ``replica.gradient`` or the weights with the scheme's peers after the backward pass."""
        raise NotImplementedError

    def update(self) -> None:
        """Update the replica's weights. The default uses its gradient and the experiment's optimizer."""
        step = partial(self.optimizer.step, self.replica.gradient)
        self.comm.compute(step, cost=2 * self.replica.gradient.numel())

    def rest(self) -> Callable[[], None] | None:
        """Return what :meth:`combine` and :meth:`update` do after the backward pass, if this worker needs no other.

        Then a GPU replays it with the passes. By default None, as workers need one another.
        """
        return None

    def spread(self, span: Callable[[str], AbstractContextManager]) -> None:
        """Send the other workers the weights that only this worker has updated, in a recorded span.

        By default nothing is sent.
        """

    def done(self, own: int) -> int:
        """Return the number of global steps known to this worker after `own` steps of its own."""
        return own

    def state_bytes(self) -> int:
        """Return the bytes that the update rule keeps on this worker between steps."""
        return self.optimizer.nbytes

    def facts(self) -> dict[str, Any]:
        """Return facts about the last step for its record.

        They include ``staleness`` (updates) and ``lead`` (clocks).
        """
        return {"staleness": 0, "lead": 0}


class Tickets:
    """Shared count that gives each of steps × workers worker-steps to one worker. Collective.

    Parameters
    ----------
    experiment : Experiment
        Defines steps and workers.
    comm : Comm
        Communicator whose ranks count together.
    """

    def __init__(self, experiment: Experiment, comm: Comm) -> None:
        self.counter, self.workers, self.all_steps = comm.counter(), experiment.workers, experiment.steps
        self.last = self.before = self.clock = 0

    def resume(self, own: int, done: int) -> None:
        """Count earlier work: `done` global steps of all workers, and `own` steps of this worker."""
        self.clock, self.before = own, done * self.workers

    def steps(self, agree: Callable[[bool], bool]) -> Iterator[int]:
        """Yield this worker's clocks 0, 1, 2, ... while worker-steps are left.

        `agree` makes the ranks of one replica do the same steps.
        """
        while agree(self.take()):
            yield self.clock
            self.clock += 1

    def take(self) -> bool:
        """Request a worker-step. Return False once all are taken."""
        self.last = self.before + self.counter.take()
        return self.last < self.all_steps * self.workers

    @property
    def done(self) -> int:
        """Return how many global steps of `workers` worker-steps began before this worker's last worker-step."""
        return min(self.last // self.workers, self.all_steps)
