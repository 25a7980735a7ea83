"""Platforms: clusters on paper, by which paced and simulated ranks live.

    link.py device.py ─► platform.py ─► named.py (figures and their sources)
    workloads.py (models to stand in for)   lookup.py (by name, or from a file)   placement.py (who lives where)

The rules of their network are in :mod:`dlpar.comm.simulation.network`.
"""

from __future__ import annotations

from dlpar.platforms.device import Device, Timing
from dlpar.platforms.files import is_path
from dlpar.platforms.home import nodes_of, platform_of
from dlpar.platforms.link import Link
from dlpar.platforms.lookup import names, platform
from dlpar.platforms.named import DEVICES, PLATFORMS
from dlpar.platforms.placement import placement
from dlpar.platforms.platform import Platform
from dlpar.platforms.workloads import WORKLOADS, Layer, Workload, workload

__all__ = [
    "DEVICES", "PLATFORMS", "WORKLOADS", "Device", "Layer", "Link", "Platform", "Timing", "Workload",
    "is_path", "names", "nodes_of", "placement", "platform", "platform_of", "workload",
]  # fmt: skip
