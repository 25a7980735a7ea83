"""Exercise of lab 07: a step of ZeRO stage 1, on simulated and on real ranks: parity, messages and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlpar.course.judge import Held, Step, Verdict, first_difference, judge_on_ranks, secret
from dlpar.theory.counts import closed_form

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


WEIGHTS = 10
"""Weights of the model that is trained; 3 and 4 ranks get chunks of different lengths."""

STEPS = 3
"""From the second on, the velocity that a rank keeps from step to step counts."""

LR, MOMENTUM = 0.1, 0.5

SOLVED = (
    "{name} is right on {ranks}: the weights are those of one process, and it sends as many messages and bytes as "
    "a ring all-reduce."
)


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
        Gets N chunks of the weights, alike on all ranks, and N chunks of the rank's own gradient.  The velocity
        belongs to the rank's chunk (``rank + 1``, modulo N) and is kept from step to step: zeros at first.
        It must leave on every rank the weights that one process would have with the sum of all gradients.
    workers, hints, timeout
        As of :func:`~dlpar.course.judge.check_on_ranks`.

    Returns
    -------
    Verdict
        Names the first step and rank that differ; never raises for an error in the student's code.
    """
    return judge_on_ranks(student, _on_rank, workers, _complain, SOLVED, hints, timeout)


def _complain(told: list[list[Held]]) -> str:
    ranks = len(told)
    form = closed_form("ring", ranks, WEIGHTS, itemsize=8)
    steps = [
        Step(f", after step {step}", [weights] * ranks, "the weights", [form])
        for step, weights in enumerate(_alone(ranks))
    ]
    return first_difference(told, steps, "a ring all-reduce", by="ring_reduce_scatter and ring_allgather")


def _alone(ranks: int) -> list[torch.Tensor]:
    """Weights of one process after each step."""
    import torch

    weights, velocity, found = torch.zeros(WEIGHTS, dtype=torch.float64), 0.0, []
    for step in range(STEPS):
        velocity = MOMENTUM * velocity + sum(_gradient(ranks, rank, step) for rank in range(ranks))
        weights = weights - LR * velocity
        found.append(weights)
    return found


def _gradient(ranks: int, rank: int, step: int) -> torch.Tensor:
    """A rank's own gradient: (rank + 1) (step + 1) × [1, 2, 3, …], or random numbers if it is graded."""
    import torch

    if draw := secret("gradient", ranks, rank, step):
        return torch.from_numpy(draw.normal(size=WEIGHTS))
    return (rank + 1) * (step + 1) * torch.arange(1.0, WEIGHTS + 1, dtype=torch.float64)


def _on_rank(comm: Comm, student: Callable[..., Any]) -> list[Held]:
    import torch

    weights = torch.zeros(WEIGHTS, dtype=torch.float64)
    chunks = weights.tensor_split(comm.size)
    velocity, held = torch.zeros_like(chunks[(comm.rank + 1) % comm.size]), []
    comm.traffic.take()
    for step in range(STEPS):
        gradient = _gradient(comm.size, comm.rank, step).tensor_split(comm.size)
        student(comm, chunks, gradient, velocity, LR, MOMENTUM)
        held.append((weights.tolist(), comm.traffic.take()))
    return held
