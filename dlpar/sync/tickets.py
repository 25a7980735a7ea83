"""Steps of workers that do not wait for each other: whoever is free takes the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.experiment import Experiment


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
        self.last = 0

    def steps(self, agree: Callable[[bool], bool]) -> Iterator[int]:
        """Clocks of this worker, 0, 1, 2, ..., as long as there are worker-steps left for anybody.

        `agree` is the scheme's (:attr:`Scheme.agree`): ranks of one replica do the same steps.
        """
        clock = 0
        while agree(self.take()):
            yield clock
            clock += 1

    def take(self) -> bool:
        """Ask for a worker-step; False once all are taken."""
        self.last = self.counter.take()
        return self.last < self.all_steps * self.workers

    @property
    def done(self) -> int:
        """Global steps, of `workers` worker-steps each, that were given out before this worker's last one."""
        return min(self.last // self.workers, self.all_steps)
