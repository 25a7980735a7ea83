"""Lab 10: data, tensor and pipeline parallelism combined.

The lab measures the gain, the order of axes, and the memory of each rank.
"""

from __future__ import annotations

from typing import Any

from dlpar import Experiment, Run
from dlpar.course.rehearse import Row, Shown, accuracy, measured, most_held, same_losses, step_ms
from dlpar.systems.record import platform_file

_NAMES = ("one box", "nodes of two", "slow network", "one each", "device 5 slow")
CLUSTERS = {name: platform_file(name.replace(" ", "-")) for name in _NAMES}
"""Clusters of small devices of 1 GFLOP/s, with the proportions of large devices (see `one-box.toml`)."""

PAIRS = CLUSTERS["nodes of two"]

BATCH, MICRO = 16, 2
"""Samples of a batch and of a micro-batch, for every split."""


def grid(
    platform: str, data: int = 1, tensor: int = 1, pipeline: int = 1, order: str = "", **changes: Any
) -> Experiment:
    """Simulate a step of a transformer (four blocks, 16 samples) on data × tensor × pipeline devices."""
    fields = dict(workers=data * tensor * pipeline, batch=BATCH, steps=1, optimizer="adam", lr=1e-3)
    model, texts = {"name": "transformer", "width": 64, "depth": 4}, {"name": "docstrings", "context": 32}
    axes = {"tensor": tensor, "stages": pipeline, "order": order}
    split = {"kind": "hybrid", **axes, "microbatches": BATCH // MICRO // data}
    cluster = {"world": "simulated", "platform": platform, "threads": 1}
    experiment = Experiment(model=model, data=texts, split=split, cluster=cluster, **fields, evaluate_every=0)
    return experiment.replace(**changes)


def one_process() -> dict[str, Experiment]:
    """Run ten float64 steps on one rank and on 2 × 2 × 2 ranks.

    The grid synchronises with a ring, and with a server for each part.
    """
    model, data = {"name": "transformer", "width": 16, "heads": 2}, {"name": "docstrings", "context": 8}
    training = dict(workers=1, batch=8, steps=10, dtype="float64", evaluate_every=0)
    small = Experiment(model=model, data=data, **training, cluster={"world": "simulated", "threads": 1})
    ring = small.replace(workers=8, split={"kind": "hybrid", "microbatches": 2})
    servers = ring.replace(sync={"scheme": "ps", "servers": 4})
    return {"one process": small, "2 × 2 × 2, ring": ring, "2 × 2 × 2, a server for each part": servers}


def alone_and_together(platform: str = PAIRS) -> dict[str, Experiment]:
    """Run one device, two devices along each single axis, and all three axes."""
    by_itself = {f"{axis} 2": grid(platform, **{axis: 2}) for axis in ("data", "tensor", "pipeline")}
    return {"one device": grid(platform), **by_itself, "2 × 2 × 2": grid(platform, 2, 2, 2)}


def orders() -> dict[str, Experiment]:
    """Run 2 × 2 × 2 with tensor, pipeline or data as the innermost axis."""
    inner = ("data,pipeline,tensor", "data,tensor,pipeline", "tensor,pipeline,data")
    return {order: grid(PAIRS, 2, 2, 2, order=order) for order in inner}


def factorizations() -> dict[tuple[int, int, int], Experiment]:
    """Run eight devices as data × tensor × pipeline, with tensor and pipeline at most four.

    The second step holds Adam's state, which the first step allocates.
    """
    axes = [(8 // (t * p), t, p) for t in (1, 2, 4) for p in (1, 2, 4) if t * p <= 8]
    return {each: grid(PAIRS, *each, steps=2) for each in axes}


def _two_by_two_by_two(runs: dict[tuple[int, int, int], Run]) -> Shown:
    fits = {axes: step_ms(run) for axes, run in runs.items() if most_held(run) < 1.6e6}
    best = min(fits, key=fits.get)
    said = f"{' × '.join(map(str, best))}, {fits[best]:.0f} ms; {len(fits)} of {len(runs)} fit"
    return best == (2, 2, 2), said


def distbelief(push_every: int = 1) -> Experiment:
    """Run DistBelief's layout on real ranks: two replicas, each on two ranks, and a server for each half.

    Downpour SGD (Dean et al. 2012, section 4.1): no rank waits for another, and the servers update by Adagrad.
    """
    model, split = {"name": "mlp", "width": 64, "depth": 3}, {"kind": "tensor", "tensor": 2}
    training = dict(workers=4, batch=64, steps=240, optimizer="adagrad", lr=0.02, evaluate_every=120)
    sync = {"scheme": "ps", "servers": 2, "consistency": "asp", "push_every": push_every}
    return Experiment(model=model, **training, split=split, sync=sync, cluster={"threads": 1})


def paced_grid() -> Experiment:
    """Run 2 × 2 × 2 on eight processes with the cluster's clock."""
    return grid(PAIRS, 2, 2, 2, steps=2, cluster={"world": "paced"})


TABLE = (
    Row(one_process, "2 × 2 × 2 ranks learn the same as one process", same_losses(1e-9)),
    Row(alone_and_together, '"Speed-ups multiply"',
        measured(step_ms, lambda alone, data, tensor, pipeline, together:
                 together > 1.25 * data * tensor * pipeline / alone**2,
                 "a step: one device {:.0f} ms, two by data {:.0f}, tensor {:.0f}, pipeline {:.0f}, all axes {:.0f}")),
    Row(orders, '"The order of axes does not matter"',
        measured(step_ms, lambda tensor, pipeline, data: min(data, pipeline) > 1.25 * tensor,
                 "a step with this axis inside a box: tensor {:.0f} ms, pipeline {:.0f} ms, data {:.0f} ms")),
    Row(factorizations, "Here 2 × 2 × 2 is the best grid that fits", _two_by_two_by_two),
    Row(paced_grid, "Eight processes follow the simulated cluster's clock",
        measured(step_ms, lambda paced, simulated: abs(paced / simulated - 1) < 0.05,
                 "a step takes {:.1f} ms paced, {:.1f} ms simulated"),
        lambda: [paced_grid(), grid(PAIRS, 2, 2, 2)]),
    Row(distbelief, "DistBelief's shape trains on real ranks",
        measured(accuracy, lambda *shares: min(shares) > 0.85,
                 "correct: {:.0%} with a push a step, {:.0%} with one in 8"),
        lambda: [distbelief(push_every=n) for n in (1, 8)]),
    Row(grid, "One slow device slows all eight devices",
        measured(step_ms, lambda hurt, even: hurt > 1.4 * even,
                 "with one device twice as slow a step takes {:.0f} ms, otherwise {:.0f} ms"),
        lambda: [grid(platform, 2, 2, 2) for platform in (CLUSTERS["device 5 slow"], PAIRS)]),
)  # fmt: skip
