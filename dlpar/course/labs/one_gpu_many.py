"""Lab 13: many small kernels on one device, on this machine and on a simulated H100."""

from __future__ import annotations

from dlpar import Experiment
from dlpar.course import platform_file
from dlpar.course.rehearse import Row, measured, pace_ms


def few_and_many() -> dict[str, Experiment]:
    """Train a network of 3 wide layers and one of 21 narrow layers, with equal FLOPs.

    Each trains on 8 and on 1,024 samples.
    """
    alone = Experiment(workers=1, steps=40, lr=0.01, evaluate_every=1000, cluster={"threads": 1})
    sizes = [(batch, depth, width) for batch in (8, 1024) for depth, width in ((2, 256), (20, 64))]
    model = lambda depth, width: {"depth": depth, "width": width}
    return {f"{d + 1} layers, {b:,} samples": alone.replace(batch=b, model=model(d, w)) for b, d, w in sizes}


def launches() -> dict[str, Experiment]:
    """Simulate a step on an H100 for growing batches. Launches take 5 µs each, or are free."""
    alone = Experiment(workers=1, steps=5, cluster={"world": "simulated", "messages": "sizes"})
    at = {"launches cost": platform_file("one-h100"), "free launches": "h100-nvlink"}
    sizes = [(name, batch) for name in at for batch in (8, 1024, 131_072)]
    return {f"{b:,} samples, {n}": alone.replace(batch=b, cluster={"platform": at[n]}) for n, b in sizes}


TABLE = (
    Row(few_and_many, '"Equal FLOPs take equal time"',
        measured(lambda run: run.steps["compute"].min(), lambda a, b, c, d: b / a > d / c,
                 "seconds: 8 samples {0:.2g} and {1:.2g}, 1,024 samples {2:.2g} and {3:.2g}")),
    Row(launches, '"A GPU is always busy"',
        measured(pace_ms, lambda a, b, _, d, e, f: b < 1.1 * a and e > 100 * d,
                 "8 and 1,024 samples take {0:.3f} and {1:.3f} ms; with free launches {3:.2g} and {4:.2g} ms")),
)  # fmt: skip
