"""Flags that change nothing beside the others: said, for they are hardly meant; not refused, for sweeps have some."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import reduce
from typing import Any

from dlpar.cli import flags
from dlpar.cli.flags import Flag
from dlpar.config.applicable import missing
from dlpar.config.experiment import Experiment

NOT_TOLD = {
    "run": ("cluster.threads",),
    "sweep": ("cluster.threads", "cluster.platform", "cluster.placement"),
}
"""Fields that do something all the same: a simulation takes less time with threads, and a sweep's prediction of real
ranks is for their platform."""


def tell(command: str, given: dict[str, Any], experiments: Sequence[Experiment]) -> None:
    """Say on standard error, a sentence each, which flags have no effect in any of the experiments.

    Parameters
    ----------
    command : str
        ``run`` or ``sweep``.
    given : dict
        What was typed, by parameter name: text or a switch, of a sweep a list of them; None was not typed.
    experiments : sequence of Experiment
        What it came to.
    """
    for flag in flags.flags():
        typed = given.get(flag.parameter)
        if typed in (None, []) or flag.name in NOT_TOLD[command]:
            continue
        lacks = [missing(flag.name, lambda path: _value(experiment, path)) for experiment in experiments]
        if all(lacks):
            said = f"{_typed(flag, typed)} has no effect: it is meant with {_flags(*lacks[0])}"
            print(f"dlpar {command}: {said}", file=sys.stderr)


def _value(experiment: Experiment, path: str) -> Any:
    """The value of a field, None where a part is of a kind without it."""
    return reduce(lambda part, name: getattr(part, name, None), path.split("."), experiment)


def _typed(flag: Flag, typed: Any) -> str:
    """The flag as it was typed, once for each of several values."""
    each = typed if isinstance(typed, list) else [typed]
    if flag.is_switch:
        return " ".join(flag.spelling if on else flag.negation for on in each)
    return " ".join(f"{flag.spelling} {text}" for text in each)


def _flags(beside: str, values: Sequence[str]) -> str:
    """``--exchange neighbours, pairwise or push_sum``."""
    spelling = next(flag.spelling for flag in flags.flags() if flag.name == beside)
    *before, last = values
    return f"{spelling} {', '.join(before)}{' or ' if before else ''}{last}"
