"""Systems that put one model on several devices."""

from __future__ import annotations

from dlpar.config.experiment import Experiment
from dlpar.systems.record import PARITY, Figure, Runs, System, same_as_alone, shape

DEEP = {"name": "mlp", "width": 64, "depth": 31}
"""32 layers; all but the first and the last are equal."""


def _stages(stages: int, **fields: object) -> Experiment:
    split = {"kind": "pipeline", "stages": stages, "schedule": "gpipe", "microbatches": 32}
    cluster = {"world": "simulated", "platform": "p100-100gb-ib", "stand_in_for": "bert-large"}
    common = Experiment(model=DEEP, batch=256, steps=2, evaluate_every=1000, cluster=cluster)
    return common.replace(workers=stages, split={**split, **fields})


def _gpipe() -> dict[str, Experiment]:
    return {f"{n} stages": _stages(n) for n in (2, 4, 8)} | {"naive": _stages(2, microbatches=1)}


def _over_naive(runs: Runs, stages: int) -> float:
    seconds = {name: run.curve["seconds"].iloc[-1] for name, run in runs.items()}
    return seconds["naive"] / seconds[f"{stages} stages"]


def _pipedream() -> dict[str, Experiment]:
    flush = _stages(4, schedule="1f1b", microbatches=8).replace(steps=40)
    return {"flush": flush, "stream": flush.replace(split={"schedule": "pipedream", "microbatches": 1})}


def _megatron() -> dict[str, Experiment]:
    return same_as_alone(
        model={"name": "transformer", "width": 16}, data={"name": "docstrings", "context": 8}, batch=8,
        split={"kind": "tensor", "async_allreduce": True},
    )  # fmt: skip


SYSTEMS = (
    System(
        "gpipe", "GPipe", 2019, "Y. Huang et al., NeurIPS 2019, arXiv 1811.06965, table 2", "synchronous", "sharded",
        "one model", "micro-batches through stages, all forward passes before all backward passes", _gpipe,
        tuple(Figure(f"Transformer, {n} stages, 32 micro-batches: times 2 stages, 1 micro-batch", published,
                     lambda runs, n=n: _over_naive(runs, n), 0.15) for n, published in ((2, 1.8), (4, 3.4), (8, 6.3))),
        missing="recomputation in these runs (`split.recompute` has it)",
    ),
    System(
        "pipedream", "PipeDream", 2019, "D. Narayanan et al., SOSP 2019", "bounded staleness", "sharded", "one model",
        "no flush: one forward, one backward pass, and each stage stashes the weights of batches in flight", _pipedream,
        (shape("without a flush a run takes less time",
               lambda runs: runs["stream"].curve["seconds"].iloc[-1] < 0.9 * runs["flush"].curve["seconds"].iloc[-1]),
         shape("stage 0 of 4 is 3 updates behind", lambda runs: runs["stream"].steps["staleness"].max() == 3)),
        missing="the profiler that cuts the model and replicates stages",
    ),
    System(
        "megatron", "Megatron-LM", 2019, "M. Shoeybi et al., arXiv 1909.08053", "synchronous", "sharded", "one model",
        "layers cut by columns and rows; sums travel beside the gradients of weights", _megatron, (PARITY,),
    ),
)  # fmt: skip
