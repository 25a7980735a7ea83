"""Cores and memory that control groups and the machine grant this process.

This module imports only the standard library.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dlpar.config.paths import open_plain

UNLIMITED = 1 << 60
"""Value above which a memory limit of control groups version 1 means no limit."""


def usable_cores() -> set[int]:
    """Return the numbers of the processor cores on which this process may run."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cores() -> int:
    """Return how many whole cores this process may use, at least 1.

    A container's 1.5 CPUs give 1.
    """
    return max(1, int(min(filter(None, (len(usable_cores()), ControlGroups().quota())))))


class AvailableMemory(NamedTuple):
    """Memory that this process may use, in bytes.

    Attributes
    ----------
    total, free : int
        Total and free memory, of the system or of a smaller control group.
    limited : bool
        Whether both numbers come from the control group.
    """

    total: int
    free: int
    limited: bool


def memory() -> AvailableMemory:
    """Return the memory of the system or of the control group, whichever is less."""
    import psutil

    system, limit = psutil.virtual_memory(), ControlGroups().memory()
    if limit is None or limit[0] >= system.total:
        return AvailableMemory(system.total, system.available, False)
    return AvailableMemory(limit[0], min(system.available, limit[1]), True)


class ControlGroups:
    """Limits of this process's control group and its ancestors, version 1 or 2."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        lines = [line.split(":", 2) for line in text_of(root / "proc/self/cgroup").splitlines()]
        # Controller ("" for version 2) and path inside the hierarchy.
        self._paths = {name: path for _, names, path in lines for name in names.split(",")}

    def folders(self, controller: str) -> list[Path]:
        """Return this process's folder for a controller, then its ancestors up to the mount."""
        found = []
        for line in text_of(self.root / "proc/self/mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            mounted, mount = before.split()[3:5]
            kind, _, options = after.split()[:3]
            name = "" if kind == "cgroup2" else controller
            if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
                # Inside a container the hierarchy is mounted from the container's own group down.
                top = self.root / mount.lstrip("/")
                here = top / self._paths.get(name, "/").removeprefix(mounted).lstrip("/")
                found += [folder for folder in (here, *here.parents) if folder.is_relative_to(top)]
        return found

    def quota(self) -> float | None:
        """Return the limit on processor time, in processors, or None if unlimited."""
        limits = []
        for folder in self.folders("cpu"):
            version_1 = [text_of(folder / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")]
            words = text_of(folder / "cpu.max").split() or version_1
            if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
                limits.append(int(words[0]) / int(words[1]))
        return min(limits, default=None)

    def memory(self) -> tuple[int, int] | None:
        """Return the tightest limit and the free bytes below it, or None if unlimited."""
        found = []
        for folder in self.folders("memory"):
            limit = number_in(folder / "memory.max") or number_in(folder / "memory.limit_in_bytes")
            if limit is None or limit > UNLIMITED:
                continue
            used = number_in(folder / "memory.current") or number_in(folder / "memory.usage_in_bytes") or 0
            # The kernel drops cached files before it kills a process.
            cached = re.search(r"^(?:total_)?inactive_file (\d+)", text_of(folder / "memory.stat"), re.M)
            found.append((limit, max(0, limit - used + (int(cached[1]) if cached else 0))))
        return min(found, key=lambda pair: pair[1]) if found else None


def text_of(path: Path) -> str:
    """Return the text of a file, or an empty string if it cannot be read."""
    with suppress(OSError), open_plain(path) as file:
        return file.read().decode(errors="replace")
    return ""


def number_in(path: Path) -> int | None:
    """Return the whole number in a file, or None for ``max`` or a missing file."""
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None
