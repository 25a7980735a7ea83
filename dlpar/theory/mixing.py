"""Closed form of averaging with neighbours: the rate at which replicas agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlpar.graphs import (
    mixing_matrix,
    neighbours,
    one_peer_shift,
    partners,
    pushing_matrix,
    receivers,
    second_eigenvalue,
)

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


def contraction(experiment: Experiment, curvature: float = 0.0) -> float:
    """Return the long-run factor by which a step shrinks the consensus distance, with or without gradients.

    Parameters
    ----------
    experiment : Experiment
        Its ``sync`` is gossip.
    curvature : float, default 0
        h, if gradients are h x, as for one quadratic loss on all workers.  0: averaging without gradients.

    Returns
    -------
    float
        From 0 (replicas agree after one step) to 1 (they never agree).  With neighbours, |λ₂| of the mixing
        matrix; with push-sum, |λ₂| of the matrix of shares.  With random peers, the root of the second
        eigenvalue of E[WᵀW] (Boyd et al., IEEE Trans. Inf. Theory 2006), which for k distinct peers is (N - k
        - 1) / ((k + 1)(N - 1)).  Pairwise, the same for one average of every active worker per step. On a
        busy machine, averages take longer than steps. With one peer, the mean factor of the steps of a cycle,
        0 if N is a power of two. If workers adapt and then combine, gradients multiply the factor by 1 - lr
        h.  If they combine and then adapt, gradients subtract lr h from each eigenvalue λ (Sayed 2014,
        sections 7.1 and 7.2).
    """
    sync, n, moved = experiment.sync, experiment.workers, experiment.lr * curvature
    if n == 1:
        return 0.0
    if sync.order == "adapt_then_combine":
        return abs(1 - moved) * _mixing(experiment)
    if sync.exchange == "random":  # E|W x - lr h x|², where E[W] and E[WᵀW] have the same second eigenvalue
        return float(np.sqrt(_mixing(experiment) ** 2 * (1 - 2 * moved) + moved**2))
    if sync.exchange == "one_peer":
        return _cycle(n, moved)
    eigenvalues = np.linalg.eigvalsh(mixing_matrix(neighbours(sync, n, experiment.seed)))
    return float(np.abs(eigenvalues[:-1] - moved).max())


def _cycle(n: int, moved: float) -> float:
    """Return the mean factor of a round with one peer.

    Rounds are circulant, so their eigenvalues multiply.
    """
    rounds = (n - 1).bit_length()
    turns = [2j * np.pi * one_peer_shift(r, n) / n * np.arange(1, n) for r in range(rounds)]
    product = np.prod([(1 + np.exp(turn)) / 2 - moved for turn in turns], axis=0)
    return float(np.abs(product).round(12).max() ** (1 / rounds))


def _mixing(experiment: Experiment) -> float:
    """Return the factor of averaging without gradients."""
    sync, n, seed = experiment.sync, experiment.workers, experiment.seed
    if sync.exchange == "push_sum":
        return second_eigenvalue(pushing_matrix(receivers(sync, n, seed)))
    if sync.exchange == "random":
        return float(np.sqrt((n - sync.peers - 1) / ((sync.peers + 1) * (n - 1))))
    if sync.exchange == "one_peer":
        return _cycle(n, 0.0)
    graph = neighbours(sync, n, seed)
    if sync.exchange == "neighbours":
        return second_eigenvalue(mixing_matrix(graph))
    active, kept = partners(graph)
    asking = [worker for worker in sorted(active) if kept[worker]]
    asked = np.zeros((n, n))
    for i in asking:
        asked[i, kept[i]] = 1 / len(kept[i])
    # One average is a projection, W = WᵀW = I - dd'/2 with d = e_i - e_j: dd' add up to a Laplacian.
    both = asked + asked.T
    expected = np.eye(n) - (np.diag(both.sum(axis=0)) - both) / 2 / len(asking)
    return float(second_eigenvalue(expected) ** (len(asking) / 2))
