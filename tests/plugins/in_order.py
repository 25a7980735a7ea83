"""A schedule from outside: all forward passes, then all backward passes, both in the order of micro-batches."""

from __future__ import annotations

from dlpar.config.split import Traits
from dlpar.split.schedules import Action, register


def in_order(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """The actions of one stage."""
    return [Action(kind, micro) for kind in "FB" for micro in range(microbatches)]


register("in-order", in_order, Traits())
