"""Data sets as tensors ready for training, split and scaled, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from dlpar.config.generator import generator
from dlpar.config.schema import BadData
from dlpar.data import files
from dlpar.data import text as docstrings
from dlpar.data.cache import Arrays, cached

if TYPE_CHECKING:
    from dlpar.config.experiment import Data


__all__ = ["BadData", "Dataset", "Task", "load", "split"]

Task = Literal["classification", "regression", "characters"]

HELD_OUT = 0.2
"""Share of the samples kept for testing, if the source has no test set."""

SCALED_BY = 10_000
"""Maximum number of images that determine the scale of pixels, which bounds memory."""

TRAIN_CHARACTERS = 2**20
TEST_CHARACTERS = 2**14
"""Maximum number of characters used, which bounds memory (8 bytes each) and the time of a test."""


@dataclass(frozen=True)
class Dataset:
    """Samples, on the CPU until :meth:`to` moves them.

    `x` has the requested dtype (characters: int64), and `y` has the task's form.

    Classification: labels, int64, (n,).  Regression: targets, (n, 1).  Characters: the
    characters that follow each of `x`, int64, (n, context), as positions in
    :data:`dlpar.data.text.ALPHABET`.
    """

    name: str
    task: Task
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    """Number of a model's outputs: labels, characters of the alphabet, or 1 for regression."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: (features,), (channels, height, width) or (context,)."""
        return tuple(self.train_x.shape[1:])

    def to(self, device: torch.device | str) -> Dataset:
        """Return the same samples on another device. Tensors that are already there are not copied."""
        moved = {name: getattr(self, name).to(device) for name in ("train_x", "train_y", "test_x", "test_y")}
        return replace(self, **moved)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the training samples at `indices`, (n,).

        `indices` may be on another device.
        """
        if self.train_y.is_cuda and indices.is_cpu:  # a copy from pinned memory does not block
            indices = indices.pin_memory()
        indices = indices.to(self.train_y.device, non_blocking=True)
        return self.train_x.index_select(0, indices), self.train_y.index_select(0, indices)


def load(data: Data, seed: int, dtype: torch.dtype = torch.float32, model: str = "mlp") -> Dataset:
    """Load a data set in the form that `model` needs.

    Parameters
    ----------
    data : Data
        ``experiment.data``: the data set's name and the folder of its files.
    seed : int
        Determines the held-out samples.  Sets with their own test set (mnist, cifar10) keep it.  Others hold
        out 20 % of each label.
    dtype : torch.dtype
        Type of inputs and of regression targets.
    model : str
        Name of the model: a cnn gets images, others rows of pixels; a transformer gets
        docstrings as characters, logistic as word counts.

    Returns
    -------
    Dataset
        The same on every rank. Scales are fitted only on training samples.

    Raises
    ------
    BadData
        If a file is missing or corrupt, or the set is too small to hold out samples.
    """
    if data.name == "diabetes":
        return _diabetes(seed, dtype)
    if data.name == "docstrings" and model == "transformer":
        return _characters(data.context, seed)
    if data.name == "docstrings":
        return _words(seed, dtype)
    return _images(data, seed, dtype, flat=model != "cnn")


def split(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of training and held-out samples, both in random order.

    Parameters
    ----------
    labels : numpy.ndarray
        Label of each sample, from 0, (n,).  The share `HELD_OUT` of each label is held out, rounded.  With
        equal labels the split is not stratified.
    seed : int
        Equal seeds give equal splits.

    Returns
    -------
    (numpy.ndarray, numpy.ndarray)
        int64.  Together they contain every sample once.

    Raises
    ------
    BadData
        If a part would be empty.
    """
    draw = generator(seed, "split")
    train, test = [], []
    for label in np.flatnonzero(np.bincount(labels)):  # np.unique imports a lot
        members = draw.permutation(np.flatnonzero(labels == label))
        cut = round(HELD_OUT * len(members))
        test.append(members[:cut])
        train.append(members[cut:])
    if not sum(map(len, test)):
        raise BadData(f"data: {len(labels)} samples are too few to hold any out for testing")
    return draw.permutation(np.concatenate(train)), draw.permutation(np.concatenate(test))


