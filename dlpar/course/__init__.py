"""The course: a table of runs for each lab, exercises and their judge, the map of labs and their terms."""

from __future__ import annotations

from pathlib import Path


def platform_file(name: str) -> str:
    """Return the path of a cluster of the labs, a small file in `platforms`, as `cluster.platform` takes it."""
    return str(Path(__file__).with_name("platforms") / f"{name}.toml")
