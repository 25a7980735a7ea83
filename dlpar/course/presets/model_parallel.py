"""Lab 08: one model on several ranks: what each holds, what they say to each other, and why one does it."""

from __future__ import annotations

from dlpar.config.experiment import Experiment

NVLINK = "v100-nvlink"
"""Eight V100 in one machine."""


def split_in_two() -> Experiment:
    """Lab 08: a small cnn on two real ranks, by channels; its images may be cut, too."""
    return Experiment(
        workers=2,
        model={"name": "cnn", "width": 64},
        split="tensor",
        batch=64,
        steps=40,
        dtype="float64",
        evaluate_every=20,
    )


def heads_and_characters() -> Experiment:
    """Lab 08: a transformer on four ranks, by heads, neurons and characters."""
    return Experiment(
        workers=4,
        model={"name": "transformer", "width": 64, "depth": 2},
        data="docstrings",
        batch=16,
        split="tensor",
        steps=10,
        cluster={"world": "simulated", "platform": NVLINK},
    )


def faster(*platforms: str) -> list[Experiment]:
    """Lab 08, "we split a model to go faster": one perceptron of 1,024 neurons a layer on each platform, one step.

    Parameters
    ----------
    *platforms : str
        Names or files of clusters that differ in their links alone.
    """
    perceptron = Experiment(
        model={"name": "mlp", "width": 1024, "depth": 3},
        batch=512,
        steps=1,
        evaluate_every=1000,
        split="tensor",
        cluster={"world": "simulated", "platform": NVLINK},
    )
    return [perceptron.replace(cluster={"platform": platform}) for platform in platforms]


def pieces_of_images() -> list[Experiment]:
    """Lab 08, "halos approximate": 20 steps by one process, and with images of 8 × 8 in 3, 2 × 2 and 3 × 2 pieces."""
    whole = Experiment(
        workers=1,
        model={"name": "cnn", "width": 64},
        batch=64,
        steps=20,
        dtype="float64",
        evaluate_every=1000,
        cluster={"world": "simulated"},
    )
    cuts = ((3, 1), (2, 2), (3, 2))
    split = [{"kind": "spatial", "rows": rows, "columns": columns} for rows, columns in cuts]
    return [whole, *(whole.replace(workers=s["rows"] * s["columns"], split=s) for s in split)]


def redundant(platform: str) -> list[Experiment]:
    """Lab 08: a perceptron on four ranks, its layers in pairs; then all by outputs, with more and more overlap.

    With the least redundancy no neuron is computed twice: 0.001 of 64 neurons is none.

    Parameters
    ----------
    platform : str
        Name or file of a cluster.
    """
    common = Experiment(
        workers=4,
        model={"name": "mlp", "width": 256, "depth": 3},
        batch=1024,
        steps=1,
        evaluate_every=1000,
        cluster={"world": "simulated", "platform": platform},
    )
    return [common.replace(split={"kind": "tensor", "redundancy": share}) for share in (0, 0.001, 0.5, 1)]
