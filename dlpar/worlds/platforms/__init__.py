"""Platforms: clusters on paper, by which paced and simulated ranks live.

    link.py device.py ─► platform.py ─► named.py (figures and their sources)
    workloads.py (models to stand in for)   lookup.py (by name, or from a file)   placement.py (who lives where)

The rules of their network are in :mod:`dlpar.worlds.simulated.network`.
"""

from __future__ import annotations

from dlpar.worlds.platforms.lookup import names, nodes_of, placement, platform, platform_of
from dlpar.worlds.platforms.named import DEVICES, PLATFORMS
from dlpar.worlds.platforms.platform import Device, Link, Platform, Timing
from dlpar.worlds.platforms.workloads import WORKLOADS, Layer, Workload, is_path, workload

__all__ = [
    "DEVICES", "PLATFORMS", "WORKLOADS", "Device", "Layer", "Link", "Platform", "Timing", "Workload",
    "is_path", "names", "nodes_of", "placement", "platform", "platform_of", "workload",
]  # fmt: skip
