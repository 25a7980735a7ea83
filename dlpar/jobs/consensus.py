"""Consensus distance of a run: how far its replicas are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

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
