"""Systems whose servers hold the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.systems.record import (
    PARITY,
    Figure,
    Program,
    Runs,
    System,
    apart,
    by_sizes,
    called,
    program,
    rate,
    same_as_alone,
    shape,
)
from dlpar.worlds.platforms import Layer, workload

STEADY = {"kind": "gamma", "delay_ms": 10.0, "delay_cv": 0.1}
"""Steps of 10 ms on average, with little jitter."""

SLOW = {"kind": "constant", "delay_ms": 10.0, "straggler": {1: 4.0}}
"""Steps of 10 ms, and one worker that is four times slower."""

ONE_DIES = {"on_death": "shrink", "die": {4: 0.5}}
"""The death of rank 4 after half of a run."""

DEVICES = {"scheme": "ring", "allreduce": "hierarchical"}
"""An all-reduce over the devices of a node first, then between nodes."""

SPLIT = {"kind": "tensor", "tensor": 2}
"""A model that two ranks share."""

ALONE = {"world": "simulated", "platform": "cpu-10gbe"}


def ps(**fields: Any) -> dict[str, Any]:
    """Return a parameter server with the given fields."""
    return {"scheme": "ps", **fields}


def owned(workers: int) -> dict[str, Any]:
    """Return fields with which each worker owns a range of the weights: it sums, updates and distributes this range."""
    return {"workers": workers, "sync": ps(servers=workers), "cluster": {"placement": "colocated"}}


def learning(sync: dict[str, Any], delays: dict[str, Any] = STEADY, **fields: Any) -> Experiment:
    """Return an experiment on digits that shows staleness and accuracy. Its times come from delays, not from FLOPs."""
    usual = {"workers": 8, "batch": 64, "steps": 100, "lr": 0.2, "evaluate_every": 1000}
    return Experiment(**{**usual, **fields}, sync=sync, delays=delays, cluster=ALONE)


def _sharded() -> dict[str, Experiment]:
    big = {"workers": 8, "batch": 64, "steps": 3}
    several = {n: by_sizes("cpu-1gbe", "alexnet", **big, sync=ps(servers=n)) for n in (1, 4)}
    return {f"{n} servers": each for n, each in several.items()} | same_as_alone(sync=ps(servers=3))


def _bounded() -> dict[str, Experiment]:
    uneven = {"kind": "exponential", "delay_ms": 10.0}
    kinds = {"bsp": {}, "ssp": {"consistency": "ssp", "staleness": 4}}
    return {name: learning(ps(servers=2, **kind), uneven) for name, kind in kinds.items()}


def _words(staleness: int = 0, threshold: float = 0.0) -> Program:
    """Classify docstrings with 4 workers and a table on 2 servers. Return each rank's counts."""
    return program("words:train", 2, 40, 48, 2.0, staleness, threshold, ranks=6)


def share(found: list[dict[str, Any]], part: str, *whole: str) -> float:
    """Return the workers' count under one name as a share of their counts under several names."""
    counted = sum((Counter(each) for each in found if "gets" in each), Counter())
    return counted[part] / sum(counted[name] for name in whole)


def _right(found: list[dict[str, Any]]) -> float:
    return called("words:accuracy")(found, 2)


def _portions(number: int, backup: bool = True) -> Program:
    """Run Sandblaster with 4 workers. The last worker is ten times slower."""
    return program("least_squares:minimise", number, backup, 10.0, ranks=7)


def _within_bound(runs: Runs) -> bool:
    return bool(runs["ssp"].steps["lead"].max() <= 4)


def _rudra() -> dict[str, Experiment]:
    training = dict(workers=30, batch=240, steps=60, optimizer="momentum", lr=0.05)
    soft = {f"n = {n}": learning(ps(consistency="softsync", softsync=n), **training) for n in (1, 15, 30)}
    return soft | {"leaves": learning(ps(groups=2))}


def _backup() -> dict[str, Experiment]:
    delays = {"kind": "gamma", "delay_ms": 1000.0, "delay_cv": 0.15}
    training = dict(model="logistic", batch=100, steps=60, evaluate_every=1000, delays=delays, cluster=ALONE)
    return {f"b = {b}": Experiment(workers=50 + b, sync=ps(backup=b), **training) for b in range(7)}


