"""What really works here: reading another process's memory, two MPI processes meeting, two ranks at work."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dlpar.cli.doctor.facts import Trial
from dlpar.config.paths import Scratch
from dlpar.jobs.mpiexec import Starter, environment

if TYPE_CHECKING:
    from dlpar.comm import Comm


MEET = 4.0
"""Seconds two bare MPI processes may take to meet."""

VALUES = 250_000
"""Of float32, in what two ranks add up: 1 MB, far above what is sent without asking the receiver first."""


# ---- cross-memory attach --------------------------------------------------------

_CHILD = """
import ctypes, sys
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER, anybody: as Open MPI does
kept = ctypes.create_string_buffer(b"dlpar")
print(ctypes.addressof(kept), flush=True)
sys.stdin.read()
"""


class _Piece(ctypes.Structure):
    """struct iovec: where, and how many bytes."""

    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def attach() -> str:
    """Read five bytes of a child's memory, as Open MPI reads large messages.

    Returns
    -------
    str
        ``allowed``, the name of the error (``EPERM``, ``ENOSYS``), or ``unknown`` where nobody can tell.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "process_vm_readv"):
        return "unknown"
    command = [sys.executable, "-I", "-S", "-c", _CHILD]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        address = int(child.stdout.readline() or 0)
        if not address:
            return "unknown"
        into = ctypes.create_string_buffer(5)
        here, there = ctypes.byref(_Piece(ctypes.addressof(into), 5)), ctypes.byref(_Piece(address, 5))
        read, one, flags = libc.process_vm_readv, ctypes.c_ulong(1), ctypes.c_ulong(0)
        read.restype = ctypes.c_ssize_t
        size = read(child.pid, here, one, there, one, flags)
        if size == 5 and into.raw == b"dlpar":
            return "allowed"
        return errno.errorcode.get(ctypes.get_errno(), "unknown")
    finally:
        child.kill()
        child.communicate()


# ---- two bare MPI processes ------------------------------------------------------

_MEET = """
import json
from mpi4py import MPI
world = MPI.COMM_WORLD
other = world.sendrecv(world.rank, (world.rank + 1) % world.size, source=(world.rank - 1) % world.size)
library = MPI.Get_library_version().split(",")[0].splitlines()[0].strip()
print("met " + json.dumps([world.size, other, library]), flush=True)
"""


def ranks_meet(starter: Starter) -> Trial:
    """Whether two processes that this mpiexec starts find each other through mpi4py."""
    began, scratch = time.monotonic(), Scratch.fresh()
    try:
        command = starter.command(2, [sys.executable, "-c", _MEET])
        env = environment(starter, scratch, threads=1, one_host=True)
        status, said = _run(command, env, MEET)
    finally:
        scratch.remove()
    return judge_meeting(status, said, time.monotonic() - began)


def judge_meeting(status: int | None, said: str, seconds: float) -> Trial:
    """What the two processes' output means; `status` None: they had not ended when time was up."""
    reports = []
    for line in said.splitlines():
        try:
            reports.append(json.loads(line.partition("met ")[2]))
        except ValueError:
            continue
    libraries = " and ".join(sorted({library for _, _, library in reports}))
    if status is None:
        return Trial(False, seconds, f"two processes did not meet within {seconds:.0f} s", cut=True)
    if len(reports) == 2 and all(size == 2 for size, _, _ in reports):
        return Trial(True, seconds, libraries)
    if reports:
        said = f"each process is alone in its world: mpi4py speaks {libraries}, this mpiexec does not"
        return Trial(False, seconds, said)
    lines = [line.strip() for line in said.splitlines()]
    words = [line for line in lines if not set(line) <= set("-=")]
    last = words[-1][:200] if words else "it said nothing"
    return Trial(False, seconds, f"it ended with status {status}: {last}")


def _run(command: list[str], env: dict[str, str], seconds: float) -> tuple[int | None, str]:
    """Run a command in its own process group; its status (None: cut off) and all it said."""
    try:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return -1, str(error)
    try:
        return process.wait(seconds), process.stdout.read()
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        process.stdout.close()


# ---- two ranks at work -------------------------------------------------------------


def add_up(comm: Comm) -> float:
    """On every rank: 1 MB summed over all ranks; returns the first sum."""
    import torch

    from dlpar.collectives import ring_allreduce

    values = torch.full((VALUES,), float(comm.rank + 1), device=comm.device)
    ring_allreduce(comm, values)
    return values[0].item()


def two_ranks(seconds: float) -> tuple[Trial, str]:
    """Run :func:`add_up` on two ranks, as ``dlpar.spmd`` would; the trial, and ``warm`` or ``cold``."""
    from dlpar.config.experiment import Experiment
    from dlpar.jobs.launch import Job, JobFailed, called

    began = time.monotonic()
    experiment = Experiment(workers=2, cluster={"timeout": max(1.0, seconds)})
    folder = called(experiment, add_up)
    try:
        job = Job(folder, experiment)
        try:
            job.wait(seconds)
            trial = Trial(True, time.monotonic() - began)
        except TimeoutError:
            job.stop()
            trial = Trial(False, time.monotonic() - began, cut=True)
        except JobFailed as error:
            trial = Trial(False, time.monotonic() - began, str(error).splitlines()[0])
        return trial, _start(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path) -> str:
    """How a job was started: warm, cold, or empty if it was not yet."""
    try:
        records = [json.loads(line) for line in (folder / "job.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        return ""
    return next((r["mode"] for r in records if r["k"] == "launch"), "")
