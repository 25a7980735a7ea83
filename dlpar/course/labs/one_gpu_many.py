"""Lab 13: many small kernels on one device: on this machine, and on its GPU or in runs recorded on one."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dlpar import Experiment, Run, launch
from dlpar.course.rehearse import Row, measured
from dlpar.theory.calibrate import fastest_us
from dlpar.worlds.devices import gpus, trial

H100 = {"float32": (67e12, 4), "TF32": (495e12, 4), "bfloat16": (989e12, 2)}
"""FLOP/s of dense products on an H100 SXM from its data sheet, and bytes per number, by kind of number."""

MEMORY = 3.35e12
"""Bytes per second of an H100 SXM's memory, from its data sheet."""

LAUNCH = 5e-6
"""Assumed seconds per launch."""

RECORDINGS = Path(__file__).parents[1] / "recordings" / "one_gpu_many"
"""Folders of the runs of `on_gpu`, recorded on an NVIDIA H200."""


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


def on_gpu() -> dict[str, Experiment]:
    """Train on one GPU: small networks with and without graphs, a wide one in three precisions, and two ranks."""
    usual = {"lr": 0.01, "evaluate_every": 1000, "scaling": "weak", "cluster": {"device": "cuda"}}
    alone, experiments = Experiment(workers=1, steps=40, **usual), {}
    for depth, width, batch in ((2, 256, 8), (2, 256, 1024), (2, 256, 131_072), (20, 64, 8)):
        name = f"{depth + 1} layers, {batch:,} samples"
        small = alone.replace(batch=batch, model={"depth": depth, "width": width})
        experiments[f"{name}, launches"] = small.replace(cluster={"graphs": False})
        experiments[f"{name}, a graph"] = small
    wide = alone.replace(batch=4096, model={"width": 4096, "depth": 3})
    one = alone.replace(model={"width": 1024}, precision="bf16")
    experiments |= {f"4,096 wide, {kind}": wide.replace(precision=kind) for kind in ("full", "tf32", "bf16")}
    experiments |= {f"{n:,} samples a rank, 1 rank": one.replace(batch=n) for n in (32, 8192)}
    experiments |= {f"{n:,} samples a rank, 2 ranks": one.replace(batch=n, workers=2) for n in (32, 8192)}
    return experiments


def gpu_runs() -> dict[str, Run]:
    """Run `on_gpu` on this machine's GPU. Without a GPU that can compute, return the recorded runs."""
    if gpus() and not trial(0):
        # Two ranks share a GPU, also on a machine with several.
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        return {name: launch(each).wait() for name, each in on_gpu().items()}
    return {name: Run(RECORDINGS / re.sub(r"[^a-z0-9]+", "-", name.lower())) for name in on_gpu()}


def gpu_source() -> str:
    """Return the source of `gpu_runs` in words."""
    return f"measured on an {gpus()[0].name}" if gpus() and not trial(0) else "recorded on an NVIDIA H200"


TABLE = (
    Row(few_and_many, '"Equal FLOPs take equal time"',
        measured(lambda run: run.steps["compute"].min(), lambda a, b, c, d: b / a > d / c,
                 "seconds: 8 samples {0:.2g} and {1:.2g}, 1,024 samples {2:.2g} and {3:.2g}")),
    Row(additions, "An operation on a hundred numbers takes about as long as on one",
        lambda us: (us[100] < 2 * us[1], f"µs: {us[1]:.1f} for one, {us[100]:.1f} for a hundred")),
    Row(gpu_runs, '"A GPU is always busy"',
        measured(lambda run: run.steps["compute"].median(),
                 lambda few, replayed, many, *others: many < 2 * few and replayed < few / 2,
                 "seconds: 8 samples {0:.2g}, by a graph {1:.2g}, 1,024 samples {2:.2g}")),
    Row(products, "A larger product computes more FLOP/s",
        lambda us: (us[512, "float32"] < 16**3 * us[32, "float32"],
                    f"µs in float32: {us[32, 'float32']:.1f} for n = 32, {us[512, 'float32']:.0f} for 512")),
)  # fmt: skip
