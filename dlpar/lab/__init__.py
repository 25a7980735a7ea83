"""Names for notebooks: panels, figures, predictions, checks and source. Each is loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

NAMES = {
    "dlpar.lab.panel": "Panel compare",
    "dlpar.lab.prediction": "predict",
    "dlpar.lab.exchange": "predictions forget_predictions",
    "dlpar.lab.animation": "animate",
    "dlpar.lab.figures.cost": "ping_pong time_collectives predict_collectives",
    "dlpar.lab.figures.scaling": "scaling",
    "dlpar.lab.figures": (
        "overlay first_at time_to_accuracy staleness lead lanes waiting consensus show_graph "
        "schedule micro_batches memory mesh pieces pipeline layer_bytes"
    ),
    "dlpar.course.source": "show",
    "dlpar.course.judge": "check check_on_ranks",
    "dlpar.course.exercises.server": "check_server check_backup",
    "dlpar.course.exercises.formulas": "check_efficiency check_all_sent check_grid check_interval check_step",
    "dlpar.course.exercises.schedule": "check_schedule",
    "dlpar.course.exercises.parity": "check_scheme check_zero check_layers",
    "dlpar.systems.surviving": "goodput time_spent",
    "dlpar.systems.field": "field field_map place_of published system_panel choose_system task_bound",
    "dlpar.worlds.devices": "gpus",
    "dlpar.course.curriculum": "course self_test glossary tooltips what_runs deck",
}
"""Names for notebooks, by module."""

MODULES = {"figures": "dlpar.lab.figures", "presets": "dlpar.course.labs"}
"""Modules, by their names in a notebook."""

_MODULE_OF = {name: module for module, names in NAMES.items() for name in names.split()}

__all__ = [*_MODULE_OF, *MODULES]


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return import_module(MODULES[name])
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dlpar.lab' has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(_MODULE_OF[name]), name))


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
