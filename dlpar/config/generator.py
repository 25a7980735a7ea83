"""Random streams keyed by seed and purpose. They are independent of each other and of global generators."""

from __future__ import annotations

import zlib

import numpy as np


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return a separate random stream for each purpose. Draws from one stream do not change another.

    Parameters
    ----------
    seed : int
        The experiment's seed, at least 0.
    purpose : str
        The purpose of the draw, such as ``"split"`` or ``"epoch"``.
    *key : int
        Further numbers that distinguish streams (a worker, an epoch), each at least 0.

    Returns
    -------
    numpy.random.Generator
        Equal arguments give equal streams in every process.  Global generators are neither read nor changed.
    """
    # The length is part of the key, because numpy takes (1,) and (1, 0) for the same seed.
    return np.random.default_rng((seed, zlib.crc32(purpose.encode()), len(key), *key))
