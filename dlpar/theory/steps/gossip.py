"""A step of gossip: every worker exchanges weights with a few others, and waits for them alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlpar.theory.overlap import gossip_seconds
from dlpar.theory.steps.fabric import BOTH_WAYS, Fabric
from dlpar.theory.steps.form import Form, in_step, too_many
from dlpar.theory.steps.rounds import Moments, Ports, with_neighbours
from dlpar.theory.steps.work import Work, exchanges
from dlpar.worlds.platforms.platform import Link

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


ADAPTING = 5
"""FLOPs a weight to sketch it, to scale its gradient and to move it."""

SOURCES = {
    "neighbours": "Lian et al. (arXiv 1705.09056), table 1",
    "push_sum": "Assran et al. (arXiv 1811.10792)",
    "random": "Blot et al. (arXiv 1611.09726)",
    "pairwise": "Lian et al. (arXiv 1710.06952)",
}


def form(experiment: Experiment, fabric: Fabric, work: Work) -> Form:
    """The form of an experiment whose scheme is gossip."""
    return {"pairwise": _pairwise, "random": _random}.get(experiment.sync.exchange, _on_graph)(
        experiment, fabric, work
    )


def _on_graph(experiment: Experiment, fabric: Fabric, work: Work) -> Form:
    from dlpar.graphs import neighbours, receivers, senders  # here: needs NumPy, the closed forms do not

    sync, n, pushes = experiment.sync, fabric.sizes.elements, experiment.sync.exchange == "push_sum"
    sends = (receivers if pushes else neighbours)(sync, experiment.workers, experiment.seed)
    hears = senders(sends) if pushes else sends
    degree = max(map(len, hears))
    nbytes = fabric.bytes(n + pushes)
    before, after = ((ADAPTING + 5) * n, (degree + 2) * n) if pushes else (ADAPTING * n, 2 * n * (degree + 1))
    messages, port, ports = sum(map(len, sends)), _port(fabric), Ports(fabric)

    def combine(moments: Moments) -> Moments:
        if too_many(messages):
            return [max(moments) + gossip_seconds(degree, nbytes, port)] * len(moments)
        return with_neighbours(sends, hears, moments, nbytes, fabric, ports)

    found = in_step(experiment, fabric, work, combine, before, after, messages)
    why = ""
    if too_many(messages):
        why = "so many messages are not followed one by one: those who queue are left out"
    elif not fabric.own_ports:
        why = "ranks of a node share a port: the order in which they get it is not followed"
    elif fabric.half_duplex:
        why = BOTH_WAYS
    elif degree > 2 or pushes or not work.equal:
        why = "a neighbour that is ahead may send again before another sends at all, which is not followed"
    elif degree > 1:
        why = "of two neighbours' messages that come at the same moment either may be granted the port first"
    return Form(
        *found[:3],
        messages * nbytes / exchanges(experiment),
        SOURCES[sync.exchange],
        f"compute + a + {degree} b and more where several begin with the same neighbour",
        why or found.unless,
    )


def _random(experiment: Experiment, fabric: Fabric, work: Work) -> Form:
    """In every round each worker hears one message after the other: nobody queues."""
    n, port = fabric.sizes.elements, _port(fabric)
    peers = min(experiment.sync.peers, experiment.workers - 1)

    def combine(moments: Moments) -> Moments:
        return [max(moments) + gossip_seconds(peers, fabric.bytes(n), port)] * len(moments)

    found = in_step(experiment, fabric, work, combine, ADAPTING * n, n * (peers + 1), 1)
    why = "" if work.equal else "workers differ, and wait for those they happen to meet, not for the slowest"
    sent = experiment.workers * peers * fabric.bytes(n) / exchanges(experiment)
    return Form(
        *found[:3],
        sent,
        SOURCES["random"],
        f"compute + a + {peers} b",
        why or ("" if fabric.uniform else "links differ: the slowest is taken"),
    )


def _pairwise(experiment: Experiment, fabric: Fabric, work: Work) -> Form:
    """Averages go on beside the computation: a step takes as long as it computes."""
    n, workers = fabric.sizes.elements, experiment.workers
    extra = [fabric.seconds((ADAPTING + 2) * n, worker) for worker in range(workers)]
    rate = sum(1 / (seconds + more) for seconds, more in zip(work.seconds, extra))
    return Form(
        workers / rate,
        sum(extra) / workers,
        0.0,
        None,
        SOURCES["pairwise"],
        "compute: nobody waits",
        "averages go on beside it, how many is not known",
    )


def _port(fabric: Fabric) -> Link:
    """The slowest link as one of several ranks has it that send over it at once."""
    return Link(
        fabric.slowest.latency, fabric.slowest.bandwidth / fabric.scale / fabric.crowd, fabric.slowest.duplex
    )
