"""Platforms: clusters on paper, which define the times of paced and simulated ranks.

    workloads.py (models that a small one may stand in for) ─► platform.py (devices, links, clusters)
    ─► lookup.py (by name or from a file; nodes of ranks)      ping_pong.py (timing of a real link)

``tables`` holds the figures of named workloads and clusters, with their sources.
:mod:`dlpar.worlds.simulated.network` defines the rules of the network.
"""
# ruff: noqa: F401  these names are for other packages

from __future__ import annotations

from dlpar.config import rules
from dlpar.config.experiment import Experiment
from dlpar.worlds.platforms.lookup import HERE, names, nodes_of, placement, platform, platform_of
from dlpar.worlds.platforms.platform import DEVICES, PLATFORMS, Device, Link, Platform, Timing
from dlpar.worlds.platforms.workloads import WORKLOADS, Layer, Workload, is_path, workload


def _platform_holds_them(e: Experiment) -> None:
    """Check platforms and workloads known by name. Files are read when a job is launched."""
    cluster = e.cluster
    if cluster.world == "real":
        return
    if cluster.platform is None or not (is_path(cluster.platform) or cluster.platform == HERE):
        nodes_of(e)
    if cluster.stand_in_for is not None and not is_path(cluster.stand_in_for):
        workload(cluster.stand_in_for)


rules.ADDED.append(_platform_holds_them)