def per_machine(runs: Runs, backup: int) -> float:
    """Return each machine's steps per second with some backup workers, relative to none."""

    pace = {b: rate(runs[f"b = {b}"]) / (50 + b) for b in (0, backup)}
    return pace[backup] / pace[0]


def _best(runs: Runs) -> int:
    return max(range(7), key=lambda b: per_machine(runs, b))


def _minerva() -> dict[str, Any]:
    # The batch grows with the number of GPUs, as in Minerva's table.
    return {"dataflow": program("jobs_of_a_driver:descent", 10, 0.1, ranks=4)} | {
        f"{model}, {n} GPUs": by_sizes("titan", model, batch=batch, steps=3, **owned(n))
        for model, batch in (("alexnet", 256), ("vgg16", 24), ("googlenet", 120))
        for n in (2, 4)
    }


def _on_paper(
    platform: str, layers: Sequence[Layer], devices: int, model: int, batch: int, slower: float = 1.0
) -> float:
    """Return the samples per second of a model with layers that `model` devices share."""
    given = layers, model, batch, slower
    step = program("on_paper:seconds", *given, ranks=devices, platform=platform, messages="sizes")
    return batch / max(step())


def _speech(machines: int) -> float:
    """Return the samples per second of DistBelief's fully connected speech model, split over machines."""
    widths = (440, 2560, 2560, 2560, 2560, 8192)
    layers = [
        Layer(name=f"layer {number}", parameters=m * n, flops=6 * m * n, outputs=n)
        for number, (m, n) in enumerate(pairwise(widths), 1)
    ]
    return _on_paper("distbelief", layers[::-1], machines, machines, 20)


def _mariana() -> dict[str, Experiment | Program]:
    cuts = {"1 GPU": (1, 1), "2 × 2": (4, 2), "4 share": (4, 4)}
    net = workload("alexnet")
    slower = 1.5e12 / 189.63 / net.flops  # one GPU computes at Minerva's rate
    paper = {name: partial(_on_paper, "titan", net.layers, *cut, 128, slower) for name, cut in cuts.items()}
    return same_as_alone(model={"width": 64}, split=SPLIT) | paper


def _caffe() -> dict[str, Experiment | Program]:
    big = dict(batch=64, steps=3, sync={**DEVICES, "node_size": 4})
    nodes = {f"{n} executors of 4": by_sizes("p100-25gbe", "resnet50", workers=4 * n, **big) for n in (1, 8)}
    slices = {f"slices, {name}": each for name, each in same_as_alone(**owned(4)).items()}
    sums = same_as_alone(sync={**DEVICES, "node_size": 2}, snapshot={"every": 10})
    return nodes | slices | sums | {"features": program("features:extract_and_classify", ranks=4)}


def _adam() -> dict[str, Experiment]:
    free = learning(ps(consistency="asp", servers=2), split=SPLIT, model={"width": 64}, steps=60)
    by_factors = learning(ps(consistency="asp", servers=2, factors=True), steps=60)
    small = same_as_alone(batch=8, model={"width": 256}, sync=ps(servers=2, factors=True))
    gradients = small["system"].replace(sync={"factors": False})
    return {"asynchronous replicas": free, "asp, by factors": by_factors, **small, "gradients": gradients}


def _downpour() -> dict[str, Experiment | Program]:
    rule = {"optimizer": "adagrad", "lr": 0.05, "steps": 120}
    periods = {"every 1": (1, 1), "every 10": (10, 10), "push 2, fetch 10": (2, 10)}
    whole = {
        name: learning(ps(consistency="asp", push_every=push, fetch_every=fetch, servers=2), **rule)
        for name, (push, fetch) in periods.items()
    }
    parts = {"replicas of a split model": learning(ps(consistency="asp", servers=2), split=SPLIT, **rule)}
    return whole | parts | {f"{n} machines": partial(_speech, n) for n in MACHINES}


MACHINES = (1, 2, 4, 8, 16, 32)
"""Number of machines that share DistBelief's speech model."""


def _singa() -> dict[str, Experiment]:
    groups = {"groups": 2, "consistency": "asp"}
    return {
        "sync": learning(ps()),
        "Downpour": learning(ps(**groups)),
        "all-reduce": learning("ring"),
        "distributed Hogwild": learning(ps(**groups, group_period=5)),
    }


