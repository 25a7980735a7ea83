"""Lab 03: what a ring sends, when it wins, and what its time depends on."""

from __future__ import annotations

from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.course.presets.mapreduce import CLUSTER

OWN_CARDS, SHARED_CARDS = "h100-400gb-ib", "v100-100gb-ib"
"""Eight GPUs a machine: with a network card for each of them, and with one for all eight."""


def ring_run() -> Experiment:
    """Lab 03: four workers on a ring train on handwritten digits for a second."""
    return Experiment(model={"name": "mlp", "width": 64}, workers=4, batch=256, steps=100, evaluate_every=20)


def copies() -> list[Experiment]:
    """Lab 03, "a ring sends N copies": 2, 4 and 8 workers, the byte counter on."""
    return [ring_run().replace(workers=workers, steps=10, evaluate_every=1000) for workers in (2, 4, 8)]


def ring_always_wins(platform: str, ranks: int = 64) -> dict[str, Any]:
    """Lab 03, "ring always wins": against tree and halving-doubling, 1.2 MB to 178 MB (ResNet-101), simulated.

    Arguments of :func:`dlpar.lab.time_collectives`.
    """
    return {
        "names": ("ring", "tree", "halving_doubling"),
        "ranks": ranks,
        "sizes": (1.2e6, 12e6, 178e6),
        "world": "simulated",
        "platform": platform,
    }


def more_ranks() -> list[dict[str, Any]]:
    """Lab 03, "its time does not depend on N": a ring of 2 to 8 paced ranks, of 2 to 128 and of 512 simulated ones.

    Arguments of :func:`dlpar.lab.time_collectives`; 4 kB and 16 MB, of 512 ranks 4 kB.
    """
    short, long = 4_000, 16_000_000
    paced = {
        "names": ("ring",),
        "ranks": (2, 4, 8),
        "sizes": (short, long),
        "world": "paced",
        "platform": CLUSTER,
    }
    simulated = {**paced, "ranks": (2, 4, 8, 32, 128), "world": "simulated"}
    return [paced, simulated, {**simulated, "ranks": 512, "sizes": (short,)}]


def fewer_bytes() -> list[Experiment]:
    """Lab 03: the same training with whole gradients, 1 bit a number, the largest 1 %, and bfloat16; simulated."""
    common = Experiment(
        model={"name": "mlp", "width": 64},
        workers=4,
        batch=256,
        steps=100,
        cluster={"world": "simulated", "platform": "cpu-1gbe"},
    )
    codecs = ({"codec": "none"}, {"codec": "bf16"}, {"codec": "onebit"}, {"codec": "topk", "keep": 0.01})
    return [common.replace(compression=codec) for codec in codecs]


def slow_rank() -> list[Experiment]:
    """Lab 03: four workers of 10 ms a step; then one of them four times slower."""
    even = Experiment(
        workers=4,
        steps=25,
        model={"name": "mlp", "width": 64},
        evaluate_every=1000,
        delays={"kind": "constant", "delay_ms": 10.0},
    )
    return [even, even.replace(delays={"straggler": {2: 4.0}})]
