"""Experiments of the labs, each with the belief that it tests and the result that it must show.

Each lab has a module with its notebook's name, which ends in a table of rows.  Notebooks call an experiment
by its name, such as `lab.presets.mean_of_means()`.  `dlpar rehearse` and the tests run whole tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.course.curriculum import labs as curriculum
from dlpar.course.rehearse import Row

BESIDE = """CLUSTER CLUSTERS GPUS H100 HOROVOD LAUNCH LINKS MEMORY MICRO_BATCHES ONE_GPU_EACH OWN_CARDS RACK
RECORDING SHARED_CARDS conflicts cores gpu_source in_turn most_held parts_ms""".split()
"""Names in the labs' modules that notebooks use besides presets."""

_modules = {n: import_module(f"{__name__}.{lab.file.partition('_')[2]}") for n, lab in curriculum().items()}


def on_cpu(runs: Any) -> Any:
    """Choose the CPU in real experiments, because the labs describe processors."""
    if isinstance(runs, Experiment):
        return runs.replace(cluster={"device": "cpu"}) if runs.cluster.world == "real" else runs
    if isinstance(runs, (list, tuple)):
        return type(runs)(map(on_cpu, runs))
    return {name: on_cpu(run) for name, run in runs.items()} if type(runs) is dict else runs


def _stated(preset: Callable[..., Any] | None) -> Callable[..., Any] | None:
    return preset and wraps(preset)(lambda *given, **named: on_cpu(preset(*given, **named)))


_row = lambda row: row._replace(preset=_stated(row.preset), runs=_stated(row.runs))
TABLES: dict[str, tuple[Row, ...]] = {n: tuple(map(_row, module.TABLE)) for n, module in _modules.items()}
"""Rows of each lab, by its number."""


def rows(labs: Sequence[str] = ()) -> list[tuple[str, Row]]:
    """Return the rows of some labs, such as ``["00", "03"]``, each with the lab's number.

    The default is all labs.

    Raises
    ------
    ValueError
        If there is no such lab.
    """
    if unknown := [lab for lab in labs if lab not in TABLES]:
        raise ValueError(f"got {unknown[0]!r}, allowed is any of {', '.join(TABLES)}")
    return [(lab, row) for lab, table in TABLES.items() for row in table if not labs or lab in labs]


for _module in _modules.values():
    globals().update({name: value for name, value in vars(_module).items() if name in BESIDE})
globals().update({row.name: row.preset for _, row in rows()})
