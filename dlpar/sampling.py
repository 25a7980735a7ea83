"""Which samples a worker sees at which step: a function of the seed and the step alone."""

from __future__ import annotations

import zlib
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dlpar.schema import BadExperiment

if TYPE_CHECKING:
    from dlpar.experiment import Experiment


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A random stream of its own for every purpose, so that no draw shifts another.

    Parameters
    ----------
    seed : int
        The experiment's seed, at least 0.
    purpose : str
        What is drawn, ``"split"`` or ``"epoch"`` for example.
    *key : int
        What else tells streams apart (a worker, an epoch), each at least 0.

    Returns
    -------
    numpy.random.Generator
        Equal arguments give equal streams in every process; global generators
        are neither read nor moved.
    """
    # The length is part of the key, because numpy takes (1,) and (1, 0) for the same seed.
    return np.random.default_rng((seed, zlib.crc32(purpose.encode()), len(key), *key))


class Sampler:
    """Deals the samples of each global batch to the workers.

    ``iid``: all workers read one endless stream, epoch after epoch in a new random
    order.  Step t takes the next global batch of it and a worker its contiguous
    slice, so the union over workers is the same however many there are.
    ``by_label`` and ``uneven``: each worker owns a shard of the samples and reads
    its own stream of them.  Shards of ``by_label`` are equal cuts through the
    samples sorted by label; shards of ``uneven``, and their slices of a batch, are
    proportional to 1, 2, ..., N.

    Parameters
    ----------
    experiment : Experiment
        Gives seed, batch, scaling, workers and shards.
    labels : Tensor or None
        Label of each training sample, shape (size,); only ``by_label`` reads them.
    size : int
        Number of training samples.

    Raises
    ------
    BadExperiment
        If the samples cannot be dealt: fewer than workers, or ``by_label`` without labels.
    """

    def __init__(self, experiment: Experiment, labels: Tensor | None, size: int) -> None:
        e, workers = experiment, experiment.workers
        # An iid worker needs no sample of its own: a batch may be bigger than the data set.
        needed = 1 if e.shards == "iid" else workers
        if size < needed:
            raise BadExperiment(
                f"workers: got {workers}, allowed with shards {e.shards} of {size} training samples "
                f"is at most {size}"
            )
        if e.shards == "by_label" and (labels is None or labels.shape != (size,)):
            raise BadExperiment("shards: got 'by_label', allowed without one label a sample is iid or uneven")
        self.shards = e.shards
        if e.shards == "uneven":
            self._counts = proportional(e.global_batch, workers)
        else:
            self._counts = [e.local_batch(worker) for worker in range(workers)]
        self._starts = [0, *accumulate(self._counts)]
        if e.shards == "iid":
            self._streams = [_Stream(np.arange(size), e.seed, "epoch")]
        else:
            members = _cut(e, labels, size)
            self._streams = [_Stream(own, e.seed, "shard", worker) for worker, own in enumerate(members)]

    def count(self, worker: int) -> int:
        """Samples `worker` (0-based) takes of every step."""
        return self._counts[worker]

    def indices(self, step: int, worker: int) -> Tensor:
        """Training samples of one worker at one step.

        Parameters
        ----------
        step : int
            Global step, 0-based; steps may be asked for in any order.
        worker : int
            0-based.

        Returns
        -------
        Tensor
            int64, shape ``(count(worker),)``, indices into the training samples.
        """
        count = self._counts[worker]
        if self.shards == "iid":
            start = step * self._starts[-1] + self._starts[worker]
            return torch.from_numpy(self._streams[0].take(start, count))
        return torch.from_numpy(self._streams[worker].take(step * count, count))


class _Stream:
    """`members`, endlessly: every epoch holds each once, in an order drawn by the key and the epoch."""

    def __init__(self, members: np.ndarray, seed: int, purpose: str, *key: int) -> None:
        self.members = members
        self._key = (seed, purpose, *key)
        # Two epochs are kept: a batch may begin in one and end in the next.
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def _shuffled(self, epoch: int) -> np.ndarray:
        return generator(*self._key, epoch).permutation(self.members)

    def take(self, start: int, count: int) -> np.ndarray:
        """Positions ``start`` to ``start + count`` of the stream."""
        pieces = []
        while count:
            epoch, offset = divmod(start, len(self.members))
            pieces.append(self._epoch(epoch)[offset : offset + count])
            start += len(pieces[-1])
            count -= len(pieces[-1])
        return np.concatenate(pieces)


def _cut(e: Experiment, labels: Tensor | None, size: int) -> list[np.ndarray]:
    """Each worker's own samples; together all of them, none twice."""
    if e.shards == "by_label":
        order = np.argsort(labels.numpy(), kind="stable")
        return np.array_split(order, e.workers)
    order = generator(e.seed, "shards").permutation(size)
    return np.split(order, np.cumsum(proportional(size, e.workers))[:-1])


def proportional(total: int, parts: int) -> list[int]:
    """`total` cut in whole numbers that are nearly proportional to 1, 2, ..., `parts`.

    Every part is at least 1, so `total` must not be below `parts`; otherwise a part
    is off its exact share by less than 1.

    >>> proportional(100, 4)
    [10, 20, 30, 40]
    """
    weights = np.arange(1, parts + 1)
    sizes = np.maximum(total * weights // weights.sum(), 1)
    while (missing := total - sizes.sum()) != 0:
        # How far each part lies below its share, in units of 1 / weights.sum().
        lack = total * weights - sizes * weights.sum()
        if missing > 0:
            sizes[np.argmax(lack)] += 1
        else:
            sizes[np.argmin(np.where(sizes > 1, lack, lack.max() + 1))] -= 1
    return sizes.tolist()
