"""Closed form of averaging with neighbours: the rate at which replicas agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlpar import graphs

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment

ROUNDS = 100
"""Maximum number of rounds of pairwise averages that are computed."""


def contraction(experiment: Experiment) -> float:
    """Return the long-run factor by which a step shrinks the consensus distance, without gradients.

    Parameters
    ----------
    experiment : Experiment
        Its ``sync`` is gossip. Of a cut model, the replicas of each part average.

    Returns
    -------
    float
        From 0 (replicas agree after one step) to 1 (they never agree).  With neighbours, |λ₂| of the mixing
        matrix; with push-sum, |λ₂| of the matrix of shares.  With random peers, the root of the second
        eigenvalue of E[WᵀW] (Boyd et al., IEEE Trans. Inf. Theory 2006), which for k distinct peers is (N - k
        - 1) / ((k + 1)(N - 1)).  Pairwise, the root of the factor of the expected square, if every active
        worker averages once per step; averages may take longer.  With one peer, the mean factor of the steps
        of a cycle, 0 if N is a power of two.

    Raises
    ------
    ValueError
        If replicas average with nobody in particular, or not in each step.
    """
    experiment = experiment.of_replicas()
    sync, n, seed = experiment.sync, experiment.workers, experiment.seed
    if not hasattr(sync, "exchange") or experiment.averaging.method != "none":
        raise ValueError(f"sync: got {sync}, allowed is gossip in each step, without averaging")
    if n == 1:
        return 0.0
    if sync.exchange == "push_sum":
        return graphs.second_eigenvalue(graphs.pushing_matrix(graphs.receivers(sync, n, seed)))
    if sync.exchange == "random":  # E[W] and E[WᵀW] have the same second eigenvalue
        return float(np.sqrt((n - sync.peers - 1) / ((sync.peers + 1) * (n - 1))))
    if sync.exchange == "one_peer":
        return _cycle(n)
    graph = graphs.neighbours(sync, n, seed)
    if sync.exchange == "pairwise":
        return _in_pairs(*graphs.partners(graph))
    return graphs.second_eigenvalue(graphs.mixing_matrix(graph))


def _cycle(n: int) -> float:
    """Return the mean factor of a round with one peer.

    Rounds are circulant, so their eigenvalues multiply.
    """
    rounds = (n - 1).bit_length()
    turns = [2j * np.pi * graphs.one_peer_shift(r, n) / n * np.arange(1, n) for r in range(rounds)]
    product = np.prod([(1 + np.exp(turn)) / 2 for turn in turns], axis=0)
    return float(np.abs(product).round(12).max() ** (1 / rounds))


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