def _mxnet() -> dict[str, Experiment]:
    free, kinds = ps(groups=2, consistency="asp"), {"groups in step": "bsp", "free groups": "asp"}
    levels = {name: learning({**free, "group_consistency": kind}, SLOW) for name, kind in kinds.items()}
    return same_as_alone(sync=ps(groups=2)) | levels


def _averaged() -> dict[str, Experiment | Program]:
    methods = ("local", "block_momentum")
    return {"table": _words(), "asynchronous": learning(ps(consistency="asp", servers=2))} | {
        method: learning(ps(servers=2), averaging={"method": method, "period": 10}) for method in methods
    }


def _pushed(runs: Runs, name: str) -> float:
    return float(runs[name].steps["bytes"].sum())


def learns(name: str, least: float = 0.8) -> Figure:
    """Return a figure that is true if a run classifies held-out samples correctly."""
    return shape(f"{name}: over {least:.0%} correct", lambda runs: runs[name].summary["accuracy"] > least)


MINERVA = {
    "alexnet, 2 GPUs": 371.01, "alexnet, 4 GPUs": 632.09, "vgg16, 2 GPUs": 29.58, "vgg16, 4 GPUs": 50.26,
    "googlenet, 2 GPUs": 160.53, "googlenet, 4 GPUs": 309.27,
}  # fmt: skip
"""Images per second from Minerva's README."""

