"""Checks an exercise that sends messages: on simulated ranks, where every try is alike, then on real ones."""

from __future__ import annotations

from pickle import PicklingError
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
    timeout: float = 5.0, like: str | None = None,
) -> Verdict:  # fmt: skip
    """Call ``student(comm, tensor)`` on every rank; it must leave in `tensor` what `expected` says.

    First on simulated ranks: they do the same in every try, and where all wait for each other
    each one's line is told at once.  What is right there is run on real ranks, too.

    Parameters
    ----------
    student : callable
        Works in place; raises ``NotImplementedError`` while it is not written.
    expected : callable
        From the list of all ranks' tensors to the list of what each must hold afterwards.
    workers : sequence of int
        Numbers of simulated ranks to try; the last number is that of the real ones.
    hints : sequence of str
        From gentle to plain; a wrong answer shows one more of them each time.
    timeout : float
        Seconds after which ranks that wait for each other are ended.
    like : str, optional
        A collective, as :func:`dlpar.collectives.closed_form` names it, whose messages and bytes it must send.

    Returns
    -------
    Verdict
        Never raises for what the student wrote.
    """
    name = getattr(student, "__name__", "the function")
    for world, ranks in trials(workers):
        try:
            held = spmd(_try, student, LENGTHS, workers=ranks, world=world, timeout=timeout)
        except JobFailed as failure:
            if "NotImplementedError" in str(failure):
                return Verdict("to do", f"{name} is not written yet.")
            return wrong(name, hints, f"With {ranks} {world} ranks: {failure}")
        except (TypeError, AttributeError, PicklingError) as failure:
            return wrong(name, hints, f"{name} cannot be sent to other processes: {failure}")
        for case, length in enumerate(LENGTHS):
            right = expected([_input(rank, length) for rank in range(ranks)])
            for rank in range(ranks):
                differs = difference(held[rank][case][0], right[rank].tolist())
                if differs:
                    return wrong(name, hints, f"With {ranks} {world} ranks and {length} numbers, on rank {rank} {differs}.")
            complaint = like and _sends_otherwise([held[rank][case][1] for rank in range(ranks)], like, length)
            if complaint:
                return wrong(name, hints, f"With {ranks} {world} ranks and {length} numbers {complaint}")
    lengths, sends = ", ".join(map(str, LENGTHS)), f", and sends what {like} sends" if like else ""
    return Verdict("solved", f"{name} is right on {listed(workers)} simulated ranks and on {workers[-1]} real ones, for tensors of {lengths} numbers{sends}.")


def trials(workers: Sequence[int]) -> list[tuple[str, int]]:
    """World and ranks of each trial."""
    return [*(("simulated", ranks) for ranks in workers), ("real", workers[-1])]


def listed(numbers: Sequence[int]) -> str:
    """``2, 3 and 4``."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _input(rank: int, length: int) -> torch.Tensor:
    """What a rank starts with: (rank + 1) × [1, 2, 3, …], easy to follow by eye."""
    import torch

    return (rank + 1) * torch.arange(1.0, length + 1)


def _sends_otherwise(traffic: list[dict[str, int | None]], like: str, length: int) -> str:
    """How what all ranks sent differs from what a known collective sends; empty if it does not."""
    from dlpar.collectives.closed_forms import closed_form

    form = closed_form(like, len(traffic), length, itemsize=4)
    if any(one["bytes"] is None for one in traffic):
        return "the result is right, but the library moved the data: use send and recv."
    sent = [(one["messages"], one["bytes"]) for one in traffic]
    messages, nbytes = (sum(column) for column in zip(*sent))
    if (messages, nbytes) != (form.messages, form.bytes):
        return (f"the result is right, but the ranks send {messages} messages and {nbytes} bytes together; "
                f"{like} sends {form.messages} and {form.bytes}.")  # fmt: skip
    busiest = max(range(len(sent)), key=lambda rank: sent[rank][1])
    if sent[busiest][1] > form.busiest_bytes:
        return (f"the result is right, but rank {busiest} sends {sent[busiest][1]} bytes; "
                f"in {like} no rank sends more than {form.busiest_bytes}.")  # fmt: skip
    return ""


Tried = tuple[list[float], dict[str, "int | None"]]
"""What a rank held afterwards, and the messages and bytes it sent."""


def _try(comm: Any, student: Callable[..., Any], lengths: Sequence[int]) -> list[Tried]:
    held = []
    for length in lengths:
        tensor = _input(comm.rank, length)
        comm.traffic.take()
        student(comm, tensor)
        held.append((tensor.tolist(), comm.traffic.take()))
    return held
