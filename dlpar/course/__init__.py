"""Course: tables of each lab's runs, the exercises and their judge, the map of labs, and the terms."""

from __future__ import annotations

from pathlib import Path


def platform_file(name: str) -> str:
    """Return the path of one of the labs' cluster files in `platforms`, for `cluster.platform`."""
    return str(Path(__file__).with_name("platforms") / f"{name}.toml")
