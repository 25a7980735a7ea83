"""A plug-in of ranks: at one step one rank does what ``$DLPAR_FAULT`` says, as ``{"name", "rank", "step", "mark"}``.

Each fault is the body of a function that a student may type.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from dlpar.jobs.record import Recorder

SLEEPERS = ["sleep", "314159"]
"""Command of the processes that a rank leaves behind."""


def raises(comm: Any) -> None:
    raise RuntimeError("only I am broken")


def leaves(comm: Any) -> None:
    """End the process in silence, with success or without."""
    os._exit(comm.rank % 2 * 3)


def crashes(comm: Any) -> None:
    ctypes.string_at(0)


def loops(comm: Any) -> None:
    while True:
        pass


def waits_for_ever(comm: Any) -> None:
    import torch

    comm.recv(torch.zeros(1), (comm.rank + 1) % comm.size, tag=4711)


def starts_children(comm: Any) -> None:
    """Start a process that keeps the output open, and one that leaves session and parent."""
    subprocess.Popen(SLEEPERS)
    subprocess.run(["sh", "-c", f"setsid {' '.join(SLEEPERS)} >/dev/null 2>&1 &"], check=True)


def starts_children_and_dies(comm: Any) -> None:
    starts_children(comm)
    os.kill(os.getpid(), 9)


def closes_its_files(comm: Any) -> None:
    os.closerange(3, 4096)


def takes_all_memory(comm: Any) -> None:
    import resource

    import torch

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
    torch.zeros(1 << 28).sum()


fault = json.loads(os.environ.get("DLPAR_FAULT", "{}"))
finish_step = Recorder.step


def step(record: Recorder, number: int, **facts: Any) -> None:
    """Finish a step, and do what was asked for after it, once."""
    finish_step(record, number, **facts)
    if record.comm.rank == fault["rank"] and number >= fault["step"] and not Path(fault["mark"]).exists():
        Path(fault["mark"]).write_text(repr(time.time()))
        globals()[fault["name"]](record.comm)


if fault:
    Recorder.step = step


def star(comm: Any, tensor: Any) -> None:
    """Sum over all ranks, as a student writes it: rank 0 receives from each, and sends to each."""
    if comm.rank:
        comm.send(tensor, 0)
        comm.recv(tensor, 0)
        return
    arriving = comm.empty(len(tensor), tensor.dtype)
    for rank in range(1, comm.size):
        comm.recv(arriving, rank)
        tensor += arriving
    for rank in range(1, comm.size):
        comm.send(tensor, rank)
