"""Writes small MNIST and CIFAR-10 folders of the published form."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def images_of(labels: np.ndarray, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Noise around one random picture a label, so that there is something to learn."""
    pictures = np.random.default_rng(1).integers(40, 216, size=(10, *shape))
    noise = np.random.default_rng(seed).integers(-40, 40, size=(len(labels), *shape))
    return (pictures[labels] + noise).astype(np.uint8)


def write_mnist(folder: Path, train: int = 100, test: int = 40, compress: bool = True) -> None:
    """`train` or `test` may be 0: that set is then not written."""
    for part, size in (("train", train), ("t10k", test)):
        if not size:
            continue
        labels = np.arange(size) % 10
        for name, content in (
            ("images-idx3-ubyte", idx(images_of(labels, (28, 28), seed=size))),
            ("labels-idx1-ubyte", idx(labels)),
        ):
            path = folder / f"{part}-{name}"
            if compress:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
            else:
                path.write_bytes(content)


def write_cifar10(folder: Path, size: int = 20) -> None:
    """Six files with `size` images each, pickled as Python 2 did."""
    for seed, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        labels = np.arange(size) % 10
        rows = images_of(labels, (3, 32, 32), seed).reshape(size, 3072)
        content = {b"data": rows, b"labels": labels.tolist(), b"batch_label": b"tiny"}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
