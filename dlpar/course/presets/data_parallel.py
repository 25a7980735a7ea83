"""Lab 07: what a data-parallel step hides, what it shares out, and what each rank reads."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment

ONE_GPU_EACH = {"extends": "p100-25gbe-roce", "devices": 1}
"""A P100 a machine, 25 GbE with RoCE: every rank has a link of its own, so that closed forms are exact."""

CLOUD = {"extends": "p100-10gbe", "devices": 1, "between": {"latency": 100e-6}}
"""A P100 a machine, 10 GbE, and 100 us for a message: assumed, as of a rented network."""

MNIST_SIDE = 28


def platform_file(folder: str | Path, name: str, **changes: Any) -> str:
    """Write a platform to a file of `folder` and give its path; ``extends`` in `changes` names the one they change."""
    file = Path(folder) / f"{name}.json"
    file.write_text(json.dumps(changes))
    return str(file)


def overlapped_training() -> Experiment:
    """Lab 07, the panel: eight GPUs on two machines keep VGG-16's time, and send while they compute.

    What VGG-16 sends and computes is spread over the layers of a small network, and each of these is a bucket.
    """
    return Experiment(
        model={"name": "mlp", "width": 64, "depth": 8},
        workers=8,
        batch=64,
        scaling="weak",
        steps=12,
        evaluate_every=1000,
        sync={"scheme": "ring", "overlap": True, "bucket_mb": 0.02},
        cluster={"world": "simulated", "platform": "p100-25gbe-roce", "stand_in_for": "vgg16", "threads": 1},
    )


def paced_overlap(platform: str) -> list[Experiment]:
    """Lab 07: four real processes that keep the GPUs' time, without overlap and with it.

    Parameters
    ----------
    platform : str
        The file of `ONE_GPU_EACH`.
    """
    paced = overlapped_training().replace(
        workers=4, steps=2, cluster={"world": "paced", "platform": platform}
    )
    return [paced.replace(sync={"overlap": False}), paced]


def overlap_hides_everything(platform: str) -> dict[str, Experiment]:
    """Lab 07, "overlap hides everything": four networks on 16 GPUs, without overlap and with it.

    Parameters
    ----------
    platform : str
        The file of `ONE_GPU_EACH`.
    """
    return {
        f"{title}, overlap {'on' if overlap else 'off'}": _sizes(
            workload, platform, batch=batch, sync={"overlap": overlap}
        )
        for title, workload, batch in (
            ("VGG-16", "vgg16", 64),
            ("Inception V3", "inception3", 64),
            ("ResNet-101", "resnet101", 64),
            ("BERT-large", "bert-large", 8),
        )
        for overlap in (False, True)
    }


def faster_links(folder: str | Path) -> dict[str, Experiment]:
    """Lab 07, "overlap hides everything": VGG-16, overlapped, on three links."""
    speeds = {"10 GbE": "p100-10gbe", "25 GbE": "p100-25gbe-roce", "100 Gb InfiniBand": "p100-100gb-ib"}
    files = {title: platform_file(folder, name, extends=name, devices=1) for title, name in speeds.items()}
    return {
        f"VGG-16, {title}": _sizes("vgg16", file, sync={"overlap": True}) for title, file in files.items()
    }


def smaller_buckets(platform: str) -> list[Experiment]:
    """Lab 07, "smaller buckets are better": Inception V3 on 16 GPUs, a bucket for every layer up to one for all.

    Parameters
    ----------
    platform : str
        The file of `CLOUD`.
    """
    sizes = (0.02, 0.25, 1, 2, 8, 32, 64, 128)
    return [_sizes("inception3", platform, sync={"overlap": True, "bucket_mb": mb}) for mb in sizes]


def _sizes(workload: str, platform: str, **fields: Any) -> Experiment:
    """Two steps of 16 simulated GPUs, 64 samples each; messages carry sizes only."""
    cluster = {"world": "simulated", "messages": "sizes", "platform": platform, "stand_in_for": workload}
    return Experiment(
        **{"workers": 16, "batch": 64, "scaling": "weak", "steps": 2, "cluster": cluster, **fields}
    )


def _trained(**fields: Any) -> Experiment:
    """Four workers that really train, on a simulated network of 1 GbE."""
    model = {"name": "mlp", "width": 256, "depth": 4, **fields.pop("model", {})}
    cluster = {"world": "simulated", "platform": "cpu-1gbe", "threads": 1}
    return Experiment(
        **{
            "model": model,
            "workers": 4,
            "batch": 256,
            "steps": 20,
            "optimizer": "adam",
            "lr": 0.003,
            "dtype": "float64",
            "evaluate_every": 1000,
            "cluster": cluster,
            **fields,
        }
    )


IMAGES = {"model": {"name": "cnn", "width": 256, "depth": 2}, "steps": 10}
"""A network whose activations outweigh its weights."""


def accumulation() -> list[Experiment]:
    """Lab 07, gradient accumulation: a worker's 64 samples at once, and in 2, 4 and 8 micro-batches."""
    return [_trained(**IMAGES, split={"kind": "data", "microbatches": pieces}) for pieces in (1, 2, 4, 8)]


