"""Lab 01: means of uneven parts, trees compared with stars, and the cost of waiting."""

from __future__ import annotations

from dlpar import Experiment, Run
from dlpar.course.rehearse import Collectives, Row, Shown, accuracy, measured, pace_ms
from dlpar.lab.figures.cost import CollectiveTime

CLUSTER = "cpu-10gbe"
"""Platform of labs 01 to 03: one rank in each machine, 10 Gb Ethernet between machines."""


def mean_of_means() -> list[Experiment]:
    """Reduce equal and uneven parts by sum and by mean.

    Every iteration solves least squares on all 354 training samples, so nothing is random.  Three workers have
    118 samples each, or 59, 118 and 177.
    """
    training = dict(workers=3, batch=354, steps=200, lr=0.2, optimizer="momentum", evaluate_every=20)
    common = Experiment(model="linear", data="diabetes", dtype="float64", **training)
    both = [common.replace(sync={"scheme": "mapreduce", "reduce": reduce}) for reduce in ("sum", "mean")]
    return [each.replace(shards=shards) for shards in ("iid", "uneven") for each in both]


def tree_or_star() -> Collectives:
    """Time a tree and a star on 8 paced ranks, from 1 kB to 400 kB."""
    sizes = (1_000, 4_000, 20_000, 100_000, 400_000)
    return Collectives(names=("star", "tree"), ranks=8, sizes=sizes, world="paced", platform=CLUSTER)


def _size_decides(times: list[CollectiveTime]) -> Shown:
    took = {(t.name, t.nbytes): t.seconds for t in times}
    short, long = (took["tree", size] / took["star", size] for size in (1_000, 400_000))
    said = f"the tree takes {short:.1f} times the star's time for 1 kB, {long:.2f} for 400 kB"
    return short > 2 and long < 0.5, said


def digits_by_mapreduce() -> list[Experiment]:
    """Train softmax regression on digits by map-reduce with 1, 2 and 4 workers."""
    common = Experiment(model="logistic", batch=512, steps=150, lr=0.5, sync="mapreduce", evaluate_every=75)
    return [common.replace(workers=workers, cluster={"threads": 1}) for workers in (1, 2, 4)]


def unsteady() -> list[Experiment]:
    """Run four workers with steps of exactly 10 ms, and with steps of 10 ms on average.

    Delays need no core, so the effect shows on any machine.
    """
    common = Experiment(model="logistic", steps=40, batch=256, lr=0.5, sync="mapreduce", evaluate_every=1000)
    return [common.replace(delays={"kind": kind, "delay_ms": 10.0}) for kind in ("constant", "exponential")]


def empty_samples() -> Experiment:
    """Sample a fraction so small that most partitions have no sample in most iterations."""
    sync = {"scheme": "mapreduce", "fraction": 0.03}
    return Experiment(model="logistic", workers=4, batch=40, steps=600, lr=0.05, sync=sync)


def _learns_all_the_same(run: Run) -> Shown:
    none, accuracy = float((run.steps["samples"] == 0).mean()), run.summary["accuracy"]
    held = run.curve["loss"].notna().iloc[-1] and accuracy > 0.8 and none > 0.1
    return held, f"no sample in {none:.0%} of steps, {accuracy:.0%} correct at the end"


TABLE = (
    Row(mean_of_means, '"The mean of the workers\' means is the mean"',
        measured(lambda run: run.curve["loss"].iloc[-1],
                 lambda *ends: max(ends[:3]) < (1 + 1e-6) * min(ends[:3]) < ends[3] / 1.001,
                 "equal parts end at {:.4f} and {:.4f}, uneven parts at {:.4f} by sum, {:.4f} by mean")),
    Row(tree_or_star, '"A tree always beats a star"', _size_decides),
    Row(digits_by_mapreduce, "Softmax regression learns by map-reduce, on 1, 2 and 4 workers",
        measured(accuracy, lambda *shares: min(shares) > 0.93, "correct: {:.1%}, {:.1%} and {:.1%}")),
    Row(unsteady, "Workers with varying times make longer steps at the same mean",
        measured(pace_ms, lambda even, random: random > max(17, 1.3 * even),
                 "{:.0f} ms a step, and {:.0f} ms if times vary")),
    Row(empty_samples, "A worker without samples does not change the sum", _learns_all_the_same),
)  # fmt: skip
