"""A word before a simulation of so many messages that it takes a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.experiment import Experiment

MESSAGES_A_SECOND = {"sizes": 300_000, "values": 30_000}
"""That one core simulates, a little below what ``make bench`` finds; with values the mathematics comes on top."""

LONG = 10.0
"""Seconds from which there is a word."""


def foreseen(experiment: Experiment) -> str:
    """How many messages a simulation has to pass on, and how long that takes; empty if not long, or not known."""
    if experiment.cluster.world != "simulated":
        return ""
    count = messages(experiment)
    seconds = (count or 0) / MESSAGES_A_SECOND[experiment.cluster.messages]
    if seconds < LONG:
        return ""
    rounded = round(seconds, -1) if seconds < 120 else round(seconds / 60) * 60
    time = f"{rounded:.0f} s" if rounded < 120 else f"{rounded / 60:,.0f} min"
    return f"This simulation passes on about {count / 1e6:,.1f} million messages: some {time}."


def messages(experiment: Experiment) -> int | None:
    """Messages of a whole run of replicas that are not split; None for schemes whose messages nobody counts here."""
    from dlpar.costmodel.steps.work import exchanges

    a_step = {"ring": _allreduce, "mapreduce": _mapreduce, "ps": _servers, "gossip": _gossip}
    if experiment.split.kind != "data" or experiment.sync.scheme not in a_step:
        return None
    count = a_step[experiment.sync.scheme](experiment)
    return count and count * experiment.steps // exchanges(experiment)


def _allreduce(experiment: Experiment) -> int:
    from dlpar.collectives import closed_form
    from dlpar.costmodel import buckets
    from dlpar.costmodel.steps.sizes import sizes
    from dlpar.platforms import workload

    n, sync, big = experiment.workers, experiment.sync, experiment.cluster.stand_in_for
    if big and experiment.cluster.messages == "sizes":
        bytes_of = [4 * layer.parameters for layer in workload(big).layers]
    else:
        itemsize = 8 if experiment.dtype == "float64" else 4
        bytes_of = [tensor.elements * itemsize for tensor in sizes(experiment).tensors]
    cut = len(buckets(bytes_of, sync.bucket_mb * 1e6))
    if experiment.compression.codec != "none":
        return cut * n * (n - 1)  # each code goes once around
    name = "ring" if sync.allreduce == "library" else sync.allreduce
    return cut * closed_form(name, n, 0, 4, group=sync.node_size).messages


def _mapreduce(experiment: Experiment) -> int:
    return 2 * (experiment.workers - 1)


def _servers(experiment: Experiment) -> int:
    sync, n = experiment.sync, experiment.workers
    a_push = 2 if sync.pull == "reply" else 3
    return a_push * (n + sync.groups * sync.servers if sync.groups else n * sync.servers)


def _gossip(experiment: Experiment) -> int | None:
    from dlpar.sync.topology import neighbours

    sync, n = experiment.sync, experiment.workers
    if sync.exchange == "neighbours":
        return sum(map(len, neighbours(sync, n, experiment.seed)))
    return n * sync.peers if sync.exchange == "random" else None
