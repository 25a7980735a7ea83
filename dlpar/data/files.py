"""Readers of the published files of MNIST and CIFAR-10.

MNIST: the IDX format (Y. LeCun, C. Cortes and C. Burges, "The MNIST database of
handwritten digits"), plain or gzipped.  CIFAR-10: pickles of Python (A. Krizhevsky,
"Learning multiple layers of features from tiny images", 2009).
"""

from __future__ import annotations

import gzip
import math
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from dlpar.config.schema import BadData

Images = tuple[np.ndarray, np.ndarray]
"""uint8 pixels, (samples, channels, height, width), and int64 labels, (samples,)."""


def mnist(folder: Path) -> list[Images]:
    """Read the images of MNIST, Fashion-MNIST or another data set in the same format.

    Parameters
    ----------
    folder : Path
        Holds ``train-images-idx3-ubyte`` and ``train-labels-idx1-ubyte``, the same names with ``t10k-``, or
        both pairs. Each name may end in ``.gz``.

    Returns
    -------
    list of Images
        Training and test images, or one entry if the folder has only one of the two.

    Raises
    ------
    BadData
        For a missing, truncated or corrupt file.
    """
    sets = []
    for part in ("train", "t10k"):
        names = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
        images, labels = (_present(folder, name) for name in names)
        if images and labels:
            sets.append(_pair(images, labels))
        elif images or labels:
            found, missing = (images, names[1]) if images else (labels, names[0])
            raise BadData(f"mnist: {missing} (or .gz) is missing in {folder}, where {found.name} lies")
    if not sets:
        raise BadData(f"mnist: no train-images-idx3-ubyte or t10k-images-idx3-ubyte (or .gz) in {folder}")
    return sets


def _pair(images: Path, labels: Path) -> Images:
    pixels, numbers = _idx(images, (28, 28)), _idx(labels, ())
    if len(pixels) != len(numbers):
        raise BadData(f"mnist: {images} holds {len(pixels)} images, but {labels.name} {len(numbers)} labels")
    return pixels[:, None], _labels(numbers, labels)


def _present(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _labels(numbers: np.ndarray, path: Path) -> np.ndarray:
    if len(numbers) == 0:
        raise BadData(f"{path} is corrupt: it holds no samples")
    wrong = numbers[(numbers < 0) | (numbers > 9)]
    if len(wrong):
        raise BadData(f"{path} is corrupt: a label is {wrong[0]}, expected are 0 to 9")
    return numbers.astype(np.int64)


def _idx(path: Path, sample: tuple[int, ...]) -> np.ndarray:
    """Read an array of unsigned bytes from an IDX file.

    Format: two zeros, type 8, the number of dimensions, each dimension as big-endian int32, then data.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            # A bytearray, because an array made from bytes is read-only.
            content = np.frombuffer(bytearray(file.read()), np.uint8)
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(f"{path} cannot be read: {error}") from None
    mark, found = bytes((0, 0, 8, 1 + len(sample))), content[:4].tobytes()
    if found != mark:
        raise BadData(f"{path} is corrupt: its magic number is 0x{found.hex()}, expected is 0x{mark.hex()}")
    head, rest = np.split(content[4:], [4 * (1 + len(sample))])
    _check_length(path, head, 4 * (1 + len(sample)))
    size = head.view(">u4").tolist()
    if tuple(size[1:]) != sample:
        raise BadData(f"{path} holds samples of size {tuple(size[1:])}, expected is {sample}")
    _check_length(path, rest, math.prod(size))
    if len(rest) > math.prod(size):
        raise BadData(f"{path} is corrupt: it continues after the {size[0]} samples of its header")
    return rest.reshape(size)


def _check_length(path: Path, part: np.ndarray, expected: int) -> None:
    if len(part) < expected:
        raise BadData(f"{path} is truncated: {len(part)} bytes where {expected} are expected")


def cifar10(folder: Path) -> list[Images]:
    """Read the images of CIFAR-10's Python version.

    Parameters
    ----------
    folder : Path
        Holds ``data_batch_1`` to ``data_batch_5`` and ``test_batch``, or the folder ``cifar-10-batches-py``
        with these files.

    Returns
    -------
    list of Images
        Training and test images.

    Raises
    ------
    BadData
        For a missing, truncated or corrupt file, or a pickle with more than arrays.
    """
    inner = folder / "cifar-10-batches-py"
    folder = inner if inner.is_dir() else folder
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise BadData(
            f"cifar10: {', '.join(missing)} missing in {folder}; "
            "expected are the files of cifar-10-python.tar.gz, unpacked"
        )
    *train, test = (_cifar_batch(folder / name) for name in names)
    return [tuple(np.concatenate(arrays) for arrays in zip(*train, strict=True)), test]


def _cifar_batch(path: Path) -> Images:
    try:
        with path.open("rb") as file:
            content = _Arrays(file, encoding="bytes").load()
        pixels, numbers = (np.asarray(content[key]) for key in (b"data", b"labels"))
    except Exception as error:  # a damaged pickle may raise nearly any error
        raise BadData(f"{path} is truncated or corrupt: {error or type(error).__name__}") from None
    whole = numbers.dtype.kind in "iu" or not len(numbers)
    fine = numbers.ndim == 1 and whole and pixels.dtype == np.uint8
    if not fine or pixels.shape != (len(numbers), 3072):
        raise BadData(
            f"{path} is corrupt: {numbers.dtype} labels of shape {numbers.shape} with {pixels.dtype} data of shape "
            f"{pixels.shape}, expected are rows of 3072 bytes (uint8), and one whole number a row"
        )
    return pixels.reshape(-1, 3, 32, 32), _labels(numbers, path)


class _Arrays(pickle.Unpickler):
    """Unpickler that builds only arrays, numbers and text. A stranger's pickle must not run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.array(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _latin1  # how Python 3 writes bytes for Python 2
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, allowed are arrays only")


def _latin1(text: str, encoding: str) -> bytes:
    return text.encode("latin1")
