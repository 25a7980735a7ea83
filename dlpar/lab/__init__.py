"""What a notebook shows: panels, figures, predictions, checks and source, each loaded when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "Panel": "dlpar.lab.panel",
    "compare": "dlpar.lab.comparison",
    "scaling": "dlpar.lab.speedup",
    "LivePlot": "dlpar.lab.live_plot",
    "predict": "dlpar.lab.prediction",
    "check": "dlpar.course.judge",
    "check_on_ranks": "dlpar.course.judge",
    "check_scheme": "dlpar.course.exercises.scheme",
    "check_server": "dlpar.course.exercises.server",
    "check_efficiency": "dlpar.course.exercises.formulas",
    "check_zero": "dlpar.course.exercises.zero",
    "check_schedule": "dlpar.course.exercises.schedule",
    "check_grid": "dlpar.course.exercises.formulas",
    "check_layers": "dlpar.course.exercises.layers",
    "show": "dlpar.lab.source",
    "glossary": "dlpar.course.glossary",
    **dict.fromkeys(("term", "tooltips"), "dlpar.course.glossary"),
    **dict.fromkeys(("course", "self_test"), "dlpar.course.curriculum"),
    **dict.fromkeys(("predictions", "forget_predictions"), "dlpar.lab.ledger"),
    "animate": "dlpar.lab.animation",
    "ping_pong": "dlpar.lab.timing",
    "time_collectives": "dlpar.lab.timing",
    "predict_collectives": "dlpar.lab.timing",
    **dict.fromkeys(("overlay", "time_to_accuracy", "staleness", "lead", "lanes"), "dlpar.lab.figures"),
    **dict.fromkeys(("waiting", "bytes_per_rank", "consensus", "show_graph"), "dlpar.lab.figures"),
    **dict.fromkeys(("schedule", "micro_batches"), "dlpar.lab.figures"),
    **dict.fromkeys(("memory", "mesh", "pieces", "pipeline", "layer_bytes"), "dlpar.lab.figures"),
}
_MODULES = {"figures": "dlpar.lab.figures", "presets": "dlpar.course.labs"}

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOME:
        raise AttributeError(f"module 'dlpar.lab' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
