"""Record of a published system: its design choices, the experiments that run it, and its authors' figures.

    record ─► experiments ─► runs ─► compare ─► a Found for each figure

The axes are those of Ben-Nun and Hoefler (ACM Computing Surveys 52(4), 2019, section 7).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import JobFailed, spmd
from dlpar.jobs.run import Run
from dlpar.lab.sweep import run_all

Runs = Mapping[str, Any]
"""Finished runs, and results of programs, by their names."""

Program = Callable[[], Any]
"""A function that a system runs instead of an experiment. It returns a result."""


class BadSystem(ValueError):
    """Error: no system has this name. The message lists similar names."""


@dataclass(frozen=True)
class Figure:
    """Figure that a system's authors report, and a function that reads it from runs.

    Attributes
    ----------
    what : str
        The quantity, with its unit.
    published : float
        The authors' figure. For a shape it is 1, which means true.
    ours : callable
        ``ours(runs)`` returns our figure or, for a shape, whether the shape is true.
    tolerance : float, default 0.1
        Largest relative difference.
    basis : str, default ``"reported"``
        ``"reported"``: by the authors; ``"fitted"``: a parameter of ours was fitted to the figure; ``"shape"``: an
        order or an optimum, not a number; ``"memory"``: not checked at its source, so no test depends on it.
    """

    what: str
    published: float
    ours: Callable[[Runs], float]
    tolerance: float = 0.1
    basis: Literal["reported", "fitted", "shape", "memory"] = "reported"


@dataclass(frozen=True)
class System:
    """Published system.

    Attributes
    ----------
    name, title, source : str
        Name for ``dlpar systems NAME``, name as its authors write it, and publication.
    year : int
    consistency, parameters, training : str
        Place on the three axes: consistency of the model; distribution of parameters (centralised, sharded,
        hierarchical, decentralised); distribution of training (one model, averaged models).
    mechanism : str
        Mechanism that runs here.
    experiments : callable
        Returns the experiments by name, or programs if the system starts scripts.
    figures : tuple of Figure
    missing : str, default ``""``
        Parts of the system that do not run here.
    """

    name: str
    title: str
    year: int
    source: str
    consistency: str
    parameters: str
    training: str
    mechanism: str
    experiments: Callable[[], Mapping[str, Experiment | Program]]
    figures: tuple[Figure, ...]
    missing: str = ""


class Found(NamedTuple):
    """Our figure with the published value. `held` is None if no test depends on the figure."""

    what: str
    basis: str
    published: float
    ours: float
    tolerance: float
    held: bool | None


def program(path: str, *given: Any, ranks: int, platform: str = "cpu-10gbe", **where: Any) -> Program:
    """Return a program that runs a function on simulated ranks.

    The function is given by name, which avoids loading torch early.

    Parameters
    ----------
    path : str
        Name in this package, such as ``"words:train"``. It is called with the ranks' communicator and the
        given arguments.
    """
    where = {"world": "simulated", **where, "platform": platform_file(platform)}
    return lambda: spmd(called(path), *given, workers=ranks, **where)


def called(path: str) -> Callable[..., Any]:
    """Return the function of this package with a given name, such as ``"words:accuracy"``."""
    return resolve_name(f"dlpar.systems.{path}")


def find(name: str, systems: Iterable[System]) -> System:
    """Return the system with this name.

    Raises
    ------
    BadSystem
        If there is none. The message is one sentence with similar names.
    """
    known = {system.name: system for system in systems}
    if name not in [*known]:
        titles = {t.lower(): one.name for one in known.values() for t in (one.name, one.title.split(",")[0])}
        alike = dict.fromkeys(titles[n] for n in difflib.get_close_matches(str(name).lower(), titles, 3, 0.4))
        such = f", such as {', '.join(alike)}" if alike else ""
        raise BadSystem(f"NAME: got {name!r}, allowed is a name that `dlpar systems` lists{such}")
    return known[name]


def run(system: System, jobs: int = 2) -> Runs:
    """Run a system's experiments or programs, `jobs` at a time, and wait for all.

    Raises
    ------
    JobFailed
        If a job fails. The message names the job.
    """
    wanted = system.experiments()
    experiments = {name: each for name, each in wanted.items() if isinstance(each, Experiment)}
    found = dict(zip(experiments, run_all(list(experiments.values()), jobs=jobs)))
    for name, outcome in found.items():
        if outcome.status != "done":
            raise JobFailed(f"{system.title}: the run {name!r} {outcome.status}: {outcome.reason}")
    return {name: found[name].run if name in found else each() for name, each in wanted.items()}


def compare(system: System, runs: Runs, some: bool = False) -> list[Found]:
    """Compare a system's published figures with those of its finished runs. If `some` are given, leave out others'."""
    found = []
    for each in system.figures:
        with suppress(KeyError) if some else nullcontext():
            ours = float(each.ours(runs))
            is_near = abs(ours - each.published) <= each.tolerance * abs(each.published)
            held = None if each.basis == "memory" else is_near
            found.append(Found(each.what, each.basis, each.published, ours, each.tolerance, held))
    return found


def by_sizes(platform: str, payload: str | None = None, **fields: Any) -> Experiment:
    """Return a simulation in weak scaling. Its messages carry only sizes.

    Parameters
    ----------
    platform : str
        Name of a platform, or of one of our files: see :func:`platform_file`.
    payload : str, optional
        Workload whose bytes and FLOPs are charged.
    **fields
        Fields of the experiment.
    """
    charged = {"platform": platform_file(platform), "stand_in_for": payload}
    cluster = {"world": "simulated", "messages": "sizes", **charged, **fields.pop("cluster", {})}
    return Experiment(scaling="weak", evaluate_every=100_000, cluster=cluster, **fields)


def platform_file(name: str) -> str:
    """Return the file of a platform of a lab or of a published system, or the name of any other platform."""
    file = Path(__file__).with_name("platforms") / f"{name}.toml"
    return str(file) if file.exists() else name


def rate(run: Run) -> float:
    """Return the samples per second of all workers. If there are several steps, the first is left out."""
    samples, seconds = run.experiment.mean_batch, run.curve["seconds"]
    if len(seconds) < 2:
        return samples / seconds.iloc[-1]
    return samples * (len(seconds) - 1) / (seconds.iloc[-1] - seconds.iloc[0])


def shape(what: str, holds: Callable[[Runs], Any]) -> Figure:
    """Return a figure that is an order or an optimum instead of a number. It is true or false."""
    return Figure(what, 1.0, lambda runs: float(bool(holds(runs))), 0.0, "shape")


def apart(first: Run, *others: Run) -> float:
    """Return the largest relative difference between a run's losses and the first run's.

    Return NaN if a loss is NaN or missing.
    """
    right = first.curve["loss"]
    return float(np.max([(run.curve["loss"] / right - 1).abs().to_numpy().max() for run in others]))


def same_as_alone(**fields: Any) -> dict[str, Experiment]:
    """Return a short float64 training run by a system and the same run by one process."""
    training = {"workers": 4, "steps": 20, "dtype": "float64", "evaluate_every": 1000}
    cluster = {"world": "simulated", **fields.pop("cluster", {})}
    system = Experiment(**{**training, **fields}, cluster=cluster)
    kept = {name: fields[name] for name in ("model", "data", "optimizer", "batch", "lr") if name in fields}
    alone = Experiment(**{**training, **kept, "workers": 1}, cluster={"world": "simulated"})
    return {"system": system, "one process": alone}


PARITY = shape(
    "the same losses as one process, to 1e-9", lambda runs: apart(runs["one process"], runs["system"]) < 1e-9
)
"""Figure of a synchronous system: it trains exactly as one process does."""
