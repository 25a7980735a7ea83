"""Platforms: clusters on paper, which define the times of paced and simulated ranks.

    workloads.py (models that a small one may stand in for) ─► platform.py (devices, links, clusters)
    ─► lookup.py (by name or from a file; nodes of ranks)      ping_pong.py (timing of a real link)

``tables`` holds the figures of named workloads and clusters, with their sources.
:mod:`dlpar.worlds.simulated.network` defines the rules of the network.
"""
# ruff: noqa: F401  these names are for other packages

from __future__ import annotations

from dlpar.worlds.platforms.lookup import HERE, names, nodes_of, placement, platform, platform_of
from dlpar.worlds.platforms.platform import DEVICES, PLATFORMS, Device, Link, Platform, Timing
from dlpar.worlds.platforms.workloads import WORKLOADS, Layer, Workload, is_path, workload
