"""NVIDIA GPUs of this machine: facts from the driver, and whether this build of torch can compute on them."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

MIB = 1 << 20

CONTEXT = 100e6
"""Assumed minimum GPU memory of a process besides its tensors, in bytes. 300 MB or more is usual."""


class Gpu(NamedTuple):
    """GPU of this machine, with its memory in bytes."""

    name: str
    total: int
    free: int

    def __str__(self) -> str:
        return f"{self.name}, {self.total // MIB} MiB"


def gpus() -> tuple[Gpu, ...]:
    """List the GPUs that this process may use.

    nvidia-smi gives the list, because importing torch takes seconds.
    """
    command = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=3, check=True).stdout
        rows = [line.rsplit(",", 2) for line in said.splitlines()]
        found = tuple(Gpu(name, int(total) * MIB, int(free) * MIB) for name, total, free in rows)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return found
    names = [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    by_number = all(name.isdigit() and int(name) < len(found) for name in names)
    return tuple(found[int(name)] for name in names) if by_number else found[: len(names)]


def trial(number: int) -> str:
    """Compute on the GPU with this number. Return one line with the reason for a failure, or ``""``."""
    import torch  # here: a launcher need not load it

    try:
        found = torch.arange(4.0, device=torch.device("cuda", number)).add_(1).sum().item()
    except (RuntimeError, AssertionError) as error:  # old driver, no kernel for this GPU, torch without CUDA
        return str(error).strip().split("\n")[0] or type(error).__name__
    return "" if found == 10 else f"1 + 2 + 3 + 4 gave {found}"
