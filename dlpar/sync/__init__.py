"""How replicas agree: one class per scheme, all with the same few calls (:class:`Scheme`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlpar.sync.scheme import Scheme

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.config.experiment import Experiment
    from dlpar.replica import Replica

__all__ = ["Scheme", "scheme"]


def scheme(experiment: Experiment, comm: Comm, replica: Replica) -> Scheme:
    """The scheme an experiment names, ready on this worker."""
    if experiment.averaging.method != "none":
        from dlpar.sync.averaging import Averaging

        return Averaging(experiment, comm, replica)
    return exchange(experiment, comm, replica)


def exchange(experiment: Experiment, comm: Comm, replica: Replica) -> Scheme:
    """The scheme without local steps between its exchanges."""
    name = experiment.sync.scheme
    if zero := getattr(experiment.split, "zero", 0):
        from dlpar.sync.ring import ZERO

        kind = ZERO[zero]
    elif name == "ring":
        from dlpar.sync.ring import Ring as kind
    elif name == "mapreduce":
        from dlpar.sync.mapreduce import MapReduce as kind
    elif name == "ps":
        from dlpar.sync.parameter_server import ParameterServer as kind
    elif name == "gossip":
        from dlpar.sync.gossip import gossip as kind
    elif name == "hogwild":
        from dlpar.sync.hogwild import Hogwild as kind
    else:
        from dlpar.sync.user_code import own as kind
    return kind(experiment, comm, replica)
