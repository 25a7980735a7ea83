"""Lab 13: many small kernels on one device; GPUs are predicted and simulated, this machine is measured."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from dlpar import Experiment
from dlpar.course import platform_file
from dlpar.course.rehearse import Row, Shown, measured, pace_ms
from dlpar.theory import roofline

PEAKS = {"float32": 67e12, "TF32": 495e12, "bfloat16": 989e12}
"""FLOP/s of products on an H100 SXM by number type, without sparsity (NVIDIA's data sheet)."""

MEMORY, LAUNCH = 3.35e12, 5e-6
"""Bytes a second of its memory (data sheet); seconds of a launch, which are assumed."""


def few_and_many() -> dict[str, Experiment]:
    """Train a network of 3 wide layers and one of 21 narrow layers, with equal FLOPs, on 8 and on 1,024 samples."""
    alone = Experiment(
        workers=1, steps=40, lr=0.01, evaluate_every=1000, cluster={"threads": 1, "device": "cpu"}
    )
    sizes = [(batch, depth, width) for batch in (8, 1024) for depth, width in ((2, 256), (20, 64))]
    model = lambda depth, width: {"depth": depth, "width": width}
    return {f"{d + 1} layers, {b:,} samples": alone.replace(batch=b, model=model(d, w)) for b, d, w in sizes}


def launches() -> dict[str, Experiment]:
    """Simulate a step on an H100 for growing batches: with launches of 5 µs each, and with free launches."""
    alone = Experiment(
        workers=1, steps=5, evaluate_every=9, cluster={"world": "simulated", "messages": "sizes"}
    )
    at = {"launches cost": platform_file("one-h100"), "free launches": "h100-nvlink"}
    sizes = [(name, batch) for name in at for batch in (8, 1024, 131_072)]
    return {f"{b:,} samples, {n}": alone.replace(batch=b, cluster={"platform": at[n]}) for n, b in sizes}


def h100(n: int, kind: str) -> float:
    """Predict the seconds of a product of n × n matrices on an H100, by the roofline."""
    return roofline(2 * n**3, 3 * n**2 * (2 if kind == "bfloat16" else 4), PEAKS[kind], MEMORY, LAUNCH)


def products() -> pd.DataFrame:
    """Predict the microseconds of products of n × n matrices on an H100, by number type."""
    sizes = pd.Index((128, 512, 1024, 2048, 8192), name="n")
    table = pd.DataFrame({kind: [1e6 * h100(n, kind) for n in sizes] for kind in PEAKS}, index=sizes)
    return table.assign(share=table["bfloat16"] / table["float32"])


def sharing() -> pd.DataFrame:
    """Predict how many times as many samples a second two ranks compute on one H100, by the batch of each.

    Each launches its own kernels, products with 1,024 × 1,024 weights in bfloat16, which take turns on the GPU.
    """
    batches = pd.Index((8, 128, 1024, 4096, 16_384), name="batch")
    work = [(2 * batch * 1024**2, 2 * (2 * batch * 1024 + 1024**2)) for batch in batches]
    takes = [roofline(*each, PEAKS["bfloat16"], MEMORY) for each in work]
    gains = [2 * max(LAUNCH, seconds) / max(LAUNCH, 2 * seconds) for seconds in takes]
    return pd.DataFrame({"µs": [1e6 * seconds for seconds in takes], "gain": gains}, index=batches)


def _ends(column: str, holds: Callable[[float, float], bool], said: str) -> Callable[[pd.DataFrame], Shown]:
    """Check the first and the last value of a table's column."""
    ends = lambda table: (table[column].iloc[0], table[column].iloc[-1])
    return lambda table: (bool(holds(*ends(table))), said.format(*ends(table)))


TABLE = (
    Row(few_and_many, '"Equal FLOPs take equal time"',
        measured(lambda run: run.steps["compute"].min(), lambda a, b, c, d: b / a > d / c,
                 "seconds: 8 samples {0:.2g} and {1:.2g}, 1,024 samples {2:.2g} and {3:.2g}")),
    Row(launches, '"A GPU is always busy"',
        measured(pace_ms, lambda a, b, _, d, e, f: b < 1.1 * a and e > 100 * d,
                 "8 and 1,024 samples take {0:.3f} and {1:.3f} ms; with free launches {3:.2g} and {4:.2g} ms")),
    Row(products, '"Half precision halves the time"',
        _ends("share", lambda small, large: small == 1 and large < 0.1,
              "bfloat16 takes {:.0%} of the time if n = 128, {:.0%} if n = 8,192")),
    Row(sharing, '"Two ranks on one GPU are twice as fast"',
        _ends("gain", lambda small, large: small == 2 and large == 1,
              "two ranks compute {:.1f} times as much with 8 samples each, {:.1f} times with 16,384")),
)  # fmt: skip
