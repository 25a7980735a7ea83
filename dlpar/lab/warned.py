"""What a student should know of an experiment before it is run."""

from __future__ import annotations

from dlpar.experiment import Experiment
from dlpar.lab.live.consensus import disagreement
from dlpar.lab.long_simulation import foreseen


def warning(experiment: Experiment) -> str:
    """That workers cannot agree, that it takes long; empty where there is nothing to say."""
    return " ".join(filter(None, (disagreement(experiment), foreseen(experiment))))
