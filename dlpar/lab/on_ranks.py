"""Checks an exercise that sends messages: on simulated ranks, where every try is alike, then on real ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from dlpar.collectives.closed_forms import Cost, closed_form
from dlpar.lab.verdict import Verdict, difference, wrong
from dlpar.launcher.job import JobFailed
from dlpar.launcher.spmd import spmd

if TYPE_CHECKING:
    import torch

LENGTHS = (1, 4, 7)
"""Tensor lengths every exercise is tried on."""

SIMULATED_ONLY = "DLPAR_SIMULATED_ONLY"
"""Environment variable: where it is set, as where exercises are graded, nothing is run on real ranks."""

Expected = Callable[[list["torch.Tensor"]], Sequence["torch.Tensor"]]


def check_on_ranks(
    student: Callable[..., Any],
    expected: Expected,
    workers: Sequence[int] = (2, 3, 4),
    hints: Sequence[str] = (),
    timeout: float = 5.0,
    like: str | None = None,
) -> Verdict:
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

    def judge(held: list[list[Tried]]) -> str:
        for case, length in enumerate(LENGTHS):
            right = expected([_input(rank, length) for rank in range(len(held))])
            for rank, tensor in enumerate(right):
                differs = difference(held[rank][case][0], tensor.tolist())
                if differs:
                    return f" and {length} numbers, on rank {rank} {differs}."
            complaint = like and _not_like([held[rank][case][1] for rank in range(len(held))], like, length)
            if complaint:
                return f" and {length} numbers {complaint}"
        return ""

    lengths, sends = ", ".join(map(str, LENGTHS)), f", and sends what {like} sends" if like else ""
    solved = f"{name} is right on {ranks_tried(workers)}, for tensors of {lengths} numbers{sends}."
    trials = on_both(workers, _try, student, LENGTHS, timeout=timeout)
    return tried(name, trials, judge, hints, lambda told: solved)


Trial = tuple[str, Callable[[], list[Any]]]
"""How a trial is called in a sentence, and what runs it and gives what each rank has told."""


def on_both(
    workers: Sequence[int], program: Callable[..., Any], *arguments: Any, timeout: float, who: str = "ranks"
) -> Iterator[Trial]:
    """Trials of ``program(comm, *arguments)`` on so many simulated ranks, and on the last number of real ones."""
    for world, ranks in worlds(workers):
        run = partial(spmd, program, *arguments, workers=ranks, world=world, timeout=timeout)
        yield f"With {ranks} {world} {who}", run


def tried(
    name: str,
    trials: Iterable[Trial],
    judge: Callable[[list[Any]], str],
    hints: Sequence[str],
    praise: Callable[[list[list[Any]]], str],
) -> Verdict:
    """Run trials until one goes wrong.

    Parameters
    ----------
    name : str
        Of what the student wrote.
    trials : iterable of Trial
    judge : callable
        From what the ranks of a trial have told to what is wrong with it, which goes on the sentence that
        begins with the trial's words; empty if nothing is.
    hints : sequence of str
        From gentle to plain.
    praise : callable
        From what the ranks of each trial have told to what is said if all were right.

    Returns
    -------
    Verdict
        Solved, to do, or wrong in the first trial that was.
    """
    told: list[list[Any]] = []
    for where, run in trials:
        try:
            found = run()
        except JobFailed as failure:
            if "NotImplementedError" in str(failure):
                return Verdict("to do", f"{name} is not written yet.")
            return wrong(name, hints, f"{where}: {failure}")
        except (TypeError, AttributeError, PicklingError) as failure:
            return wrong(name, hints, f"{name} cannot be sent to other processes: {failure}")
        complaint = judge(found)
        if complaint:
            return wrong(name, hints, where + complaint)
        told.append(found)
    return Verdict("solved", praise(told))


def worlds(values: Sequence[Any]) -> list[tuple[str, Any]]:
    """``("simulated", value)`` for each of some values, and ``("real", value)`` for the last."""
    return [*(("simulated", value) for value in values), *([("real", values[-1])] if real_too() else [])]


def real_too() -> bool:
    """Whether what is right on simulated ranks is run on real ones, too."""
    return not os.environ.get(SIMULATED_ONLY)


def ranks_tried(workers: Sequence[int]) -> str:
    """``2, 3 and 4 simulated ranks and on 4 real ones``."""
    return f"{listed(workers)} simulated ranks" + (f" and on {workers[-1]} real ones" if real_too() else "")


def listed(numbers: Sequence[int]) -> str:
    """``2, 3 and 4``."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _input(rank: int, length: int) -> torch.Tensor:
    """What a rank starts with: (rank + 1) × [1, 2, 3, …], easy to follow by eye."""
    import torch

    return (rank + 1) * torch.arange(1.0, length + 1)


def sends_otherwise(
    traffic: Sequence[dict[str, int | None]], forms: Sequence[Cost], like: str, by: str
) -> str:
    """How what all ranks sent differs from what some collectives send together; empty if it does not.

    Parameters
    ----------
    traffic : sequence of dict
        ``messages`` and ``bytes`` of each rank; unknown where the library moved the data.
    forms : sequence of Cost
        Of each of the collectives.
    like, by : str
        What they are called, and what to send by.
    """
    if any(one["bytes"] is None for one in traffic):
        return f"the result is right, but the library moved the data, and does not say how much: use {by}."
    messages, nbytes = (sum(one[what] for one in traffic) for what in ("messages", "bytes"))
    right = sum(form.messages for form in forms), sum(form.bytes for form in forms)
    if (messages, nbytes) == right:
        return ""
    return (
        f"the result is right, but the ranks send {messages} messages and {nbytes} bytes together; "
        f"{like} sends {right[0]} and {right[1]}."
    )


def _not_like(traffic: list[dict[str, int | None]], like: str, length: int) -> str:
    """How what all ranks sent differs from what a known collective sends, in all or on the busiest rank."""
    form = closed_form(like, len(traffic), length, itemsize=4)
    busiest = max(range(len(traffic)), key=lambda rank: traffic[rank]["bytes"] or 0)
    complaint = sends_otherwise(traffic, [form], like, by="send and recv")
    if complaint or traffic[busiest]["bytes"] <= form.busiest_bytes:
        return complaint
    return (
        f"the result is right, but rank {busiest} sends {traffic[busiest]['bytes']} bytes; "
        f"in {like} no rank sends more than {form.busiest_bytes}."
    )


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
