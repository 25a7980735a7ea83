"""Lab 04: whether replicas agree, how fast their graph lets them, and what that costs."""

from __future__ import annotations

from dlpar.config.experiment import Experiment

ISLANDS = {"topology": "edges", "edges": "0-1,2-3"}
"""Four workers in two pairs, with no edge between the pairs."""

SIMULATED = {"world": "simulated", "platform": "cpu-1gbe"}
"""Where only the mathematics counts, or many machines on a slow network: one process plays all ranks."""


def gossip_run() -> Experiment:
    """Lab 04: four workers on a ring train on handwritten digits for a second or two."""
    return Experiment(workers=4, model={"name": "mlp", "width": 64}, steps=150, sync="gossip")


def pure_mixing() -> list[Experiment]:
    """Lab 04: eight workers with weights of their own that only average, on a ring, on exp2 and all with all.

    A learning rate of 0 leaves nothing but mixing; float64 leaves room to fall.
    """
    return [_mixing(topology=topology) for topology in ("ring", "exp2", "complete")]


def cut_edges() -> list[Experiment]:
    """Lab 04, break it: the same ring of eight, with one edge cut, and with two."""
    whole = [(i, (i + 1) % 8) for i in range(8)]
    path = [edge for edge in whole if edge != (7, 0)]
    halves = [edge for edge in path if edge != (3, 4)]
    return [_mixing(topology="edges", edges=tuple(edges)) for edges in (whole, path, halves)]


def _mixing(**sync) -> Experiment:
    sync = {"scheme": "gossip", "start": "random", **sync}
    return Experiment(
        workers=8,
        model="linear",
        data="diabetes",
        batch=8,
        lr=0.0,
        steps=60,
        dtype="float64",
        evaluate_every=1000,
        sync=sync,
        cluster=SIMULATED,
    )


def two_islands() -> list[Experiment]:
    """Lab 04, "a falling loss means the replicas agree": ring and islands, with like and with sorted shards.

    In this order: ring iid, islands iid, ring by_label, islands by_label.
    """
    common = Experiment(
        workers=4, model={"name": "mlp", "width": 64}, batch=128, steps=120, sync="gossip", cluster=SIMULATED
    )
    graphs = ({"topology": "ring"}, ISLANDS)
    return [common.replace(shards=shards, sync=graph) for shards in ("iid", "by_label") for graph in graphs]


def more_neighbours() -> list[Experiment]:
    """Lab 04, "more neighbours is better": 16 machines on 1 Gb Ethernet with 2, 7 and 15 neighbours each.

    The same batches for all; simulated.
    """
    common = Experiment(
        workers=16,
        model={"name": "mlp", "width": 128, "depth": 1},
        batch=256,
        steps=60,
        lr=0.2,
        evaluate_every=5,
        sync="gossip",
        cluster=SIMULATED,
    )
    return [common.replace(sync={"topology": topology}) for topology in ("ring", "exp2", "complete")]


def slow_neighbour() -> list[Experiment]:
    """Lab 04, break it: steps of 10 ms, one worker four times slower; all neighbours each step, then pairs (AD-PSGD).

    The delays do not need a core, so that it shows on any machine.
    """
    common = Experiment(
        workers=4,
        model={"name": "mlp", "width": 64},
        batch=128,
        steps=30,
        evaluate_every=1000,
        sync="gossip",
        delays={"kind": "constant", "delay_ms": 10.0, "straggler": {1: 4.0}},
    )
    return [common.replace(sync={"exchange": exchange}) for exchange in ("neighbours", "pairwise")]
