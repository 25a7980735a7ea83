"""A step of map-reduce: gradients up a tree to the driver, weights down a tree from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlpar.theory.steps.fabric import BOTH_WAYS, PACKET_HEAD, Fabric
from dlpar.theory.steps.form import Form, in_step, wire_bytes
from dlpar.theory.steps.rounds import (
    Moments,
    Ports,
    aggregate_children,
    binomial_children,
    down,
    star_children,
    up,
)
from dlpar.theory.steps.work import Work, exchanges

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


COUNTS = 2
"""Numbers that travel beside a gradient: a loss, and a count."""


def form(experiment: Experiment, fabric: Fabric, work: Work) -> Form:
    """The form of an experiment whose scheme is map-reduce."""
    sync, workers, n = experiment.sync, experiment.workers, fabric.sizes.elements
    coded = experiment.compression.codec != "none"
    gradient = wire_bytes(experiment, n, fabric.itemsize) + COUNTS * fabric.itemsize
    weights = PACKET_HEAD + n * fabric.itemsize
    below = star_children(workers) if sync.reduce == "collect" else aggregate_children(workers, sync.depth)
    above = [list(reversed(others)) for others in binomial_children(workers)]
    adding, ports = fabric.seconds(n + COUNTS + (2 * n if coded else 0)), Ports(fabric)

    def combine(moments: Moments) -> Moments:
        have = up(
            below, moments, gradient, fabric, ports, adding, packing=fabric.seconds(4 * n) if coded else 0.0
        )
        return down(above, have[0] + fabric.seconds(5 * n, 0), weights, fabric, ports)

    # The others copy their weights, the driver's are there: its next gradient is not waited for.
    found = in_step(experiment, fabric, work, combine, n, n, messages=2 * workers)
    every = exchanges(experiment)
    messages = (workers - 1) / every
    return Form(
        *found[:3],
        messages * (gradient + weights),
        "Spark's treeAggregate; Thakur et al. (IJHPCA 2005), 4.2, for the broadcast",
        f"compute + a + k b a level of {sync.depth}, of k messages to a rank, + log2 N (a + b)"
        if sync.reduce != "collect"
        else "compute + a + (N-1) b + log2 N (a + b)",
        BOTH_WAYS if fabric.half_duplex else found.unless or fabric.unless_they_meet(gradient, weights),
    )
