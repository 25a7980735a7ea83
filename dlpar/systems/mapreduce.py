"""Systems that map over data partitions, reduce to a driver, and broadcast from the driver."""

from __future__ import annotations

from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.systems.record import PARITY, Figure, System, by_sizes, program, rate, same_as_alone, shape
from dlpar.systems.servers import owned

COLLECT = {"scheme": "mapreduce", "reduce": "collect"}
SPARK = {"scheme": "mapreduce", "depth": 2, "broadcast": "torrent"}


def _mapreduce() -> dict[str, Experiment]:
    big = dict(batch=16, steps=3, sync=COLLECT)
    steps = {f"{n} workers": by_sizes("cpu-1gbe", "alexnet", workers=n, **big) for n in (4, 16)}
    return same_as_alone(model="logistic", sync=COLLECT) | steps


def _spark() -> dict[str, Any]:
    ways = {"depth 1, tree": {"depth": 1, "broadcast": "tree"}, "depth 2, torrent": {}}
    big = {name: by_sizes("cpu-10gbe", "alexnet", workers=64, batch=16, steps=2, sync={**SPARK, **way})
           for name, way in ways.items()}  # fmt: skip
    same = same_as_alone(model="logistic", workers=9, batch=63, sync=SPARK)
    stages = program("jobs_of_a_driver:counted", LINES, WORDS, 2, ranks=4)
    return same | big | {"textFile, map, reduceByKey, join": stages}


LINES, WORDS = ("a b a c", "b b d a", "c d d d"), "abcd"


def _counts_right(found: list[dict[str, Any]]) -> bool:
    """Return whether a driver's two stages multiply each word's count by its number."""
    parts = {name: part for each in found for name, part in each.items()}
    right = [float(" ".join(LINES).count(word) * number) for number, word in enumerate(WORDS)]
    return parts["stages"] == 2 and parts["join 0"] + parts["join 1"] == right


def _scheduled(workers: int, driver: float = 5e8) -> Any:
    return program("jobs_of_a_driver:seconds", workers, driver, ranks=workers + 1, messages="sizes")


def _bigdl() -> dict[str, Any]:
    big = dict(batch=32, steps=3)
    nodes = {f"{n} nodes": by_sizes("cpu-10gbe", "googlenet", **big, **owned(n)) for n in (16, 96)}
    jobs = {f"{2 * n} tasks": _scheduled(n) for n in (50, 250)}
    jobs["500 tasks, free driver"] = _scheduled(250, 0.0)
    return same_as_alone(**owned(4)) | nodes | jobs


SYSTEMS = (
    System(
        "mapreduce", "MapReduce gradient descent", 2006, "C.-T. Chu et al., NIPS 2006; Dean and Ghemawat, OSDI 2004",
        "synchronous", "centralised", "one model",
        "one reducer collects the mappers' sums of gradients, and broadcasts the weights", _mapreduce,
        (PARITY, shape("the reducer's port is the bottleneck: 16 workers are less than twice as fast as 4",
                       lambda runs: rate(runs["16 workers"]) < 2 * rate(runs["4 workers"]))),
        missing="a distributed file system; backup tasks for slow mappers",
    ),
    System(
        "spark_mllib", "Spark MLlib", 2016, "X. Meng et al., JMLR 17(34), 2016",
        "synchronous", "centralised", "one model",
        "treeAggregate to the driver, and a torrent broadcast in blocks", _spark,
        (PARITY, shape("on 64 workers, a tree and a torrent are faster than a queue at the driver",
                       lambda runs: rate(runs["depth 2, torrent"]) > 2 * rate(runs["depth 1, tree"])),
         shape("textFile, map, reduceByKey and join run in two stages with a shuffle between, and count correctly",
               lambda runs: _counts_right(runs["textFile, map, reduceByKey, join"]))),
        missing="datasets kept in memory and computed again after a loss",
    ),
    System(
        "bigdl", "BigDL", 2019, "J. Dai et al., SoCC 2019, arXiv 1804.05839", "synchronous", "sharded", "one model",
        "two jobs per step: gradients; then each task sums, updates and distributes its slice", _bigdl,
        (PARITY, Figure("speed-up from 16 to 96 Xeon nodes (Inception v1)", 5.3,
                        lambda runs: rate(runs["96 nodes"]) / rate(runs["16 nodes"]), 0.2, "memory"),
         shape("with 500 tasks in two jobs per step, scheduling takes over 10 % (0.5 ms per task, fitted)",
               lambda runs: max(runs["500 tasks"]) > 1.1 * max(runs["500 tasks, free driver"])),
         shape("with 100 tasks, scheduling takes less than a third of that time",
               lambda runs: max(runs["100 tasks"]) - 2 < (max(runs["500 tasks"]) - 2) / 3)),
    ),
)  # fmt: skip
