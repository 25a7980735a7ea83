"""Lab 10: data, tensor and pipeline parallelism at once: what is gained, in which order, and who holds what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dlpar.config.experiment import Experiment

NEAR, FAR, SLOW = ({"latency": 1e-5, "bandwidth": bandwidth} for bandwidth in (140e6, 12e6, 2e6))
"""Links inside a box, between boxes, and between boxes that are badly joined."""

_PAIRS = {"devices": 2, "nodes": 8, "inside": NEAR, "between": FAR, "nic": "each"}

CLUSTERS: dict[str, dict[str, Any]] = {
    "one box": {"devices": 8, "nodes": 1, "inside": NEAR},
    "nodes of two": _PAIRS,
    "slow network": {**_PAIRS, "between": SLOW},
    "one each": {"devices": 1, "nodes": 8, "between": FAR},
    "device 5 slow": {**_PAIRS, "stragglers": {"5": 2.0}},
}
"""Clusters of a small device, 1 GFLOP/s, that keep the proportions of large ones.

A tensor-parallel block of width h computes 72 b s h^2 / t FLOPs and sends 8 b s h (t - 1) / t numbers, so
sending over computing is (t - 1) / 9 · (bytes of a number) · (FLOP/s) / (h · bytes/s).  Eight A100 of 140
TFLOP/s sustained, on NVLink at 300 GB/s, 2 bytes a number and h = 12,288 (assumed): 6 %.  Two of these with
4 bytes and h = 64: 5 %.  The far link is 12 times slower, as 25 GB/s of InfiniBand are for each A100.
"""

BATCH, MICRO = 16, 2
"""Samples of a batch, and of a micro-batch, whatever the split is."""


def clusters(folder: str | Path) -> dict[str, str]:
    """The clusters of lab 10 as files in `folder`: a path for each name."""
    device = {"name": "small device", "flops": 1e9, "memory_gib": 1.5e6 / 2**30}
    paths = {}
    for name, fields in CLUSTERS.items():
        path = Path(folder) / f"{name.replace(' ', '-')}.json"
        path.write_text(
            json.dumps({"name": name, "source": "assumed, for lab 10", "device": device, **fields})
        )
        paths[name] = str(path)
    return paths


def grid(
    platform: str, data: int = 1, tensor: int = 1, pipeline: int = 1, order: str = "", **changes: Any
) -> Experiment:
    """Lab 10: one step of a transformer of four blocks, 16 samples, on data × tensor × pipeline devices, simulated."""
    split = {"tensor": tensor, "stages": pipeline, "microbatches": BATCH // MICRO // data, "order": order}
    experiment = Experiment(
        model={"name": "transformer", "width": 64, "depth": 4, "heads": 4},
        data={"name": "docstrings", "context": 32},
        batch=BATCH,
        steps=1,
        optimizer="adam",
        lr=1e-3,
        evaluate_every=0,
        workers=data * tensor * pipeline,
        split={"kind": "hybrid", **split},
        cluster={"world": "simulated", "platform": platform, "threads": 1},
    )
    return experiment.replace(**changes)


def alone_and_together(platform: str) -> dict[str, Experiment]:
    """Lab 10, "speed-ups multiply": one device, each axis of two by itself, and all three."""
    return {
        "one device": grid(platform),
        "data 2": grid(platform, data=2),
        "tensor 2": grid(platform, tensor=2),
        "pipeline 2": grid(platform, pipeline=2),
        "2 × 2 × 2": grid(platform, data=2, tensor=2, pipeline=2),
    }


def orders(platform: str) -> dict[str, Experiment]:
    """Lab 10, "the order of axes does not matter": 2 × 2 × 2 with tensor innermost, with pipeline, and with data."""
    return {
        "data,pipeline,tensor": grid(platform, 2, 2, 2),
        **{o: grid(platform, 2, 2, 2, order=o) for o in ("data,tensor,pipeline", "tensor,pipeline,data")},
    }


def factorizations(platform: str) -> dict[tuple[int, int, int], Experiment]:
    """Lab 10, the planner: eight devices as data × tensor × pipeline, neither of the last two above four."""
    return {
        (8 // (tensor * pipeline), tensor, pipeline): grid(
            platform, 8 // (tensor * pipeline), tensor, pipeline
        )
        for tensor in (1, 2, 4)
        for pipeline in (1, 2, 4)
        if tensor * pipeline <= 8
    }


def one_process() -> dict[str, Experiment]:
    """Lab 10, parity: ten steps in float64 on one rank, and on 2 × 2 × 2 by a ring and by each part's own server."""
    small = Experiment(
        model={"name": "transformer", "width": 16, "depth": 2, "heads": 2},
        data={"name": "docstrings", "context": 8},
        batch=8,
        steps=10,
        dtype="float64",
        workers=1,
        evaluate_every=0,
        cluster={"world": "simulated", "threads": 1},
    )
    split = {"kind": "hybrid", "microbatches": 2}
    return {
        "one process": small,
        "2 × 2 × 2, ring": small.replace(workers=8, split=split),
        "2 × 2 × 2, a server for each part": small.replace(
            workers=8, split=split, sync={"scheme": "ps", "servers": 4}
        ),
    }


def distbelief(push_every: int = 1) -> Experiment:
    """Lab 10: DistBelief's shape on real ranks: two replicas, each cut over two, and for each half a server of its own.

    Downpour SGD (Dean et al. 2012, section 4.1): nobody waits for anybody, and the servers update by Adagrad.
    """
    return Experiment(
        model={"name": "mlp", "width": 64, "depth": 3},
        batch=64,
        steps=120,
        workers=4,
        optimizer="adagrad",
        lr=0.02,
        split={"kind": "tensor", "tensor": 2},
        cluster={"threads": 1},
        evaluate_every=60,
        sync={"scheme": "ps", "servers": 2, "consistency": "asp", "push_every": push_every},
    )


def paced_grid(platform: str) -> Experiment:
    """Lab 10: 2 × 2 × 2 again, on eight processes that keep the cluster's time."""
    return grid(platform, 2, 2, 2, steps=2, cluster={"world": "paced"})
