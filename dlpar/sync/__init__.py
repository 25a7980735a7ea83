"""How replicas agree: one class per scheme, all with the same three calls.

``steps()`` yields the global steps this worker does, ``combine()`` exchanges
what the backward pass left in the replica's gradient, ``update()`` applies it.
``train.py`` knows no more than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Protocol

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.experiment import Experiment
    from dlpar.split.data import Replica


class Scheme(Protocol):
    """What a synchronisation scheme offers to the training loop.

    The gradient a scheme finds in ``replica.gradient`` is this worker's
    contribution to the gradient of the global batch's mean loss: the sum over
    workers is that gradient.
    """

    def steps(self) -> Iterable[int]:
        """Numbers of the global steps this worker takes part in."""

    def combine(self) -> None:
        """Exchange gradients, or weights, with whom the scheme says."""

    def update(self) -> None:
        """Move the replica's weights, where the scheme has not done so already."""

    def facts(self) -> dict[str, int]:
        """``staleness`` in updates and ``lead`` in clocks of the step just done."""


def scheme(experiment: Experiment, comm: Comm, replica: Replica) -> Scheme:
    """The scheme an experiment names, ready on this rank."""
    from dlpar.sync.ring import Ring

    return {"ring": Ring}[experiment.sync.scheme](experiment, comm, replica)
