"""Lab 03: what a ring sends, when it wins, and what its time depends on."""

from __future__ import annotations

from typing import Any

from dlpar.costmodel import Link
from dlpar.experiment import Experiment
from dlpar.lab.presets.mapreduce import FAR

RACK = Link(latency=50e-6, bandwidth=25e9 / 8)
"""25 Gb/s Ethernet and 50 us for a message, as over TCP: a platform that is stated, not measured."""


def copies() -> list[Experiment]:
    """Lab 03, "a ring sends N copies": 2, 4 and 8 workers, the byte counter on."""
    common = Experiment(model={"name": "mlp", "width": 64}, batch=256, steps=20, evaluate_every=1000)
    return [common.replace(workers=workers) for workers in (2, 4, 8)]


def ring_always_wins() -> dict[str, Any]:
    """Lab 03, "ring always wins": against tree and halving-doubling on 8 ranks over a far link, 4 kB to 1.6 MB.

    Arguments of :func:`dlpar.lab.time_collectives`.
    """
    return {
        "names": ("ring", "tree", "halving_doubling"), "ranks": 8, "sizes": (4_000, 80_000, 1_600_000), "link": FAR,
        "repeats": 2,
    }  # fmt: skip


def more_ranks() -> dict[str, Any]:
    """Lab 03, "its time does not depend on N": a ring of 2, 4 and 8 ranks over a far link, 4 kB and 400 kB."""
    return {"names": ("ring",), "ranks": (2, 4, 8), "sizes": (4_000, 400_000), "link": FAR, "repeats": 2}


def fewer_bytes() -> list[Experiment]:
    """Lab 03: the same training with whole gradients, 1 bit a number, the largest 1 %, and bfloat16."""
    common = Experiment(model={"name": "mlp", "width": 64}, workers=4, batch=256, steps=150)
    codecs = ({"codec": "none"}, {"codec": "bf16"}, {"codec": "onebit"}, {"codec": "topk", "keep": 0.01})
    return [common.replace(compression=codec) for codec in codecs]


def slow_rank() -> list[Experiment]:
    """Lab 03: four workers of 10 ms a step; then one of them four times slower."""
    even = Experiment(
        workers=4, steps=40, model={"name": "mlp", "width": 64}, evaluate_every=1000,
        delays={"kind": "constant", "delay_ms": 10.0},
    )  # fmt: skip
    return [even, even.replace(delays={"straggler": {2: 4.0}})]
