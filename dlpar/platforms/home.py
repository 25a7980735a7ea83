"""Where the ranks of an experiment live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlpar.platforms.lookup import HERE, platform
from dlpar.platforms.placement import placement
from dlpar.platforms.platform import Platform

if TYPE_CHECKING:
    from dlpar.experiment import Experiment

USUAL = "p100-25gbe"
"""The platform of paced and simulated ranks, unless the experiment names another."""


def platform_of(experiment: Experiment) -> Platform:
    """The platform an experiment runs on; of real ranks, this machine as it was measured.

    Raises
    ------
    BadExperiment
        If there is no such platform, or this machine has not been measured.
    """
    cluster = experiment.cluster
    return platform(cluster.platform or (HERE if cluster.world == "real" else USUAL))


def nodes_of(experiment: Experiment) -> list[int]:
    """The node of every rank; raises `BadExperiment` where the platform does not hold them."""
    extra = experiment.ranks - experiment.workers
    return placement(
        experiment.workers, extra, platform_of(experiment), experiment.cluster.placement == "colocated"
    )
