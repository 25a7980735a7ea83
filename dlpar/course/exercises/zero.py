"""Checks a step of ZeRO stage 1 typed in a cell, on simulated ranks, then on real ones: parity, messages and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlpar.course.judge import Verdict, difference, on_both, ranks_tried, sends_otherwise, tried
from dlpar.theory.counts import closed_form

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


WEIGHTS = 10
"""Of the model that is trained; 3 and 4 ranks get chunks of different lengths."""

STEPS = 3
"""From the second on what a rank keeps from step to step counts."""

LR, MOMENTUM = 0.1, 0.5


def check_zero(
    student: Callable[..., Any] | None,
    workers: Sequence[int] = (2, 3, 4),
    hints: Sequence[str] = (),
    timeout: float = 5.0,
) -> Verdict:
    """Do a few steps of SGD with momentum by ``student(comm, weights, gradient, velocity, lr, momentum)``.

    Parameters
    ----------
    student : callable or None
        Gets N chunks of the weights, all alike on all ranks, N chunks of the rank's own gradient, and what the rank
        keeps of its chunk (``rank + 1``, modulo N) from step to step: zeros at first, as long as that chunk.
        It must leave on every rank the weights that one process would have, which sees the sum of all gradients.
    workers : sequence of int
        Numbers of simulated ranks to try; the last number is that of the real ones.
    hints : sequence of str
        From gentle to plain; a wrong answer shows one more of them each time.
    timeout : float
        Seconds after which ranks that wait for each other are ended.

    Returns
    -------
    Verdict
        Names the first step and rank that differ; never raises for what the student wrote.
    """
    name = getattr(student, "__name__", "the function")
    if not callable(student):
        return Verdict("to do", "The function is not written yet.")
    solved = (
        f"{name} is right on {ranks_tried(workers)}: the weights are "
        "those of one process, and it sends as many messages and bytes as a ring all-reduce."
    )
    return tried(name, on_both(workers, _try, student, timeout=timeout), _judge, hints, lambda told: solved)


def _judge(told: list[tuple[list[list[float]], dict[str, int | None]]]) -> str:
    """What is wrong with the weights, or with what was sent for them."""
    for step, right in enumerate(_alone(len(told))):
        for rank, (weights, _) in enumerate(told):
            if differs := difference(weights[step], right, where="the weights"):
                return f", after step {step}, on rank {rank}: {differs}."
    forms = [closed_form("ring", len(told), WEIGHTS, itemsize=8)] * STEPS
    like, by = f"a ring all-reduce in each of {STEPS} steps", "ring_reduce_scatter and ring_allgather"
    complaint = sends_otherwise([traffic for _, traffic in told], forms, like, by)
    return complaint and f" {complaint}"


def _gradient(rank: int, step: int) -> torch.Tensor:
    """A rank's own, easy to follow by eye: (rank + 1) (step + 1) × [1, 2, 3, …]."""
    import torch

    return (rank + 1) * (step + 1) * torch.arange(1.0, WEIGHTS + 1, dtype=torch.float64)


def _alone(ranks: int) -> list[list[float]]:
    """The weights of one process after each step."""
    import torch

    weights, velocity, found = torch.zeros(WEIGHTS, dtype=torch.float64), 0.0, []
    for step in range(STEPS):
        velocity = MOMENTUM * velocity + sum(_gradient(rank, step) for rank in range(ranks))
        weights = weights - LR * velocity
        found.append(weights.tolist())
    return found


def _try(comm: Comm, student: Callable[..., Any]) -> tuple[list[list[float]], dict[str, int | None]]:
    """On a rank: its weights after each step, and what it sent."""
    import torch

    weights = torch.zeros(WEIGHTS, dtype=torch.float64)
    chunks = weights.tensor_split(comm.size)
    velocity, found = torch.zeros_like(chunks[(comm.rank + 1) % comm.size]), []
    comm.traffic.take()
    for step in range(STEPS):
        student(comm, chunks, _gradient(comm.rank, step).tensor_split(comm.size), velocity, LR, MOMENTUM)
        found.append(weights.tolist())
    return found, comm.traffic.take()
