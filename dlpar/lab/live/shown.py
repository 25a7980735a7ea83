"""Which ranks are drawn one by one: of thousands, the first few."""

from __future__ import annotations

from dlpar.experiment import Experiment

WORKERS = 16
"""Workers with a line, a lane or a row of their own; more could not be told apart."""

OTHERS = 4
"""Servers and leaves drawn beside them."""


def workers(experiment: Experiment) -> int:
    """How many workers are drawn: ranks 0 to that."""
    return min(experiment.workers, WORKERS)


def crowded(experiment: Experiment) -> bool:
    """Whether not all workers are drawn."""
    return experiment.workers > WORKERS


def ranks(experiment: Experiment) -> list[int]:
    """Ranks drawn where servers are drawn, too."""
    first = range(experiment.workers, experiment.ranks)
    return [*range(workers(experiment)), *(first if experiment.workers <= WORKERS else first[:OTHERS])]


def note(experiment: Experiment, sentence: str) -> str:
    """`sentence`, and that not all workers are drawn, if so."""
    if not crowded(experiment):
        return sentence
    return f"{sentence} Drawn are the first {WORKERS} of {experiment.workers:,} workers."
