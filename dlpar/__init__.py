"""dlpar: see parallel deep learning happen.

The names a notebook needs; each is loaded when first used, so that importing
``dlpar`` costs next to nothing and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Experiment": "dlpar.experiment",
    "BadExperiment": "dlpar.schema",
    "launch": "dlpar.launcher.job",
    "Job": "dlpar.launcher.job",
    "JobFailed": "dlpar.launcher.job",
    "spmd": "dlpar.launcher.spmd",
    "Run": "dlpar.run",
    "runs": "dlpar.run",
}

__all__ = [*_HOME, "lab"]

if TYPE_CHECKING:
    from dlpar import lab
    from dlpar.experiment import Experiment
    from dlpar.launcher.job import Job, JobFailed, launch
    from dlpar.launcher.spmd import spmd
    from dlpar.run import Run, runs
    from dlpar.schema import BadExperiment


def __getattr__(name: str) -> Any:
    if name == "lab":
        return import_module("dlpar.lab")
    if name not in _HOME:
        raise AttributeError(f"module 'dlpar' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
