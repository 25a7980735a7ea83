"""Systems that put one model on several devices."""

from __future__ import annotations

from dlpar.config.experiment import Experiment
from dlpar.systems.record import PARITY, Figure, Runs, System, same_as_alone, shape

DEEP = {"name": "mlp", "width": 64, "depth": 31}
"""A model of 32 layers, equal except for the first and the last."""


def _stages(stages: int, **fields: object) -> Experiment:
    split = {"kind": "pipeline", "stages": stages, "schedule": "gpipe", "microbatches": 32}
    cluster = {"world": "simulated", "platform": "p100-100gb-ib", "stand_in_for": "bert-large"}
    common = Experiment(model=DEEP, batch=256, steps=2, evaluate_every=1000, cluster=cluster)
    return common.replace(workers=stages, split={**split, **fields})


def _gpipe() -> dict[str, Experiment]:
    stages = {f"{n} stages": _stages(n, recompute=True) for n in (2, 4, 8)}
    return stages | {"naive": _stages(2, microbatches=1, recompute=True)}


def _over_naive(runs: Runs, stages: int) -> float:
    seconds = {name: run.curve["seconds"].iloc[-1] for name, run in runs.items()}
    return seconds["naive"] / seconds[f"{stages} stages"]


def _pipedream() -> dict[str, Experiment]:
    flush = _stages(4, schedule="1f1b", microbatches=8).replace(steps=40)
    return {"flush": flush, "stream": flush.replace(split={"schedule": "pipedream", "microbatches": 1})}


def _megatron() -> dict[str, Experiment]:
    return same_as_alone(model={"name": "transformer", "width": 16}, data={"name": "docstrings", "context": 8}, batch=8,
                         split={"kind": "tensor", "async_allreduce": True})  # fmt: skip


def _tiled() -> dict[str, Experiment]:
    images = dict(model={"name": "cnn", "width": 64}, batch=64, steps=150, workers=4, evaluate_every=1000)
    halves = {"kind": "spatial", "rows": 2, "columns": 2}
    shared = Experiment(split=halves, cluster={"world": "simulated"}, **images)
    return {"shared weights": shared, "tiles": shared.replace(split={"tiled": True})}


def _stacking() -> dict[str, Experiment]:
    cluster = {"world": "simulated", "platform": "cpu-10gbe"}
    training = dict(batch=64, steps=200, lr=0.2, evaluate_every=1000, cluster=cluster)
    narrow = Experiment(model={"name": "mlp", "width": 8, "depth": 1}, **training)
    kinds = {"1 block": narrow.replace(workers=1), "4 blocks": narrow.replace(workers=4, split="stacking")}
    found = {f"{name}, seed {seed}": e.replace(seed=seed) for name, e in kinds.items() for seed in range(5)}
    wide = narrow.replace(batch=512, steps=20, workers=4, model={"width": 512})
    pipeline = wide.replace(model={"depth": 3}, split={"kind": "pipeline", "microbatches": 4})
    return found | {"stack": wide.replace(model={"depth": 1}, split="stacking"), "pipeline": pipeline}


def _right(runs: Runs, name: str) -> float:
    return sum(runs[f"{name}, seed {seed}"].summary["accuracy"] for seed in range(5)) / 5


def _waits(runs: Runs, name: str) -> float:
    steps = runs[name].steps.query("step >= 10")
    return steps["wait"].sum() / steps[["compute", "comm", "wait"]].sum().sum()


SYSTEMS = (
    System(
        "tiled_cnn", "Local convolutions", 2012, "J. Dean et al., NIPS 2012; Q. Le et al., NIPS 2010 (tiled)",
        "synchronous", "sharded", "one model", "each piece of an image has its own convolutions, and no halo", _tiled,
        (shape("fewer bytes than with halos and shared weights",
               lambda runs: runs["tiles"].summary["bytes_sent"] < 0.7 * runs["shared weights"].summary["bytes_sent"]),
         shape("over 90 % correct", lambda runs: runs["tiles"].summary["accuracy"] > 0.9)),
        missing="tiled convolutions: neighbours differ, and units k steps apart share weights",
    ),
    System(
        "gpipe", "GPipe", 2019, "Y. Huang et al., NeurIPS 2019, arXiv 1811.06965, table 2", "synchronous", "sharded",
        "one model", "all forward passes of the micro-batches, then all backward passes, with recomputation", _gpipe,
        tuple(Figure(f"Transformer, {n} stages, 32 micro-batches: speed relative to 2 stages, 1 micro-batch", published,
                     lambda runs, n=n: _over_naive(runs, n), 0.15) for n, published in ((2, 1.8), (4, 3.4), (8, 6.3))),
    ),
    System(
        "pipedream", "PipeDream", 2019, "D. Narayanan et al., SOSP 2019", "bounded staleness", "sharded", "one model",
        "no flush: forward and backward passes alternate; stages stash the weights of batches in flight", _pipedream,
        (shape("without a flush a run takes less time",
               lambda runs: runs["stream"].curve["seconds"].iloc[-1] < 0.9 * runs["flush"].curve["seconds"].iloc[-1]),
         shape("stage 0 of 4 is 3 updates behind", lambda runs: runs["stream"].steps["staleness"].max() == 3)),
        missing="the profiler that cuts the model and replicates stages",
    ),
    System(
        "megatron", "Megatron-LM", 2019, "M. Shoeybi et al., arXiv 1909.08053", "synchronous", "sharded", "one model",
        "layers cut by columns and rows; later versions overlap sums with the weights' gradients", _megatron, (PARITY,),
        missing="a cross-entropy on cut scores (here all ranks gather the scores)",
    ),
    System(
        "deep_stacking", "Deep stacking network", 2012, "L. Deng, D. Yu and J. Platt, ICASSP 2012", "synchronous",
        "sharded", "one model", "each block has its own loss; outputs go forward, and nothing comes back", _stacking,
        (shape("four narrow blocks classify better than one, mean of five seeds",
               lambda runs: _right(runs, "4 blocks") > _right(runs, "1 block")),
         shape("after its first ten steps a rank waits for less than 5 % of its time, in a pipeline for over 25 %",
               lambda runs: _waits(runs, "stack") < 0.05 < 0.25 < _waits(runs, "pipeline"))),
        missing="a closed form for the weights of a block's output",
    ),
)  # fmt: skip
