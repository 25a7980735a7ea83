"""Lab 07b: sharded state of data-parallel ranks, gradient accumulation, and sharded data.

Micro-batches accumulate the gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.course.rehearse import SIMULATED, Row, Shown, accuracy, learns, measured, most_held

ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 0.003, "dtype": "float64", "evaluate_every": 1000}


def sharded_training(zero: int = 1, microbatches: int = 1, **fields: Any) -> Experiment:
    """Train four workers with 64 samples each, Adam and ZeRO, on a simulated network of 1 GbE."""
    common = Experiment(model={"width": 256, "depth": 4}, workers=4, steps=20, **ADAM, cluster=SIMULATED)
    return common.replace(split={"kind": "data", "zero": zero, "microbatches": microbatches}, **fields)


def sharding_is_free(microbatches: int = 1) -> list[Experiment]:
    """Repeat the same training without ZeRO, and with ZeRO stages 1 and 3."""
    return [sharded_training(zero, microbatches) for zero in (0, 1, 3)]


def accumulation() -> dict[str, Experiment]:
    """Compare 64 samples per worker, at once and in pieces, with 8 samples.

    Activations are larger than weights.
    """
    images = sharded_training(0, model={"name": "cnn", "depth": 2}, steps=10)
    pieces = {f"{64 // n} of 64 at a time": images.replace(split={"microbatches": n}) for n in (1, 2, 4, 8)}
    return {**pieces, "a batch of 8": images.replace(batch=32)}


def accumulated_statistics() -> dict[str, Experiment]:
    """Train on 64 samples at once and 8 at a time, without and with batch normalisation."""
    of = lambda norm, pieces: sharded_training(0, pieces).replace(model={"norm": norm})
    return {f"{norm} norm, {64 // n} at a time": of(norm, n) for norm in ("none", "batch") for n in (1, 8)}


def own_samples() -> dict[str, Experiment]:
    """Train four workers on three or four digits each: without and with batch statistics, and with local steps."""
    training = dict(workers=4, batch=128, steps=100, evaluate_every=1000, shards="by_label")
    common = Experiment(model={"width": 64}, **training, cluster={**SIMULATED, "platform": "cpu-10gbe"})
    local = {"method": "local", "period": 20}
    return {
        "drawn from all samples": common.replace(shards="iid"),
        "own digits, gradients summed every step": common,
        "own digits, own batch statistics": common.replace(model={"norm": "batch"}),
        "drawn from all, own batch statistics": common.replace(shards="iid", model={"norm": "batch"}),
        "own digits, synchronised statistics": common.replace(model={"norm": "sync_batch"}),
        "own digits, 20 local steps": common.replace(averaging=local),
        "drawn from all, 20 local steps": common.replace(shards="iid", averaging=local),
    }


# ---- appendix: which rank reads which data ------------------------------------------


def sharded_reading(seed: int = 0, epochs: int = 10) -> list[np.ndarray]:
    """Return the images that each of four ranks reads in a few epochs of two batches.

    Each array has shape (epochs, the rank's samples per epoch).
    """
    from dlpar.data.sampler import Sampler  # imported here, because it imports torch

    steps, sampler = range(2 * epochs), Sampler(Experiment(workers=4, batch=719, seed=seed), None, 1438)
    read = [np.concatenate([sampler.indices(step, rank) for step in steps]) for rank in range(4)]
    return [each.reshape(epochs, -1) for each in read]


def _once_an_epoch(ranks: list[np.ndarray]) -> Shown:
    once = all(np.unique(np.concatenate(epoch)).size == 1438 for epoch in zip(*ranks))
    touched = np.unique(ranks[0][:5]).size / 1438
    return once and abs(touched - 1 + 0.75**5) < 0.03, f"in five epochs a rank has read {touched:.0%}"


TABLE = (
    Row(sharded_training, "A rank trains with a quarter of the optimizer state", learns(0.9)),
    Row(sharding_is_free, '"Sharding is free"',
        measured(lambda run: run.summary["bytes_sent"], lambda one, three: (one, three) == (1, 1.5),
                 "ZeRO 1 sends {:g} times the bytes, ZeRO 3 {:g}", relative=True)),
    Row(accumulation, '"A larger batch needs more memory"',
        measured(lambda run: most_held(run, "activations") / 1e6,
                 lambda once, two, four, eight, small: once > two > four > eight < min(once / 4, 1.2 * small),
                 "activations: {:.2f} MB, in pieces {:.2f}, {:.2f} and {:.2f} MB, of a batch of 8 {:.2f} MB")),
    Row(accumulated_statistics, "Accumulation with batch normalisation changes the training",
        measured(lambda run: run.curve["loss"].iloc[-1], lambda whole, pieces, of_batch, of_pieces:
                 abs(pieces / whole - 1) < 1e-9 and abs(of_pieces / of_batch - 1) > 0.1,
                 "the last loss: {:.4f} and {:.4f}, with batch normalisation {:.3f} and {:.3f}")),
    Row(own_samples, "Own shards harm results that depend on a rank's own batch",
        measured(accuracy, lambda dealt, summed, own, mixed, cured, local, fair:
                 min(summed, mixed, cured) > dealt - 0.02 and fair > dealt - 0.03 and max(own, local) < dealt - 0.05,
                 "correct: {:.1%}; with own digits: sums {:.1%}, own statistics {:.1%} (drawn from all {:.1%}, "
                 "synchronised {:.1%}), 20 local steps {:.1%} (drawn from all {:.1%})")),
    Row(sharded_reading, "Ranks read a data set once per epoch, and each rank soon needs all of it", _once_an_epoch),
)  # fmt: skip
