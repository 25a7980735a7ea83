"""Closed forms of averaging with neighbours: how fast replicas agree, and what an exchange takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlpar.graphs import mixing_matrix, neighbours, partners, pushing_matrix, receivers, second_eigenvalue
from dlpar.theory.collectives import exchange_seconds
from dlpar.worlds.platforms import Link

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


def contraction(experiment: Experiment) -> float:
    """Return the factor by which averaging alone shrinks the consensus distance in a step, in the long run.

    Returns
    -------
    float
        From 0 (they agree after one step) to 1 (never).  With neighbours |λ₂| of the mixing
        matrix; with push-sum that of the matrix of shares.  Peers drawn at random: the root of
        the second eigenvalue of E[WᵀW] (Boyd et al., IEEE Trans. Inf. Theory 2006), which
        for k distinct peers is (N - k - 1) / ((k + 1)(N - 1)).  Pairwise: the same for one
        average of every active worker a step; on a busy machine averages take longer than steps.
    """
    sync, n, seed = experiment.sync, experiment.workers, experiment.seed
    if n == 1:
        return 0.0
    if sync.exchange == "push_sum":
        return second_eigenvalue(pushing_matrix(receivers(sync, n, seed)))
    if sync.exchange == "random":
        return float(np.sqrt((n - sync.peers - 1) / ((sync.peers + 1) * (n - 1))))
    graph = neighbours(sync, n, seed)
    if sync.exchange == "neighbours":
        return second_eigenvalue(mixing_matrix(graph))
    active, kept = partners(graph)
    asking = [worker for worker in sorted(active) if kept[worker]]
    expected = np.eye(n)
    for i in asking:
        for j in kept[i]:
            apart = np.zeros(n)
            apart[i], apart[j] = 1, -1
            # One average is a projection, W = WᵀW = I - dd'/2.
            expected -= np.outer(apart, apart) / 2 / len(kept[i]) / len(asking)
    return float(second_eigenvalue(expected) ** (len(asking) / 2))


def neighbour_seconds(degree: int, nbytes: float, link: Link) -> float:
    """Return the seconds in which every worker exchanges `nbytes` with `degree` neighbours: a + degree b.

    The number of workers does not matter.  Workers that begin with the same neighbour queue at its
    port: then up to a + (2 degree - 1) b.  On a half-duplex link both directions share a port.

    Source: Lian et al. (arXiv 1705.09056), table 1: the busiest node's communication is its degree.

    Raises
    ------
    ValueError
        If `degree` is below 0.
    """
    if degree < 0:
        raise ValueError(f"degree: got {degree}, allowed is a whole number from 0")
    return exchange_seconds(degree * nbytes, link) if degree else 0.0
