"""Checks an exercise that sends messages: runs it on real ranks and names the first rank that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Sequence

from dlpar.lab.verdict import Verdict, difference, wrong
from dlpar.launcher.job import JobFailed
from dlpar.launcher.spmd import spmd

if TYPE_CHECKING:
    import torch

LENGTHS = (1, 4, 7)
"""Tensor lengths every exercise is tried on."""

Expected = Callable[[list["torch.Tensor"]], Sequence["torch.Tensor"]]


def check_on_ranks(
    student: Callable[..., Any], expected: Expected, workers: Sequence[int] = (2, 3, 4), hints: Sequence[str] = (),
    timeout: float = 5.0,
) -> Verdict:  # fmt: skip
    """Call ``student(comm, tensor)`` on real ranks; it must leave in `tensor` what `expected` says.

    Parameters
    ----------
    student : callable
        Works in place; raises ``NotImplementedError`` while it is not written.
    expected : callable
        From the list of all ranks' tensors to the list of what each must hold afterwards.
    workers : sequence of int
        World sizes to try.
    hints : sequence of str
        From gentle to plain; a wrong answer shows one more of them each time.
    timeout : float
        Seconds after which ranks that wait for each other are ended.
    """
    name = getattr(student, "__name__", "the function")
    for world in workers:
        try:
            held = spmd(_try, student, LENGTHS, workers=world, timeout=timeout)
        except JobFailed as failure:
            if "NotImplementedError" in str(failure):
                return Verdict("to do", f"{name} is not written yet.")
            return wrong(name, hints, f"With {world} ranks: {failure}")
        for case, length in enumerate(LENGTHS):
            right = expected([_input(rank, length) for rank in range(world)])
            for rank in range(world):
                differs = difference(held[rank][case], right[rank].tolist())
                if differs:
                    return wrong(name, hints, f"With {world} ranks and {length} numbers, on rank {rank} {differs}.")
    tried = " and ".join([", ".join(map(str, workers[:-1])), str(workers[-1])]) if len(workers) > 1 else str(workers[0])
    return Verdict("solved", f"{name} is right on {tried} real ranks, for tensors of {', '.join(map(str, LENGTHS))} numbers.")


def _input(rank: int, length: int) -> torch.Tensor:
    """What a rank starts with: (rank + 1) × [1, 2, 3, …], easy to follow by eye."""
    import torch

    return (rank + 1) * torch.arange(1.0, length + 1)


def _try(comm: Any, student: Callable[..., Any], lengths: Sequence[int]) -> list[list[float]]:
    held = []
    for length in lengths:
        tensor = _input(comm.rank, length)
        student(comm, tensor)
        held.append(tensor.tolist())
    return held
