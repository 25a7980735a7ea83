"""Schemes that keep replicas in agreement. Each is a class with the methods of :class:`Scheme`."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from dlpar.sync.scheme import Scheme

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.config.experiment import Experiment
    from dlpar.replica import Replica

__all__ = ["Scheme", "scheme"]


def scheme(experiment: Experiment, comm: Comm, replica: Replica) -> Scheme:
    """Make the experiment's scheme, ready on this worker."""
    if experiment.averaging.method != "none":
        from dlpar.sync.averaging import Averaging

        return Averaging(experiment, comm, replica)
    return exchange(experiment, comm, replica)


def exchange(experiment: Experiment, comm: Comm, replica: Replica) -> Scheme:
    """Make the scheme without local steps between its exchanges."""
    zero = getattr(experiment.split, "zero", 0)
    if zero:
        from dlpar.sync.ring import ZERO

        return ZERO[zero](experiment, comm, replica)
    return resolve_name(experiment.sync.implementation)(experiment, comm, replica)
