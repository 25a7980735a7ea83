"""What a control group and the machine grant this process: cores and memory.  Standard library only, on Linux."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
UNLIMITED = 1 << 60
"""A memory limit of control groups version 1 above this means none."""


def usable_cores() -> int:
    """Processor cores this process may be placed on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def cores() -> int:
    """Whole cores' worth of time this process may use, at least 1: of a container's 1.5 CPUs, one."""
    quota = ControlGroups().quota()
    return max(1, min(usable_cores(), int(quota) if quota is not None else usable_cores()))


class Memory(NamedTuple):
    """Memory this process may use, in bytes.

    Attributes
    ----------
    total, free : int
        All of it, and what is left; of its control group, if that has less.
    limited : bool
        Whether it is the control group's.
    """

    total: int
    free: int
    limited: bool


def memory(root: Path = ROOT) -> Memory:
    """What the system has, or the control group if that is less."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", text_of(root / "proc/meminfo"), re.M))
    if found:
        total, free = 1024 * int(found["MemTotal"]), 1024 * int(found.get("MemAvailable", found["MemFree"]))
    else:
        import psutil

        total, free = psutil.virtual_memory().total, psutil.virtual_memory().available
    limit = ControlGroups(root).memory()
    if limit is None or limit[0] >= total:
        return Memory(total, free, False)
    return Memory(limit[0], min(free, limit[1]), True)


class ControlGroups:
    """The limits of this process's control group and of those around it, version 1 or 2."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._paths = {}  # controller ("" for version 2) -> path inside the hierarchy
        for line in text_of(root / "proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            self._paths |= dict.fromkeys(controllers.split(","), path)

    def folders(self, controller: str) -> list[Path]:
        """This process's folder for a controller, then those around it, up to the mount."""
        found = []
        for line in text_of(self.root / "proc/self/mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            mounted, mount = before.split()[3:5]
            kind, _, options = after.split()[:3]
            name = "" if kind == "cgroup2" else controller
            if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
                found += self._upwards(mount, mounted, self._paths.get(name, "/"))
        return found

    def _upwards(self, mount: str, mounted: str, path: str) -> list[Path]:
        top = self.root / mount.lstrip("/")
        # Inside a container the hierarchy is mounted from the container's own group down.
        inside = path.removeprefix(mounted) if mounted != "/" else path
        here = top / inside.lstrip("/")
        if not here.is_dir():
            here = top
        return [here, *(p for p in here.parents if p == top or top in p.parents)]

    def quota(self) -> float | None:
        """Processors' worth of time; None if unlimited."""
        limits = []
        for folder in self.folders("cpu"):
            words = text_of(folder / "cpu.max").split()
            if not words:
                words = [text_of(folder / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")]
            if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
                limits.append(int(words[0]) / int(words[1]))
        return min(limits, default=None)

    def memory(self) -> tuple[int, int] | None:
        """The tightest limit and what is free below it, in bytes; None if unlimited."""
        found = []
        for folder in self.folders("memory"):
            limit = number_in(folder / "memory.max") or number_in(folder / "memory.limit_in_bytes")
            if limit is None or limit > UNLIMITED:
                continue
            used = number_in(folder / "memory.current") or number_in(folder / "memory.usage_in_bytes") or 0
            # The kernel drops cached files before it kills anybody.
            cached = re.search(r"^(?:total_)?inactive_file (\d+)", text_of(folder / "memory.stat"), re.M)
            found.append((limit, max(0, limit - used + (int(cached[1]) if cached else 0))))
        return min(found, key=lambda pair: pair[1]) if found else None

    def processes(self) -> int | None:
        """Processes and threads allowed; None if unlimited."""
        limits = [number_in(folder / "pids.max") for folder in self.folders("pids")]
        return min((limit for limit in limits if limit is not None), default=None)


def text_of(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def number_in(path: Path) -> int | None:
    """The whole number in a file; None for ``max`` or no file."""
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None
