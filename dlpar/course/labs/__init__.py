"""The labs' experiments, each with the belief it tests and what must show.

One module for each lab ends in its table of rows.  Notebooks call an experiment by its name, as
`lab.presets.mean_of_means()`; `dlpar rehearse` and the tests run whole tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from dlpar.course.labs.data_parallel import CLOUD, EPOCH, ONE_GPU_EACH, read_an_epoch
from dlpar.course.labs.first_parallel_run import RECORDING
from dlpar.course.labs.hogwild import in_turn
from dlpar.course.labs.hybrid import CLUSTERS
from dlpar.course.labs.mapreduce import CLUSTER
from dlpar.course.labs.model_parallel import LINKS
from dlpar.course.labs.pipeline import MICRO_BATCHES, RACK
from dlpar.course.labs.ring_allreduce import OWN_CARDS, SHARED_CARDS
from dlpar.course.labs.scaling import GPUS, HOROVOD
from dlpar.course.rehearse import Row
from dlpar.jobs.control_groups import cores

LABS = (
    "first_parallel_run", "mapreduce", "parameter_server", "ring_allreduce", "gossip", "hogwild", "scaling",
    "data_parallel", "model_parallel", "pipeline", "hybrid",
)  # fmt: skip
"""Modules of the labs 00, 01, …"""

_modules = [import_module(f"{__name__}.{lab}") for lab in LABS]
TABLES: dict[str, tuple[Row, ...]] = {f"{n:02}": module.TABLE for n, module in enumerate(_modules)}
"""Rows of each lab, by its number."""


def rows(labs: Sequence[str] = ()) -> list[tuple[str, Row]]:
    """Rows of some labs, such as ``["00", "03"]``, each with the lab's number; by default of all.

    Raises
    ------
    ValueError
        If there is no such lab.
    """
    if unknown := [lab for lab in labs if lab not in TABLES]:
        raise ValueError(f"got {unknown[0]!r}, allowed is any of {', '.join(TABLES)}")
    return [(lab, row) for lab, table in TABLES.items() for row in table if not labs or lab in labs]


globals().update({row.name: row.preset for _, row in rows()})
