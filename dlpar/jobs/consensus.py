"""How far the replicas of a gossip run are apart, and how fast their graph should bring them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlpar.graphs import mixing_matrix, neighbours, partners, pushing_matrix, receivers, second_eigenvalue

if TYPE_CHECKING:
    import pandas as pd

    from dlpar.config.experiment import Experiment
    from dlpar.jobs.run import Run


def consensus(run: Run) -> pd.DataFrame:
    """The consensus distance of a gossip run, live or finished.

    Returns
    -------
    pandas.DataFrame
        One row per global step: ``step``; ``seconds``, when the last worker had done it;
        ``distance``, the root of the mean over workers of ‖x_i - mean‖², at the weights from
        which the step began.  Where workers do not wait for each other a row is written every
        `workers` worker-steps, from the latest weights of each.  Distances are estimated
        from sketches (:mod:`dlpar.sync.sketch`): about 10 % off, by the same factor all through
        a run.
    """
    import pandas as pd

    rows = [(step, t, float(np.sqrt((_apart(held) ** 2).mean()))) for step, t, held in _moments(run)]
    return pd.DataFrame(rows, columns=["step", "seconds", "distance"])


def from_the_mean(run: Run) -> pd.DataFrame:
    """Each replica's own distance from the mean of all: ``step``, ``seconds``, ``rank``, ``distance``."""
    import pandas as pd

    rows = [
        (step, t, rank, float(distance))
        for step, t, held in _moments(run)
        for rank, distance in enumerate(_apart(held))
    ]
    return pd.DataFrame(rows, columns=["step", "seconds", "rank", "distance"])


def contraction(experiment: Experiment) -> float:
    """The factor by which gossip alone should shrink the consensus distance in a step, in the long run.

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


def _apart(held: np.ndarray) -> np.ndarray:
    """Distance of each row from the mean of all."""
    return np.linalg.norm(held - held.mean(axis=0), axis=1)


def _moments(run: Run) -> list[tuple[int, float, np.ndarray]]:
    """Global steps with their time (s) and the sketches of all workers, (workers, 32)."""
    moments, latest = [], {}
    for done in run.global_steps():
        latest |= done.sketches
        if len(latest) == run.experiment.workers:
            moments.append((done.step, done.seconds, np.array([latest[rank] for rank in sorted(latest)])))
    return moments
