"""Lab 09: what a pipeline's schedule changes, and what it does not."""

from __future__ import annotations

from typing import Any

from dlpar.config.experiment import Experiment

DEEP = {"name": "mlp", "width": 64, "depth": 32}
"""32 equal layers, and an output layer that costs a sixth of one: four stages of eight are nearly equal."""

WIDE = {"name": "mlp", "width": 1024, "depth": 9}
"""Two layers of 1024 × 1024 for each of four stages; the first and the last layer cost next to nothing."""

RACK = "cpu-10gbe"
"""Servers with a 10 GbE card each: 30 µs and 1.1 GB/s."""

MICRO_BATCHES = (1, 4, 16, 64, 256)
"""A step's 256 samples in so many pieces."""


def _stages(model: dict[str, Any], schedule: str, microbatches: int = 8, **fields: Any) -> Experiment:
    """Four stages in the simulated world."""
    split = {
        "kind": "pipeline",
        "schedule": schedule,
        "microbatches": microbatches,
        **fields.pop("split", {}),
    }
    cluster = {"world": "simulated", "platform": RACK, "threads": 1, **fields.pop("cluster", {})}
    fields = {"workers": 4, "batch": 256, "steps": 3, "evaluate_every": 1000, **fields}
    return Experiment(model=model, split=split, cluster=cluster, **fields)


def live_pipeline() -> Experiment:
    """Lab 09, the first run: four processes keep the time of BERT-large on P100s, 1F1B with 8 micro-batches."""
    cluster = {"world": "paced", "platform": "p100-100gb-ib", "stand_in_for": "bert-large"}
    return _stages(DEEP, "1f1b", batch=16, steps=3, cluster=cluster)


def schedules() -> dict[str, Experiment]:
    """Lab 09, "1F1B has a smaller bubble than GPipe": the same 256 samples in 8 micro-batches by every schedule.

    Really trained; the clock is that of BERT-large on P100s and 100 Gb InfiniBand.
    """
    cluster = {"platform": "p100-100gb-ib", "stand_in_for": "bert-large"}
    gpipe = _stages(DEEP, "gpipe", cluster=cluster)
    return {
        "GPipe": gpipe,
        "1F1B": gpipe.replace(split={"schedule": "1f1b"}),
        "1F1B, recomputing": gpipe.replace(split={"schedule": "1f1b", "recompute": True}),
        "interleaved, 2 chunks": gpipe.replace(split={"schedule": "interleaved", "chunks": 2}),
        "ZB-H1": gpipe.replace(split={"schedule": "zb-h1"}),
    }


def more_micro_batches() -> list[Experiment]:
    """Lab 09, "more micro-batches always help": 256 samples in 1 to 256, by 1F1B and GPipe; messages of sizes only."""
    flush = {"1f1b": MICRO_BATCHES, "gpipe": (4, 16, 256)}  # with one micro-batch they are the same
    return [
        _stages(WIDE, name, m, cluster={"messages": "sizes"})
        for name, counts in flush.items()
        for m in counts
    ]


def small_micro_batches() -> list[Experiment]:
    """Lab 09, the same belief in the real world: two processes, 1,024 samples in 1, 4 and 64 micro-batches."""
    cluster = {"world": "real", "platform": None}
    model = {"name": "mlp", "width": 512, "depth": 7}
    return [_stages(model, "1f1b", m, workers=2, batch=1024, steps=3, cluster=cluster) for m in (1, 4, 64)]


def without_a_flush() -> list[Experiment]:
    """Lab 09, PipeDream: 1F1B, and PipeDream, which never drains, each with a small and a large learning rate."""
    cluster = {"platform": "p100-100gb-ib", "stand_in_for": "bert-large"}
    four = {"name": "mlp", "width": 64, "depth": 4}  # equal layers, and the output layer with the last
    # Not evaluated in the middle, which is what is drawn: for that a pipeline stands still.
    flush = _stages(four, "1f1b", steps=80, evaluate_every=30, cluster=cluster)
    stream = flush.replace(split={"schedule": "pipedream", "microbatches": 1})
    return [each.replace(lr=lr) for lr in (0.1, 0.4) for each in (flush, stream)]


def bad_cut() -> Experiment:
    """Lab 09, break it: 33 layers, most of them on the last stage."""
    return schedules()["1F1B"].replace(split={"partition": "4,4,4,21"})
