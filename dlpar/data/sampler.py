"""Choice of a worker's samples at a step, as a function of only the seed and the step."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dlpar.config.generator import generator
from dlpar.config.schema import BadExperiment

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


EPOCHS, SAMPLES = 8, 2**14
"""Maximum numbers of epochs, and of their samples, whose orders are drawn together. An order drawn alone,
between short steps, takes more than twice as long.
"""


class Sampler:
    """Sampler that distributes the samples of each global batch among the workers.

    ``iid``: all workers read one endless stream, with a new random order in each epoch.  Step t takes its
    next global batch, and a worker takes a contiguous slice.  So the union over workers does not depend on
    their number.  ``by_label`` and ``uneven``: each worker owns a shard of the samples and reads its own
    stream of them.  Shards of ``by_label`` are equal cuts through the samples sorted by label.  Shards of
    ``uneven``, and their slices of a batch, are proportional to 1, 2, ..., N.

    Under map-reduce with a fraction below 1, a hash of seed, step and sample number decides whether the batch
    keeps a sample. So this choice does not depend on the number of workers either.

    Parameters
    ----------
    experiment : Experiment
        Gives seed, batch, scaling, workers, shards and, under map-reduce, the fraction.
    labels : Tensor or None
        Label of each training sample, shape (size,), used by ``by_label`` only.
    size : int
        Number of training samples.
    device : torch.device or str
        Device of the indices, where whole stretches of the streams are kept. A fraction below 1 is drawn on
        the host.

    Raises
    ------
    BadExperiment
        If there are fewer samples than workers, or no labels for ``by_label``.
    """

    def __init__(
        self, experiment: Experiment, labels: Tensor | None, size: int, device: torch.device | str = "cpu"
    ) -> None:
        e, workers = experiment, experiment.workers
        # An iid worker owns no samples, so a batch may be larger than the data set.
        needed = 1 if e.shards == "iid" else workers
        if size < needed:
            raise BadExperiment(
                f"workers: got {workers}, allowed with shards {e.shards} of {size} training samples "
                f"is at most {size}"
            )
        if e.shards == "by_label" and (labels is None or labels.shape != (size,)):
            raise BadExperiment("shards: got 'by_label', allowed without one label a sample is iid or uneven")
        self.shards, self.seed = e.shards, e.seed
        self.fraction = getattr(e.sync, "fraction", 1.0)
        if e.shards == "uneven":
            self._counts = proportional(e.global_batch, workers)
        else:
            self._counts = [e.local_batch(worker) for worker in range(workers)]
        self._starts = [0, *accumulate(self._counts)]
        on = "cpu" if self.fraction < 1 else device
        if e.shards == "iid":
            self._streams = [_Stream(np.arange(size), on, e.seed, "epoch")]
        else:
            members = _cut(e, labels, size)
            self._streams = [_Stream(own, on, e.seed, "shard", worker) for worker, own in enumerate(members)]

    def count(self, worker: int) -> int:
        """Return the number of samples of `worker` (0-based) in a step, before map-reduce keeps a fraction of them."""
        return self._counts[worker]

    def indices(self, step: int, worker: int) -> Tensor:
        """Return the training samples of one worker at one step.

        Parameters
        ----------
        step : int
            Global step, 0-based. Steps may be requested in any order.
        worker : int
            0-based.

        Returns
        -------
        Tensor
            int64, shape ``(count(worker),)``, indices into the training samples.  A fraction below 1 gives
            fewer, sometimes none.
        """
        count = self._counts[worker]
        if self.shards == "iid":
            taken = self._streams[0].take(step * self._starts[-1] + self._starts[worker], count)
        else:
            taken = self._streams[worker].take(step * count, count)
        if self.fraction < 1:
            kept = hashed((self.seed << 32) + step, taken.numpy()) < self.fraction
            taken = taken[torch.from_numpy(kept)]
        return taken


class _Stream:
    """Endless stream of samples.

    Each epoch holds each member once, in an order drawn by key and epoch.
    """

    def __init__(
        self, members: np.ndarray, device: torch.device | str, seed: int, purpose: str, *key: int
    ) -> None:
        self.members, self._device = members, device
        self._key = (seed, purpose, *key)
        self._epochs = max(1, min(EPOCHS, SAMPLES // len(members)))
        self._long = self._epochs * len(members)
        # Two stretches are kept: a batch may begin in one and end in the next.
        self._stretch = lru_cache(maxsize=2)(self._drawn)

    def _drawn(self, stretch: int) -> Tensor:
        epochs = range(stretch * self._epochs, (stretch + 1) * self._epochs)
        drawn = [generator(*self._key, epoch).permutation(self.members) for epoch in epochs]
        order = torch.from_numpy(np.concatenate(drawn))
        if torch.device(self._device).type == "cuda":  # a copy from pinned memory does not block
            order = order.pin_memory()
        return order.to(self._device, non_blocking=True)

    def take(self, start: int, count: int) -> Tensor:
        """Return positions ``start`` to ``start + count`` of the stream. They are read-only."""
        pieces = []
        while count:
            stretch, offset = divmod(start, self._long)
            taken = min(count, self._long - offset)
            pieces.append(self._stretch(stretch)[offset : offset + taken])
            start, count = start + taken, count - taken
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def hashed(key: int, numbers: np.ndarray) -> np.ndarray:
    """Return a pseudo-random number from 0 to below 1 for each of `numbers`, determined by the key.

    The hash takes two rounds of the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), the first
    over the key alone. Results for nearby keys and numbers are unrelated.

    Parameters
    ----------
    key : int
        At least 0, below 2^64.
    numbers : ndarray of int, shape (n,)
        Each at least 0.

    Returns
    -------
    ndarray of float64, shape (n,)
    """
    bits = _mixed(_mixed(np.array([key], np.uint64)) + numbers.astype(np.uint64))
    return (bits >> np.uint64(11)) * 2.0**-53


def _mixed(z: np.ndarray) -> np.ndarray:
    """Map 64-bit numbers one to one, so that each output bit depends on every input bit."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _cut(e: Experiment, labels: Tensor | None, size: int) -> list[np.ndarray]:
    """Cut the samples into one shard per worker. Each sample is in exactly one shard."""
    if e.shards == "by_label":
        order = np.argsort(labels.numpy(force=True), kind="stable")
        return np.array_split(order, e.workers)
    order = generator(e.seed, "shards").permutation(size)
    return np.split(order, np.cumsum(proportional(size, e.workers))[:-1])


def proportional(total: int, parts: int) -> list[int]:
    """Cut `total` into whole numbers that are nearly proportional to 1, 2, ..., `parts`.

    Every part is at least 1, so `total` must not be below `parts`.  Otherwise a part differs from its exact
    share by less than 1.

    >>> proportional(100, 4)
    [10, 20, 30, 40]
    """
    weights = np.arange(1, parts + 1)
    sizes = np.maximum(total * weights // weights.sum(), 1)
    while (missing := total - sizes.sum()) != 0:
        # Distance of each part below its share, in units of 1 / weights.sum().
        lack = total * weights - sizes * weights.sum()
        if missing > 0:
            sizes[np.argmax(lack)] += 1
        else:
            sizes[np.argmin(np.where(sizes > 1, lack, lack.max() + 1))] -= 1
    return sizes.tolist()
