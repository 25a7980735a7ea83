"""How many ranks, how many threads each, what carries their messages: a pure function of the facts."""

from __future__ import annotations

from dataclasses import dataclass

from dlpar.cli.doctor.facts import Machine
from dlpar.config.rules import MOST

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
    ranks, carrier, *why = _by_gpus(len(m.gpus)) if m.gpus and m.torch_cuda else _by_cores(m.processors)
    room = max(1, int((m.memory_free - SPARE) / RANK))
    if room < ranks:
        ranks = room
        why[0] = f"{_ranks(ranks)}: more would not fit into the free memory at {RANK / 1e6:.0f} MB each"
    threads = max(1, int(m.processors) // ranks)  # what a run chooses by itself
    time = f"{m.processors:g} processors' worth of time" if m.processors != 1 else "the time of one processor"
    why.append(f"{threads} thread{'s' if threads > 1 else ''} each: {time} for {_ranks(ranks)}")
    if ranks < USUAL <= room:
        why.append(
            f"the labs' {USUAL} workers run here too: they take turns, so that curves over steps are right "
            "and speed-ups are not"
        )
    return Advice(ranks, threads, carrier, tuple(why), f"dlpar run --workers {ranks}")


def _by_gpus(gpus: int) -> tuple[int, str, str, str]:
    """Ranks, carrier, and why, where torch can use GPUs."""
    if gpus == 1:
        return (
            1,
            "mpi",
            "1 rank: one GPU does the work of one; more share it and take turns",
            "mpi: ranks that share a GPU are staged through memory, for NCCL wants a GPU for each",
        )
    ranks = min(gpus, MOST["real"])
    return (
        ranks,
        "nccl",
        f"{_ranks(ranks)}: one for each GPU",
        "nccl: each rank has a GPU of its own, and NCCL moves tensors between them directly",
    )


def _by_cores(processors: float) -> tuple[int, str, str, str]:
    """Ranks, carrier, and why, where ranks compute on cores."""
    ranks = max(1, min(int(processors), MOST["real"]))
    each = "each has a core of its own" if ranks > 1 else "there is the time of one core"
    why = "mpi: without GPUs, MPI through shared memory is quickest"
    return ranks, "mpi", f"{_ranks(ranks)}: {each}", why


def _ranks(number: int) -> str:
    return f"{number} rank{'s' if number > 1 else ''}"
