"""Runs of the simulated world for tables of others: platforms and payloads are files, as a user would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simulations import simulation_of

from dlpar import Experiment, Run


def of_sizes(
    folder: Path,
    platform: dict[str, Any],
    payload: str | dict[str, Any],
    cluster: dict[str, Any] | None = None,
    **fields: Any,
) -> Experiment:
    """A simulation whose messages carry sizes only.

    Parameters
    ----------
    folder : path
        Where the files are written.
    platform : dict
        Fields of a platform.
    payload : str or dict
        A workload's name, or the fields of one.
    cluster : dict, optional
        Further fields of the cluster.
    **fields
        Of the experiment; scaling is weak.
    """
    files = {"platform": platform} | ({"payload": payload} if isinstance(payload, dict) else {})
    for name, thing in files.items():
        (folder / f"{name}.json").write_text(json.dumps(thing))
    where = {
        "world": "simulated",
        "messages": "sizes",
        "platform": str(folder / "platform.json"),
        "stand_in_for": payload if isinstance(payload, str) else str(folder / "payload.json"),
    }
    return Experiment(scaling="weak", cluster={**where, **(cluster or {})}, **fields)


def simulated(folder: Path, *given: Any, **fields: Any) -> Run:
    """The same, finished."""
    return simulation_of(of_sizes(folder, *given, **fields), folder / "run")
