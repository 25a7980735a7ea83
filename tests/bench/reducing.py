"""Our all-reduces against MPI_Allreduce and gloo, in the same ranks, in turns."""

from __future__ import annotations

from compare import show

import dlpar

SIZES = {4_096: 200, 1_000_000: 20, 26_000_000: 4}
"""Bytes, and how many times each is reduced per measurement."""


def seconds_per_call(comm, nbytes: int, repeat: int, n: int) -> dict[str, list[float]]:
    """On every rank: n measurements of each all-reduce, in turns."""
    import torch

    from dlpar.collectives import library_allreduce, ring_allreduce
    from dlpar.config.experiment import Cluster
    from dlpar.worlds.connect import connect

    gloo = connect(Cluster(device="cpu", carrier="gloo"))
    tensor = torch.ones(nbytes // 4)
    ways = {
        "our ring, MPI": lambda: ring_allreduce(comm, tensor),
        "MPI_Allreduce": lambda: library_allreduce(comm, tensor),
        "gloo's all-reduce": lambda: library_allreduce(gloo, tensor),
        "our ring, gloo": lambda: ring_allreduce(gloo, tensor),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(n + 1):
        for name, reduce in ways.items():
            tensor.fill_(1e-30)
            comm.barrier()
            began = comm.now()
            for _ in range(repeat):
                reduce()
            if turn:  # the first turn warms up
                taken[name].append((comm.now() - began) / repeat * 1e3)
    gloo.close()
    return taken


def each_of_ours(comm, nbytes: int, repeat: int, n: int) -> dict[str, list[float]]:
    """On every rank: n measurements of every all-reduce by name, in turns."""
    import torch

    from dlpar.collectives import ALLREDUCE

    tensor = torch.ones(nbytes // 4)
    taken: dict[str, list[float]] = {name: [] for name in ALLREDUCE}
    for turn in range(n + 1):
        for name, reduce in ALLREDUCE.items():
            tensor.fill_(1e-30)
            comm.barrier()
            began = comm.now()
            for _ in range(repeat):
                reduce(comm, tensor)
            comm.barrier()  # a star's leaves are done before its root
            if turn:
                taken[name].append((comm.now() - began) / repeat * 1e3)
    return taken


def report() -> None:
    for workers in (2, 4):
        for nbytes, repeat in SIZES.items():
            taken = dlpar.spmd(seconds_per_call, nbytes, repeat, 9, workers=workers, timeout=300)[0]
            bars = (
                {"MPI_Allreduce": 0.7, "gloo's all-reduce": 1.0}
                if workers == 4 and nbytes == 26_000_000
                else {}
            )
            show(
                f"All-reduce of {nbytes:,} bytes, {workers} ranks", taken, "ms", bars, higher_is_better=False
            )
    for nbytes, repeat in SIZES.items():
        taken = dlpar.spmd(each_of_ours, nbytes, repeat // 2, 5, workers=4, timeout=300)[0]
        show(f"Every all-reduce by name, {nbytes:,} bytes, 4 ranks", taken, "ms", higher_is_better=False)
