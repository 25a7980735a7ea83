"""Lab 04: agreement of replicas, its rate on different graphs, and its cost."""

from __future__ import annotations

from dlpar import Experiment, Run
from dlpar.course.rehearse import SIMULATED, Row, Shown, measured
from dlpar.lab.figures.convergence import first_at
from dlpar.theory import contraction

ISLANDS = {"topology": "edges", "edges": "0-1,2-3"}
"""Graph of four workers in two pairs, with no edge between the pairs."""

GRAPHS = ("ring", "exp2", "complete")

GOSSIP = Experiment(workers=4, model={"name": "mlp", "width": 64}, batch=128, sync="gossip")


def gossip_run() -> Experiment:
    """Train four workers in a ring on handwritten digits for a second or two."""
    return Experiment(workers=4, model={"name": "mlp", "width": 64}, steps=150, sync="gossip")


def _learn_apart(run: Run) -> Shown:
    accuracy, distance = run.summary["accuracy"], run.consensus["distance"].iloc[-1]
    return accuracy >= 0.93 and distance > 0, f"{accuracy:.1%} right, {distance:.1e} apart"


def _mixing(**sync: object) -> Experiment:
    """Let eight workers with different weights average without training: float64, learning rate 0."""
    training = dict(workers=8, batch=8, lr=0.0, steps=60, dtype="float64", evaluate_every=1000)
    sync = {"scheme": "gossip", "start": "random", **sync}
    return Experiment(model="linear", data="diabetes", **training, sync=sync, cluster=SIMULATED)


def pure_mixing() -> list[Experiment]:
    """Let eight workers average without training: on a ring, exp2, a complete graph, and with one peer.

    With a learning rate of 0 only mixing remains. In float64, distances can become very small.
    """
    return [*(_mixing(topology=graph) for graph in GRAPHS), _mixing(exchange="one_peer")]


def _at_the_eigenvalue(runs: list[Run]) -> Shown:
    ring, _, complete, one = (run.consensus["distance"] for run in runs)
    found, told = (ring[40] / ring[10]) ** (1 / 30), contraction(runs[0].experiment)
    held = abs(found / told - 1) < 0.02 and complete[1] < 1e-6 * complete[0] and one[3] < 1e-6 * one[2]
    return held, f"a step on a ring of 8 leaves {found:.4f} of the distance; the eigenvalue is {told:.4f}"


def two_islands() -> list[Experiment]:
    """Train on a ring and on islands, with iid shards and with shards sorted by label.

    The order is ring iid, islands iid, ring by_label, islands by_label.
    """
    common = GOSSIP.replace(steps=120, cluster=SIMULATED)
    graphs = [common.replace(sync=sync) for sync in ({"topology": "ring"}, ISLANDS)]
    return [graph.replace(shards=shards) for shards in ("iid", "by_label") for graph in graphs]


def _losses_fall_anyway(runs: list[Run]) -> Shown:
    losses = [run.steps.pivot(index="step", columns="rank", values="loss") for run in runs]
    fell = all((loss.tail(10).mean() < 0.2 * loss.head(3).mean()).all() for loss in losses)
    ring, islands = (run.summary["accuracy"] for run in runs[2:])
    said = f"every loss falls; correct: a ring {ring:.0%}, two islands {islands:.0%}"
    return fell and ring > 0.9 > 0.6 > islands, said


def more_neighbours() -> list[Experiment]:
    """Simulate 16 machines on 1 Gb Ethernet: one peer per step, and 2, 7 and 15 neighbours.

    All runs see the same batches.
    """
    training = dict(workers=16, batch=256, steps=100, lr=0.2, evaluate_every=5, cluster=SIMULATED)
    common = Experiment(model={"name": "mlp", "width": 128, "depth": 1}, **training, sync="gossip")
    graphs = [common.replace(sync={"topology": graph}) for graph in GRAPHS]
    return [common.replace(sync={"exchange": "one_peer"}), *graphs]


def _fewer_cost_less(runs: list[Run]) -> Shown:
    steps = [first_at(run, 0.93)[0] for run in runs]
    cost = [run.curve["bytes"].iloc[n - 1] / 1e6 if n else float("inf") for run, n in zip(runs, steps)]
    said = ", ".join(f"{each:.0f}" for each in cost)
    held = cost == sorted(cost) and cost[0] < cost[3] / 2
    return held, f"MB to 93 % with one peer a step, 2, 7 and 15 neighbours: {said}"


def cut_edges() -> list[Experiment]:
    """Let eight workers average without training on a ring with zero, one and two edges cut."""
    whole = [(i, (i + 1) % 8) for i in range(8)]
    path = [edge for edge in whole if edge != (7, 0)]
    halves = [edge for edge in path if edge != (3, 4)]
    return [_mixing(topology="edges", edges=tuple(edges)) for edges in (whole, path, halves)]


def slow_neighbour() -> list[Experiment]:
    """Average with all neighbours in each step, or in pairs (AD-PSGD). One worker is four times slower.

    Steps take 10 ms.  Delays need no core, so the effect shows on any machine.
    """
    delays = {"kind": "constant", "delay_ms": 10.0, "straggler": {1: 4.0}}
    common = GOSSIP.replace(steps=30, evaluate_every=1000, delays=delays)
    return [common.replace(sync={"exchange": exchange}) for exchange in ("neighbours", "pairwise")]


TABLE = (
    Row(gossip_run, "Each of four gossiping workers learns its own model", _learn_apart),
    Row(pure_mixing, "The graph's second eigenvalue predicts how fast replicas agree", _at_the_eigenvalue),
    Row(two_islands, '"A falling loss means the replicas agree"', _losses_fall_anyway),
    Row(more_neighbours, '"More neighbours is better"', _fewer_cost_less),
    Row(cut_edges, "Two cuts make islands that never agree",
        measured(lambda run: run.consensus["distance"].iloc[-1] / run.consensus["distance"].iloc[0],
                 lambda ring, path, halves: ring < 0.01 * path and path < 0.2 and halves > 0.05,
                 "remaining distance on the ring {:.0e}, with one cut {:.0e}, with two {:.0e}")),
    Row(slow_neighbour, "Gossip waits for a slow neighbour, but pairs do not wait",
        measured(lambda run: len(run.steps) / run.steps["t"].max(), lambda rate, pairs: pairs > 1.3 * rate,
                 "{:.0f} worker-steps/s with all neighbours, {:.0f} in pairs")),
)  # fmt: skip
