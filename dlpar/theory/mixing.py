"""Closed form of averaging with neighbours: the rate at which replicas agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlpar import graphs

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment

ROUNDS = 100
"""Maximum number of rounds of pairwise averages that are computed."""


def contraction(experiment: Experiment, curvature: float = 0.0) -> float:
    """Return the long-run factor by which a step shrinks the consensus distance, with or without gradients.

    Parameters
    ----------
    experiment : Experiment
        Its ``sync`` is gossip. Of a cut model, the replicas of each part average.
    curvature : float, default 0
        h, if gradients are h x, as for one quadratic loss on all workers.  0: averaging without gradients.

    Returns
    -------
    float
        From 0 (replicas agree after one step) to 1 (they never agree), or more, if gradients drive them apart.
        With neighbours, |λ₂| of the mixing matrix; with push-sum, |λ₂| of the matrix of shares.  With random
        peers, the root of the second eigenvalue of E[WᵀW] (Boyd et al., IEEE Trans. Inf. Theory 2006), which for
        k distinct peers is (N - k - 1) / ((k + 1)(N - 1)).  Pairwise, the root of the factor of the expected
        square, if every active worker averages once per step; averages may take longer.  With one peer, the
        mean factor of the steps of a cycle, 0 if N is a power of two.  If workers adapt and then combine,
        gradients multiply the factor by 1 - lr h.  If they combine and then adapt, gradients subtract lr h from
        each eigenvalue λ (Sayed 2014, sections 7.1 and 7.2).

    Raises
    ------
    ValueError
        If replicas average with nobody in particular, or not in each step.
    """
    experiment = experiment.of_replicas()
    if not hasattr(experiment.sync, "exchange") or experiment.averaging.method != "none":
        raise ValueError(f"sync: got {experiment.sync}, allowed is gossip in each step, without averaging")
    moved = experiment.lr * curvature
    if experiment.workers == 1:
        return 0.0
    if experiment.sync.order == "adapt_then_combine":
        return abs(1 - moved) * _mixing(experiment)
    return _mixing(experiment, moved)


def _cycle(n: int, moved: float) -> float:
    """Return the mean factor of a round with one peer.

    Rounds are circulant, so their eigenvalues multiply.
    """
    rounds = (n - 1).bit_length()
    turns = [2j * np.pi * graphs.one_peer_shift(r, n) / n * np.arange(1, n) for r in range(rounds)]
    product = np.prod([(1 + np.exp(turn)) / 2 - moved for turn in turns], axis=0)
    return float(np.abs(product).round(12).max() ** (1 / rounds))


def _mixing(experiment: Experiment, moved: float = 0.0) -> float:
    """Return the factor of combining, where gradients subtract `moved` from each eigenvalue."""
    sync, n, seed = experiment.sync, experiment.workers, experiment.seed
    if sync.exchange == "push_sum":
        return graphs.second_eigenvalue(graphs.pushing_matrix(graphs.receivers(sync, n, seed)))
    if sync.exchange == "random":  # E|W x - moved x|², where E[W] and E[WᵀW] have the same second eigenvalue
        squared = (n - sync.peers - 1) / ((sync.peers + 1) * (n - 1))
        return float(np.sqrt(squared * (1 - 2 * moved) + moved**2))
    if sync.exchange == "one_peer":
        return _cycle(n, moved)
    graph = graphs.neighbours(sync, n, seed)
    if sync.exchange == "pairwise":
        return _in_pairs(*graphs.partners(graph))
    return float(np.abs(np.linalg.eigvalsh(graphs.mixing_matrix(graph))[:-1] - moved).max())


def _in_pairs(active: set[int], graph: graphs.Graph) -> float:
    """Return the factor of a round in which each active worker averages once, with a random partner.

    An average is W = I - d dᵀ/2, with d = e_i - e_j.  For one active worker after the other, the replicas'
    covariance C becomes the mean of W C W over the worker's partners.  In the long run, a round multiplies C's
    trace by the square of the factor.
    """
    one, factors = np.eye(len(graph)), [0.0]
    centre = one - 1 / len(one)
    # Replicas begin apart mostly in the ways that averages shrink least, so that few rounds suffice.
    slowly = np.linalg.inv((2 + 1e-6) * one - centre - graphs.mixing_matrix(graph))
    spread = np.linalg.matrix_power(slowly, 4)
    for _ in range(ROUNDS):
        spread = centre @ (spread + spread.T) @ centre  # else rounding errors would grow
        spread /= np.trace(spread)
        for worker in active:
            k, rows = len(graph[worker]), [worker, *graph[worker]]
            d = np.c_[np.ones(k), -np.eye(k)]  # without the zeros of other rows
            across = d @ spread[rows] / (2 * k or 1)
            across[:, rows] -= (across[:, rows] * d).sum(axis=1, keepdims=True) * d / 4
            spread[rows] -= d.T @ across
            spread[:, rows] -= across.T @ d
        factors.append(float(np.sqrt(abs(np.trace(spread)))))
        if abs(factors[-1] - factors[-2]) < 1e-5 or factors[-1] < 1e-6:
            return factors[-1]
    return float(np.exp(np.log(factors[ROUNDS // 2 :]).mean()))  # of a factor that alternates