SYSTEMS = (
    System(
        "distbelief_downpour", "DistBelief, Downpour SGD", 2012, "J. Dean et al., NIPS 2012", "asynchronous", "sharded",
        "one model", "replicas push every n_push steps and fetch every n_fetch steps; shards run Adagrad", _downpour,
        (*map(learns, ("every 1", "every 10", "push 2, fetch 10", "replicas of a split model")),
         shape("over nine times fewer bytes with n = 10",
               lambda runs: _pushed(runs, "every 1") > 9 * _pushed(runs, "every 10")),
         Figure("speed-up of a speech model with 42 million weights that 8 machines share (figure 3)", 2.2,
                lambda runs: runs["8 machines"] / runs["1 machines"], 0.15, "fitted"),
         shape("of 1 to 32 machines, 8 machines are the fastest (fitted)",
               lambda runs: max(MACHINES, key=lambda n: runs[f"{n} machines"]) == 8)),
    ),
    System(
        "distbelief_sandblaster", "DistBelief, Sandblaster L-BFGS", 2012, "J. Dean et al., NIPS 2012, section 4.2",
        "synchronous", "sharded", "one model",
        "a coordinator sends scalars to shards that hold all vectors; workers ask for portions of the batch",
        lambda: {"a share each": _portions(4, False), "32 portions": _portions(32, False),
                 "with backups": _portions(32)},
        (shape("the same weights as torch's LBFGS, to 1e-9 (diabetes)",
               lambda runs: called("least_squares:error")(runs["with backups"]) < 1e-9),
         shape("with a worker ten times slower, 32 portions take less than half the time of one share per worker",
               lambda runs: 2 * runs["32 portions"][0].seconds < runs["a share each"][0].seconds),
         shape("backup portions at the end save another quarter",
               lambda runs: runs["with backups"][0].seconds < 0.75 * runs["32 portions"][0].seconds)),
        missing="a line search; one push for the gradients of several portions",
    ),
    System(
        "parameter_server", "Parameter server", 2014, "M. Li et al., OSDI 2014", "bounded staleness", "sharded",
        "one model", "ranges of weights, or rows in turn, on servers; a bounded delay; sparse rows, with keys cached",
        lambda: {**_bounded(), **same_as_alone(sync=ps(servers=3, replicas=1), deaths=ONE_DIES),
                 "words": _words(), "words, filtered": _words(threshold=0.02)},
        (shape("a step needs less than a fifth of the rows (4 workers, 1,000 words)",
               lambda runs: runs["words"][0]["gets"] < 0.2 * 40 * 1000),
         shape("the server knows half of the row numbers, so they are not sent",
               lambda runs: share(runs["words"], "keys_saved", "keys", "keys_saved") > 0.49),
         shape("a filter of values holds back over a tenth of the rows, and loses at most 3 points of accuracy",
               lambda runs: share(runs["words, filtered"], "held_back", "held_back", "added") > 0.1
               and _right(runs["words, filtered"]) > _right(runs["words"]) - 0.03),
         shape("no worker begins a step more than 4 clocks ahead", _within_bound),
         shape("bounded delay is faster than bsp", lambda runs: rate(runs["ssp"]) > 1.1 * rate(runs["bsp"])),
         PARITY, shape("one of three servers dies halfway, and the next one takes over its range",
                       lambda runs: set(runs["system"].events["dead"].dropna()) == {4})),
    ),
    System(
        "sharded_ps", "Sharded parameter server", 2014, "M. Li et al., OSDI 2014, section 4", "synchronous", "sharded",
        "one model", "each server holds a range of the weights", _sharded,
        (PARITY, shape("four servers are more than twice as fast as one",
                       lambda runs: rate(runs["4 servers"]) > 2 * rate(runs["1 servers"]))),
    ),
    System(
        "project_adam", "Project Adam", 2014, "T. Chilimbi et al., OSDI 2014", "asynchronous", "sharded", "one model",
        "replicas of a model cut across machines never wait; fully connected layers push activations and errors", _adam,
        (learns("asynchronous replicas"), learns("asp, by factors"),
         shape("by factors and when workers wait, the same losses as one process, to 1e-9", PARITY.ours),
         shape("activations and errors of 2 samples take less than a tenth of the gradients' bytes to two servers",
               lambda runs: _pushed(runs, "system") < 0.1 * _pushed(runs, "gradients"))),
        missing="races of threads inside a replica; factors of a cut model",
    ),
    System(
        "mariana", "Mariana", 2014, "Y. Zou et al., PVLDB 7(13), 2014", "synchronous", "sharded", "one model",
        "each GPU holds a piece of every layer; the owners of a piece in all replicas sum its gradients", _mariana,
        (PARITY,
         Figure("speed-up of AlexNet, two replicas with 2 GPUs each", 2.52,
                lambda runs: runs["2 × 2"] / runs["1 GPU"], 0.3, "memory"),
         shape("two replicas with two GPUs each are faster than one model on all four",
               lambda runs: runs["2 × 2"] > runs["4 share"] > runs["1 GPU"])),
        missing="convolutions that Mariana keeps separate in two columns",
    ),
    System(
        "minerva", "Minerva", 2015, "README of dmlc/minerva: AlexNet, VGG and GoogLeNet on four GTX Titan",
        "synchronous", "sharded", "one model",
        "a dataflow of tasks, each started when its inputs are ready; each GPU owns and updates some weights", _minerva,
        (shape("descent as a dataflow of tasks on four devices equals that of one process, to 1e-9",
               lambda runs: max(runs["dataflow"]) < 1e-9),
         *(Figure(f"{key}, images/s (one GPU: fitted)", published, lambda runs, key=key: rate(runs[key]), 0.2, "fitted")
           for key, published in MINERVA.items())),
    ),
    System(
        "petuum_ssp", "Petuum, SSP", 2013, "Q. Ho et al., NIPS 2013", "bounded staleness",
        "sharded", "one model", "a worker begins a step up to s clocks ahead, with cached rows up to s clocks old",
        lambda: {**_bounded(), "table, s = 3": _words(3), "table, s = 0": _words()},
        (shape("a cache of rows up to 3 clocks old avoids over a quarter of the pulls",
               lambda runs: share(runs["table, s = 3"], "pulled", "gets") < 0.75),
         shape("this cache costs at most 3 points of accuracy",
               lambda runs: _right(runs["table, s = 3"]) > _right(runs["table, s = 0"]) - 0.03),
         shape("no worker begins a step more than s = 4 clocks ahead", _within_bound), learns("ssp", 0.85)),
    ),
    System(
        "singa", "SINGA", 2015, "B. C. Ooi et al., ACM Multimedia 2015", "asynchronous or synchronous", "hierarchical",
        "one model", "one configuration of workers, servers and groups: sync, Downpour and all-reduce",
        _singa, tuple(map(learns, ("sync", "Downpour", "all-reduce", "distributed Hogwild"))),
    ),
    System(
        "mxnet_kvstore", "MXNet's KVStore", 2015, "T. Chen et al., arXiv 1512.01274", "synchronous or asynchronous",
        "hierarchical", "one model", "groups share a leaf server; leaves push to the root; each level is bsp or asp",
        _mxnet, (PARITY, shape("with free groups a slow worker delays only itself",
                        lambda runs: rate(runs["free groups"]) > 1.2 * rate(runs["groups in step"]))),
    ),
    System(
        "rudra", "Rudra", 2016, "S. Gupta, W. Zhang and F. Wang, ICDM 2016, arXiv 1509.04210", "bounded staleness",
        "hierarchical", "one model", 
        "n-softsync: an update takes N/n gradients; leaf servers sum their group's gradients", _rudra,
        tuple(Figure(f"mean staleness of {n}-softsync, 30 workers (updates)", n,
                     lambda runs, n=n: runs[f"n = {n}"].summary["staleness"]["mean"], 0.15) for n in (1, 15, 30))
        + (shape("none of 1,800 pushes is over 2 n updates old (section 2.4: fewer than one of 10,000)",
                 lambda runs: all(runs[f"n = {n}"].steps["staleness"].max() <= 2 * n for n in (1, 15, 30))),
           learns("leaves")),
        missing="n-softsync above leaf servers: the runs of n have one server",
    ),
    System(
        "tensorflow_async", "TensorFlow, asynchronous", 2016, "M. Abadi et al., OSDI 2016, section 4.4", "asynchronous",
        "sharded", "one model", "each worker applies its gradient at the servers and reads weights when it begins",
        lambda: {"async": learning(ps(consistency="asp", servers=2, pull="separate"), SLOW),
                 "sync": learning(ps(servers=2), SLOW)},
        (learns("async"), shape("a slow worker does not stop the others",
                                lambda runs: rate(runs["async"]) > 2 * rate(runs["sync"]))),
    ),
    System(
        "tensorflow_sync", "TensorFlow, synchronous", 2016, "M. Abadi et al., OSDI 2016, section 4.4",
        "synchronous", "sharded", "one model", "a barrier at the servers: all gradients of a step are averaged",
        lambda: same_as_alone(sync=ps(servers=2)), (PARITY,),
    ),
    System(
        "tensorflow_backup", "TensorFlow, backup workers", 2016,
        "M. Abadi et al., OSDI 2016, section 6.3; J. Chen et al., arXiv 1604.00981", "synchronous", "centralised",
        "one model", "the first N of N + b pushes make the update; later ones are dropped", _backup,
        (shape("a few backup workers raise the pace of each machine, but more workers lower it again (best: 1 to 4)",
               lambda runs: 1 <= _best(runs) <= 4 and per_machine(runs, 6) < per_machine(runs, _best(runs))),),
        missing="several servers",
    ),
    System(
        "caffeonspark", "CaffeOnSpark", 2016, "A. Feng, J. Shi and M. Jain, Yahoo, February 2016", "synchronous",
        "hierarchical", "one model",
        "sums over devices, then executors, or by owners of slices; snapshots; features go to MLlib", _caffe,
        (PARITY,
         shape("peers that own slices: the same losses as one process, to 1e-9",
               lambda runs: apart(runs["slices, one process"], runs["slices, system"]) < 1e-9),
         shape("logistic regression by map-reduce on 16 features is as accurate as the network, within 2 points",
               lambda runs: abs(runs["features"][0][1] - runs["features"][0][0]) < 0.02),
         shape("8 executors are more than 4 times as fast as one",
                       lambda runs: rate(runs["8 executors of 4"]) > 4 * rate(runs["1 executors of 4"]))),
        missing="owners of slices between the sums over devices",
    ),
    System(
        "multiverso", "DMTK, Multiverso", 2015, "Microsoft DMTK; K. Chen and Q. Huo, ICASSP 2016 (block momentum)",
        "asynchronous or synchronous", "sharded", "one model",
        "tables by rows; asynchronous servers; averages every k steps, with block momentum in CNTK", _averaged,
        (learns("asynchronous"), learns("local"), learns("block_momentum"),
         shape("Get and Add by rows: over 75 % correct", lambda runs: _right(runs["table"]) > 0.75)),
    ),
)  # fmt: skip
