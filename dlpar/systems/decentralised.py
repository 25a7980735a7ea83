"""Decentralised systems, and writers that share memory."""

from __future__ import annotations

from dlpar.config.experiment import Experiment
from dlpar.systems.record import Runs, System, by_sizes, rate, shape
from dlpar.systems.servers import SLOW, learning, learns, ps


def _dpsgd() -> dict[str, Experiment]:
    beside = {"scheme": "gossip", "order": "combine_then_adapt"}
    ring = {"scheme": "ring", "overlap": True, "bucket_mb": 8}
    ways = {"ring of neighbours": beside, "112 servers": ps(servers=112), "ring all-reduce": ring}
    big = dict(workers=112, batch=32, steps=3)
    found = {name: by_sizes("k80-1gbe", "resnet50", **big, sync=way) for name, way in ways.items()}
    return found | {"training": learning(beside)}


def _gossip() -> dict[str, Experiment]:
    sync = {"pairwise": {"scheme": "gossip", "exchange": "pairwise"}, "all-reduce": "ring"}
    return {name: learning(each, SLOW, workers=8) for name, each in sync.items()}


def _hogwild() -> dict[str, Experiment]:
    training = dict(workers=4, batch=4, steps=600, lr=0.25, sync={"scheme": "hogwild", "sparse": True})
    texts = Experiment(model="logistic", data="docstrings", cluster={"threads": 1}, **training)
    return {"racing": texts, "in turn": texts.replace(workers=1, batch=1, steps=2400, lr=0.0625)}


def _differ(runs: Runs) -> float:
    return abs(runs["racing"].summary["accuracy"] - runs["in turn"].summary["accuracy"])


SYSTEMS = (
    System(
        "hogwild", "Hogwild!", 2011, "B. Recht, C. Ré, S. Wright and F. Niu, NIPS 2011", "asynchronous, without locks",
        "centralised", "one model", "processes add sparse updates to shared memory without locks", _hogwild,
        (shape("racing is as accurate as taking turns, within 2.5 points", lambda runs: _differ(runs) < 0.025),
         learns("racing", 0.7)),
    ),
    System(
        "dpsgd", "D-PSGD", 2017, "X. Lian et al., NIPS 2017, arXiv 1705.09056", "synchronous", "decentralised",
        "averaged models",
        "each worker averages old weights with its neighbours while it computes its gradient", _dpsgd,
        (shape("over four times as fast as 112 servers, with 112 workers on a slow network",
               lambda runs: rate(runs["ring of neighbours"]) > 4 * rate(runs["112 servers"])),
         shape("up to 20 % faster than a ring all-reduce beside the backward pass, which sends as many bytes",
               lambda runs: 1 < rate(runs["ring of neighbours"]) / rate(runs["ring all-reduce"]) < 1.2),
         learns("training")),
    ),
    System(
        "gossip", "AD-PSGD, asynchronous gossip", 2018, "X. Lian et al., ICML 2018, arXiv 1710.06952", "asynchronous",
        "decentralised", "averaged models", "pairs of neighbours average whenever one of them has a gradient", _gossip,
        (shape("one slow worker does not stop the others: over twice as fast as an all-reduce",
               lambda runs: rate(runs["pairwise"]) > 2 * rate(runs["all-reduce"])), learns("pairwise")),
    ),
    System(
        "sgp", "Stochastic gradient push", 2019, "M. Assran et al., ICML 2019, arXiv 1811.10792", "synchronous",
        "decentralised", "averaged models", "push-sum along a directed exponential graph",
        lambda: {"push-sum": learning({"scheme": "gossip", "exchange": "push_sum", "topology": "exp2"})},
        (learns("push-sum"),), missing="a graph that changes each step, with one receiver",
    ),
)  # fmt: skip
