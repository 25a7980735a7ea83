"""Random streams keyed by seed and purpose: no draw shifts another, and no global generator moves."""

from __future__ import annotations

import zlib

import numpy as np


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
