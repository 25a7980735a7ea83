"""What is charged for a FLOP and a byte where time is a platform's, and a model may stand in for a larger one."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from dlpar.platforms import Workload, platform_of, workload

if TYPE_CHECKING:
    from dlpar.experiment import Experiment


def charges(experiment: Experiment) -> tuple[float, float]:
    """Bytes charged for each byte sent, and FLOP/s the devices of an experiment's platform sustain on its model.

    Where ranks compute a small model in place of ``cluster.stand_in_for``, each of its
    FLOPs and bytes stands for as many as make up the workload's; where messages carry
    sizes only, they carry the workload's own.
    """
    cluster, platform = experiment.cluster, platform_of(experiment)
    charged = workload(cluster.stand_in_for) if cluster.stand_in_for else None
    scale, work = (
        (1.0, 1.0) if charged is None or cluster.messages == "sizes" else _in_place_of(experiment, charged)
    )
    seconds = work * platform.seconds(1.0, charged)
    return scale, 1 / seconds if seconds else inf


def _in_place_of(experiment: Experiment, charged: Workload) -> tuple[float, float]:
    """How many bytes and FLOPs of the workload one of the model stands for."""
    import torch

    from dlpar import models
    from dlpar.data import load

    dataset = load(experiment.data, experiment.seed, getattr(torch, experiment.dtype), experiment.model.name)
    model = models.build(experiment, dataset)
    own = sum(p.numel() * p.element_size() for p in model.parameters())
    return charged.in_place_of(own, models.flops_per_sample(model, dataset))
