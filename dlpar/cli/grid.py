"""From flags with several values to the experiments of a sweep."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from dlpar.cli import flags
from dlpar.cli.flags import Flag
from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.lab.sweep import check, grid

MOST = 1000
"""Experiments of a sweep."""

TOLD = 10
"""Combinations that are refused by name; of more, how many there are."""


class Asked(NamedTuple):
    """One experiment of a sweep.

    Attributes
    ----------
    values : dict of str to str or None
        What was typed for each flag that has several values, by its name without the hyphens; None
        where the flag means nothing beside the others.
    experiment : Experiment
    """

    values: dict[str, str | None]
    experiment: Experiment


def read(given: dict[str, list[Any] | None], file: str | None = None) -> list[Asked]:
    """Every combination of the values typed, in the schema's order; numbers of workers vary fastest.

    Parameters
    ----------
    given : dict
        Lists of what was typed, by parameter name; None or empty was not typed.
    file : str, optional
        JSON of an experiment, which flags change.

    Raises
    ------
    BadExperiment
        A line for each combination that cannot be.
    """
    typed = {flag: values for flag in flags.flags() if (values := _values(flag, given.get(flag.parameter)))}
    typed = dict(sorted(typed.items(), key=lambda one: one[0].spelling == "--workers"))  # they vary fastest
    several = [flag for flag, values in typed.items() if len(values) > 1]
    count = 1
    for values in typed.values():
        count *= len(values)
    if count > MOST:
        names = ", ".join(flag.spelling for flag in several)
        raise BadExperiment(f"{names}: got {count:,} combinations, allowed are at most {MOST:,}")
    found: dict[tuple, Asked] = {}
    refused: dict[str, list[str]] = {}
    for combination in grid(typed):
        meant = {flag: value for flag, value in combination.items() if not _idle(flag, combination, typed)}
        key = tuple(meant.items())
        if key in found:
            continue
        words = {flag.spelling[2:]: _shown(meant.get(flag)) for flag in several}
        try:
            experiment = flags.read({flag.parameter: value for flag, value in meant.items()}, file)
            _check(experiment)
            found[key] = Asked(words, experiment)
        except BadExperiment as error:
            refused.setdefault(str(error), []).append(
                " ".join(f"{name} {v}" for name, v in words.items() if v)
            )
    if refused:
        raise BadExperiment("\n".join(_line(message, where) for message, where in refused.items()))
    return list(found.values())


def _check(experiment: Experiment) -> None:
    """Refuse what this machine cannot run, fields named as flags."""
    try:
        check([experiment])
    except BadExperiment as error:
        raise BadExperiment(flags.as_flags(str(error))) from None


def _values(flag: Flag, typed: list[Any] | None) -> list[Any]:
    """The values in what was typed for a flag, each once."""
    if not typed or flag.is_switch:
        return list(dict.fromkeys(typed or []))
    between = ";" if flag.has_commas else ","
    return list(dict.fromkeys(value.strip() for text in typed for value in text.split(between)))


def _idle(flag: Flag, combination: dict[Flag, Any], typed: dict[Flag, list[Any]]) -> bool:
    """Whether a flag belongs to another kind of part than this combination has, but to one that others have."""
    if flag.is_head or not flag.kinds:
        return False
    head = next((f for f in combination if f.is_head and f.path[0] == flag.path[0]), None)
    return head is not None and combination[head] not in flag.kinds and bool({*typed[head]} & {*flag.kinds})


def _shown(value: Any) -> str | None:
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


def _line(message: str, where: list[str]) -> str:
    """One complaint, and the combinations it is about."""
    where = [re.sub(r"\s+", " ", words) for words in where if words]
    if not where:
        return message
    more = f" and {len(where) - TOLD} more" if len(where) > TOLD else ""
    return f"{message} ({'; '.join(where[:TOLD])}{more})"
