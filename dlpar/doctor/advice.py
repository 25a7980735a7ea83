"""How many ranks, how many threads each, and what should carry their messages: a pure function of the facts."""

from __future__ import annotations

from dataclasses import dataclass

from dlpar.doctor.facts import Machine
from dlpar.experiment import MAX_WORKERS

RANK = 200e6
"""Bytes a rank of a small model takes at most, started cold."""

SPARE = 500e6
"""Bytes left to everything else."""

USUAL = 4
"""Workers of an experiment that says nothing, and of most labs."""


@dataclass(frozen=True)
class Advice:
    """What to choose here, and why.

    Attributes
    ----------
    ranks : int
        Most that run at full speed together.
    threads : int
        Compute threads of each of them.
    carrier : str
        ``nccl`` or ``mpi``.
    why : tuple of str
        A sentence for each choice.
    command : str
        The command that makes these choices.
    """

    ranks: int
    threads: int
    carrier: str
    why: tuple[str, ...]
    command: str


def advise(m: Machine) -> Advice:
    """The choices that fit a machine."""
    usable = len(m.gpus) if m.torch_cuda else 0
    if usable >= 2:
        ranks = min(usable, MAX_WORKERS)
        carrier = "nccl"
        why = [f"{ranks} ranks: one for each GPU", "nccl: each rank has a GPU of its own, and NCCL moves tensors between them directly"]
    elif usable == 1:
        ranks, carrier = 1, "mpi"
        why = ["1 rank: one GPU does the work of one rank; more share it and take turns, which shows how but not how fast",
               "mpi: ranks that share a GPU are staged through memory, which NCCL does not do"]  # fmt: skip
    else:
        ranks, carrier = max(1, min(int(m.processors), MAX_WORKERS)), "mpi"
        each = f"each of {ranks} ranks has a core of its own" if ranks > 1 else "there is the time of one core"
        why = [f"{_ranks(ranks)}: {each}", "mpi: without GPUs, MPI through shared memory is quickest"]
    room = max(1, int((m.memory_free - SPARE) / RANK))
    if room < ranks:
        ranks = room
        why[0] = f"{_ranks(ranks)}: more than {ranks} would not fit into the free memory at {RANK / 1e6:.0f} MB each"
    threads = max(1, int(m.processors / ranks))
    why.append(f"{threads} thread{'s' if threads > 1 else ''} each: {m.processors:g} processors' worth of time, shared by {_ranks(ranks)}")
    if ranks < USUAL and room >= USUAL:
        why.append(f"the labs' {USUAL} workers run here too: they take turns, so that curves over steps are right and speed-ups are not")
    # What a run would choose by itself need not be said; it knows cores, but not a control group's quota.
    by_itself = max(1, m.usable_cores // ranks)
    command = f"dlpar run --workers {ranks}" + (f" --threads {threads}" if threads != by_itself else "")
    return Advice(ranks, threads, carrier, tuple(why), command)


def _ranks(number: int) -> str:
    return f"{number} rank{'s' if number > 1 else ''}"
