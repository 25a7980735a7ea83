"""Lab 13: many small kernels on one device, on this machine and on a simulated H100."""

from __future__ import annotations

from dlpar import Experiment
from dlpar.course.rehearse import Row, measured, pace_ms
from dlpar.systems.record import platform_file
from dlpar.theory.calibrate import fastest_us

H100 = {"float32": (67e12, 4), "TF32": (495e12, 4), "bfloat16": (989e12, 2)}
"""FLOP/s of dense products on an H100 SXM from its data sheet, and bytes per number, by kind of number."""

MEMORY = 3.35e12
"""Bytes per second of an H100 SXM's memory, from its data sheet."""

LAUNCH, LAUNCHES = 5e-6, 40
"""Seconds per launch, and launches per step of the small network. Both are assumed (`one-h100.toml`)."""


def few_and_many() -> dict[str, Experiment]:
    """Train a network of 3 wide layers and one of 21 narrow layers, with equal FLOPs.

    Each trains on 8 and on 1,024 samples.
    """
    alone = Experiment(workers=1, steps=40, lr=0.01, evaluate_every=1000, cluster={"threads": 1})
    sizes = [(batch, depth, width) for batch in (8, 1024) for depth, width in ((2, 256), (20, 64))]
    model = lambda depth, width: {"depth": depth, "width": width}
    return {f"{d + 1} layers, {b:,} samples": alone.replace(batch=b, model=model(d, w)) for b, d, w in sizes}


def additions() -> dict[int, float]:
    """Measure the µs of adding two vectors, by their length, in one thread of this machine."""
    return fastest_us("add", {n: ((n,), "float32") for n in (1, 100, 10_000, 1_000_000)})


def products() -> dict[tuple[int, str], float]:
    """Measure the µs of n × n products in float32 and bfloat16, in one thread of this machine."""
    cases = {(n, k): ((n, n), k) for n in (32, 128, 512) for k in ("float32", "bfloat16")}
    return fastest_us("matmul", cases)


def launches() -> dict[str, Experiment]:
    """Simulate a step on an H100 for growing batches. Launches take 5 µs each, or are free."""
    alone = Experiment(workers=1, steps=5, cluster={"world": "simulated", "messages": "sizes"})
    at = {"launches cost": platform_file("one-h100"), "free launches": "h100-nvlink"}
    sizes = [(name, batch) for name in at for batch in (8, 1024, 131_072)]
    return {f"{b:,} samples, {n}": alone.replace(batch=b, cluster={"platform": at[n]}) for n, b in sizes}


def on_gpu() -> dict[str, Experiment]:
    """Train on one GPU: small networks with and without graphs, a wide one in three precisions, and two ranks."""
    alone = Experiment(
        workers=1, steps=40, lr=0.01, evaluate_every=1000, scaling="weak", cluster={"device": "cuda"}
    )
    small = {
        f"{depth + 1} layers, {batch:,} samples, {how}": alone.replace(
            batch=batch, model={"depth": depth, "width": width}, cluster={"graphs": how == "a graph"}
        )
        for depth, width, batches in ((2, 256, (8, 1024, 131_072)), (20, 64, (8,)))
        for batch in batches
        for how in ("launches", "a graph")
    }
    wide = {
        f"4,096 wide, {precision}": alone.replace(
            batch=4096, model={"width": 4096, "depth": 3}, precision=precision
        )
        for precision in ("full", "tf32", "bf16")
    }
    shared = {
        f"{batch:,} samples a rank, {ranks} rank{'s' * (ranks > 1)}": alone.replace(
            batch=batch, workers=ranks, model={"width": 1024}, precision="bf16"
        )
        for batch in (32, 8192)
        for ranks in (1, 2)
    }
    return {**small, **wide, **shared}


TABLE = (
    Row(few_and_many, '"Equal FLOPs take equal time"',
        measured(lambda run: run.steps["compute"].min(), lambda a, b, c, d: b / a > d / c,
                 "seconds: 8 samples {0:.2g} and {1:.2g}, 1,024 samples {2:.2g} and {3:.2g}")),
    Row(additions, "An operation on a hundred numbers takes about as long as on one",
        lambda us: (us[100] < 2 * us[1], f"µs: {us[1]:.1f} for one, {us[100]:.1f} for a hundred")),
    Row(launches, '"A GPU is always busy"',
        measured(pace_ms, lambda a, b, _, d, e, f: b < 1.1 * a and e > 100 * d,
                 "8 and 1,024 samples take {0:.3f} and {1:.3f} ms; with free launches {3:.2g} and {4:.2g} ms")),
    Row(products, "A larger product computes more FLOP/s",
        lambda us: (us[512, "float32"] < 16**3 * us[32, "float32"],
                    f"µs in float32: {us[32, 'float32']:.1f} for n = 32, {us[512, 'float32']:.0f} for 512")),
)  # fmt: skip
