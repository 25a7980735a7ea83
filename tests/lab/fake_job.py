"""A stand-in for jobs of a sweep."""

from __future__ import annotations

from typing import ClassVar

import pytest

from dlpar import Experiment
from dlpar.lab import sweep


class FakeJob:
    """A job that ends after so many looks; keeps count of those at work."""

    at_work: ClassVar[list[FakeJob]] = []
    together: ClassVar[list[list[str]]] = []

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.looks, self.status = experiment, 3, "done"
        self.run = self
        self.reason = f"seed {experiment.seed} fails" if experiment.seed else ""
        self.at_work.append(self)
        self.together.append([job.experiment.cluster.world for job in self.at_work])

    @property
    def ended(self) -> bool:
        self.looks -= 1
        if self.looks == 0:
            self.at_work.remove(self)
            self.status = "failed" if self.experiment.seed else "done"
        return self.looks <= 0

    def stop(self) -> None:
        if self in self.at_work:
            self.at_work.remove(self)
            self.status = "stopped"


def fake_jobs(monkeypatch: pytest.MonkeyPatch) -> type[FakeJob]:
    """Have sweeps launch these instead of real jobs."""
    monkeypatch.setattr(FakeJob, "at_work", [])
    monkeypatch.setattr(FakeJob, "together", [])
    monkeypatch.setattr(sweep, "launch", FakeJob)
    monkeypatch.setattr(sweep, "LOOK", 0.0)
    return FakeJob