def small_batches() -> Experiment:
    """Lab 07: what a micro-batch of `accumulation` would be by itself, 8 samples a worker and an exchange for them."""
    return _trained(**IMAGES, batch=32)


def accumulated_statistics() -> list[Experiment]:
    """Lab 07, break it: with batch normalisation, at once and in 8 micro-batches."""
    return [
        _trained(model={"norm": "batch"}, split={"kind": "data", "microbatches": pieces}) for pieces in (1, 8)
    ]


def sharding_is_free() -> list[Experiment]:
    """Lab 07, "sharding is free": the same training whole, and by ZeRO stages 1 and 3."""
    return [_trained(split={"kind": "data", "zero": stage}) for stage in (0, 1, 3)]


def digits_as_mnist(folder: str | Path) -> Path:
    """Write the 8 x 8 digits as MNIST's files, each pixel three by three with a border of two; gives the folder.

    1,438 training and 359 test images, in the order in which a run with seed 0 has them.
    """
    from dlpar.data import digits, split

    images, labels = digits()
    wide = np.kron(images.reshape(-1, 8, 8), np.ones((3, 3)))
    pixels = np.pad(np.minimum(16 * wide, 255), ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    for name, part in zip(("train", "t10k"), split(labels, seed=0)):
        head = struct.pack(">HBB3I", 0, 8, 3, len(part), MNIST_SIDE, MNIST_SIDE)
        (Path(folder) / f"{name}-images-idx3-ubyte").write_bytes(head + pixels[part].tobytes())
        head = struct.pack(">HBBI", 0, 8, 1, len(part))
        (Path(folder) / f"{name}-labels-idx1-ubyte").write_bytes(
            head + labels[part].astype(np.uint8).tobytes()
        )
    return Path(folder)


def sharded_reading(folder: str | Path) -> list[Experiment]:
    """Lab 07, sharded reading: an epoch, twice 719 images, on four real ranks: each reads all, or its own share."""
    whole = Experiment(
        model={"name": "mlp", "width": 64, "depth": 1},
        workers=4,
        batch=719,
        steps=2,
        evaluate_every=1000,
        data={"name": "mnist", "folder": str(folder)},
        cluster={"threads": 1},
    )
    return [whole, whole.replace(data={"reading": "batches"})]


def own_samples() -> dict[str, Experiment]:
    """Lab 07, break it: four workers with two or three digits each, whose statistics or steps are their own."""
    common = Experiment(
        model={"name": "mlp", "width": 64},
        workers=4,
        batch=128,
        steps=100,
        evaluate_every=1000,
        shards="by_label",
        cluster={"world": "simulated", "platform": "cpu-10gbe", "threads": 1},
    )
    own = {"model": {"norm": "batch"}}
    return {
        "dealt out of all samples": common.replace(shards="iid"),
        "own digits, gradients summed every step": common,
        "own digits, own batch statistics": common.replace(**own),
        "dealt out of all, own batch statistics": common.replace(shards="iid", **own),
        "own digits, synchronised statistics": common.replace(model={"norm": "sync_batch"}),
        "own digits, 20 local steps": common.replace(averaging={"method": "local", "period": 20}),
    }