def _from_sklearn(name: str) -> Arrays:
    """Load a scikit-learn data set from the cache.

    Importing scikit-learn takes as long as importing torch.
    """
    from importlib.metadata import version

    def make() -> Arrays:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")()
        return {"x": bunch.data, "y": bunch.target}

    return cached(f"{name}-1-sklearn-{version('scikit-learn')}", make)


def _images(data: Data, seed: int, dtype: torch.dtype, flat: bool) -> Dataset:
    if data.name == "digits":
        kept = _from_sklearn("digits")
        sets = [(kept["x"].reshape(-1, 1, 8, 8), kept["y"])]
    else:
        sets = files.mnist(data.path()) if data.name == "mnist" else files.cifar10(data.path())
    if len(sets) == 1:
        pixels, labels = sets[0]
        sets = [(pixels[rows], labels[rows]) for rows in split(labels, seed)]
    mean, divisor = map(torch.from_numpy, _pixel_scale(sets[0][0][:SCALED_BY]))
    x = [torch.from_numpy(pixels).to(dtype).sub_(mean).div_(divisor) for pixels, _ in sets]
    return _classes(data.name, [each.flatten(1) if flat else each for each in x], [y for _, y in sets])


def _pixel_scale(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and divisor of each channel, (channels, 1, 1).

    Division by the standard deviation would give a sample a squared length equal to its number of pixels.
    Longer inputs need a lower learning rate for stable SGD. So the squared length is capped at 256, where a
    learning rate of 0.1 suits all three data sets.
    """
    values = pixels.astype(np.float32)
    mean = values.mean(axis=(0, 2, 3), dtype=np.float64)
    deviation = values.std(axis=(0, 2, 3), dtype=np.float64)
    scale = np.where(deviation > 0, deviation, 1.0) * max(1.0, np.sqrt(pixels[0].size / 256))
    return mean[:, None, None], scale[:, None, None]


def _diabetes(seed: int, dtype: torch.dtype) -> Dataset:
    """Load the progression of diabetes after a year, with ten measurements (Efron et al. 2004)."""
    kept = _from_sklearn("diabetes")
    train, test = split(np.zeros(len(kept["y"]), dtype=np.int64), seed)

    def standardised(columns: np.ndarray) -> np.ndarray:
        return (columns - columns[train].mean(axis=0)) / columns[train].std(axis=0)

    x, y = (torch.from_numpy(standardised(part)).to(dtype) for part in (kept["x"], kept["y"][:, None]))
    return Dataset("diabetes", "regression", x[train], y[train], x[test], y[test], classes=1)


def _words(seed: int, dtype: torch.dtype) -> Dataset:
    """Load the word counts of docstrings. A docstring's label is its package."""
    words = docstrings.words()
    train, test = split(words.labels, seed)
    x = torch.from_numpy(words.tf_idf(train)).to(dtype)
    labels = words.labels[train], words.labels[test]
    return _classes("docstrings", (x[train], x[test]), labels, len(words.packages))


def _characters(context: int, seed: int) -> Dataset:
    """Load adjacent windows of `context` characters, cut from whole docstrings in random order.

    Whole docstrings are held out, because neighbouring windows share words and sentences.
    """
    texts = docstrings.characters()
    train, test = split(np.zeros(len(texts), dtype=np.int64), seed)
    views = []
    for part, limit in ((train, TRAIN_CHARACTERS), (test, TEST_CHARACTERS)):
        stream = torch.from_numpy(np.concatenate([texts[i] for i in part])[: limit + 1].astype(np.int64))
        windows = (len(stream) - 1) // context
        # Both are views of one stream, one character apart, without a second copy.
        views += [stream[shift : shift + windows * context].view(windows, context) for shift in (0, 1)]
    return Dataset("docstrings", "characters", *views, classes=len(docstrings.ALPHABET))


def _classes(name: str, x: Sequence[Tensor], labels: Sequence[np.ndarray], n: int = 10) -> Dataset:
    train_y, test_y = (torch.from_numpy(part.astype(np.int64)) for part in labels)
    return Dataset(name, "classification", x[0], train_y, x[1], test_y, n)
