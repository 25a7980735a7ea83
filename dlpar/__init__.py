"""A lab for parallel and distributed deep learning.

This module exports the names that a notebook needs.  Each name is loaded at its first use, so ``import
dlpar`` is quick and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlpar import lab
    from dlpar.config.experiment import Experiment
    from dlpar.config.schema import BadExperiment
    from dlpar.jobs.launch import Job, JobFailed, launch, resume, spmd
    from dlpar.jobs.run import Run, runs

__version__ = "0.1.0"

__all__ = [
    "BadExperiment",
    "Experiment",
    "Job",
    "JobFailed",
    "Run",
    "lab",
    "launch",
    "resume",
    "runs",
    "spmd",
]

_HOME = {
    "Experiment": "config.experiment",
    "BadExperiment": "config.schema",
    **dict.fromkeys(("launch", "resume", "spmd", "Job", "JobFailed"), "jobs.launch"),
    **dict.fromkeys(("Run", "runs"), "jobs.run"),
}


def __getattr__(name: str) -> Any:
    if name == "lab":
        return import_module("dlpar.lab")
    if name == "Experiment":
        import_module("dlpar.worlds.platforms")  # adds its rule
    if name not in _HOME:
        raise AttributeError(f"module 'dlpar' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"dlpar.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
