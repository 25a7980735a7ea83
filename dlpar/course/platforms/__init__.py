"""Clusters of the labs, one small file each; `dlpar platforms` lists those of the library."""

from pathlib import Path


def platform_file(name: str) -> str:
    """Return the path of one of these files, as `cluster.platform` takes it."""
    return str(Path(__file__).with_name(f"{name}.toml"))
