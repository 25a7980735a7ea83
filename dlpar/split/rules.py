"""What a split and the rest of an experiment must satisfy together: each rule gives a sentence, or None."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.experiment import Experiment


def ways(e: Experiment) -> int:
    """Ranks that share one model."""
    return math.prod(e.split.axes(e.workers).values())


def _sizes_multiply(e: Experiment) -> str | None:
    axes = e.split.axes(e.workers)
    if e.workers % ways(e):
        product = " × ".join(f"{size} ({axis})" for axis, size in axes.items())
        name, size = max(axes.items(), key=lambda axis: axis[1])
        field = {"pipeline": "stages"}.get(name, name)
        return f"split.{field}: got {size}, allowed with {e.workers} workers is sizes whose product divides {e.workers}, not {product}"
    named = getattr(e.split, "order", "")
    if named and set(named.split(",")) != {"data", *axes}:
        return f"split.order: got {named!r}, allowed with split {e.split} is each of {', '.join(['data', *axes])} once"
    return None


def _parts_have_servers(e: Experiment) -> str | None:
    if e.sync.scheme != "ps" or ways(e) == 1:
        return None
    for name in ("servers", "groups"):
        number = getattr(e.sync, name)
        if number % ways(e):
            return (
                f"sync.{name}: got {number}, allowed with a model on {ways(e)} ranks is a multiple of {ways(e)}: "
                f"each part has {'servers' if name == 'servers' else 'leaves'} of its own"
            )
    return None


def _parts_agree(e: Experiment) -> str | None:
    """What a scheme decides for one part of a model, it must decide for all."""
    if ways(e) == 1:
        return None
    if e.sync.scheme == "hogwild":
        return f"sync.scheme: got 'hogwild', allowed with split {e.split} is another: its workers share one whole model"
    if getattr(e.sync, "tolerance", 0.0):
        return f"sync.tolerance: got {e.sync.tolerance:g}, allowed with split {e.split} is 0: each part would stop by itself"
    if e.model.norm != "none":
        return f"model.norm: got {e.model.norm!r}, allowed with split {e.split} is none"
    if getattr(e.sync, "overlap", False) and e.split.kind in ("pipeline", "hybrid"):
        return f"sync.overlap: got True, allowed with split {e.split} is False: gradients are whole when the last micro-batch is"
    return None


RULES = (_sizes_multiply, _parts_have_servers, _parts_agree)
