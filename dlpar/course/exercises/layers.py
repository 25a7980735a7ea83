"""Checks an exercise that cuts two layers over ranks: what is computed, and what is sent for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlpar.course.judge import Verdict, difference, on_both, ranks_tried, sends_otherwise, tried
from dlpar.theory.counts import closed_form

if TYPE_CHECKING:
    import torch


NAMES = ("y", "of_x", "of_up", "of_down")
"""What an answer consists of."""

SAMPLES, INPUTS, HIDDEN, OUTPUTS = 5, 6, 12, 3
"""Sizes of the perceptron every answer is tried on: 2, 3 and 4 ranks divide its hidden neurons."""


class Problem(NamedTuple):
    """A whole perceptron and what it is given: ``y = relu(x @ up.T) @ down.T``.

    Attributes
    ----------
    x : Tensor, shape (samples, inputs)
    up : Tensor, shape (hidden, inputs)
    down : Tensor, shape (outputs, hidden)
    of_y : Tensor, shape (samples, outputs)
        The loss's gradient with respect to the output.
    """

    x: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    of_y: torch.Tensor


def check_layers(
    student: Callable[..., Any], workers: Sequence[int] = (2, 3, 4), hints: Sequence[str] = ()
) -> Verdict:
    """Call ``student(comm, x, up, down, of_y)`` on every rank, with its pieces of two layers.

    It must return ``y, of_x, of_up, of_down``: the whole output, the gradient of the whole input, and
    those of its own weights; and send no more than an all-reduce of the output and one of the
    input's gradient.  First on simulated ranks, then on real ones.

    Parameters
    ----------
    student : callable
        Raises ``NotImplementedError`` while it is not written.
    workers : sequence of int
        Divisors of 12: numbers of simulated ranks to try; the last is that of the real ones.
    hints : sequence of str
        From gentle to plain; a wrong answer shows one more of them each time.

    Returns
    -------
    Verdict
        Never raises for what the student wrote.
    """
    name = getattr(student, "__name__", "the function")
    solved = (
        f"{name} computes what one process does, with one all-reduce each way, on {ranks_tried(workers)}."
    )
    return tried(name, on_both(workers, _try, student, timeout=10.0), _judge, hints, lambda told: solved)


def _judge(answers: list[Answer]) -> str:
    """What is wrong with what all ranks returned or sent."""
    sent = [sent for _, sent in answers]
    forms = [closed_form("ring", len(sent), SAMPLES * width, itemsize=8) for width in (OUTPUTS, INPUTS)]
    like = "one ring all-reduce of y and one of of_x"
    complaint = _differs(answers) or sends_otherwise(sent, forms, like, by="ring_allreduce")
    return complaint and f" {complaint}"


def _differs(answers: list[Answer]) -> str:
    """The first thing that is not as in one process; empty if all is."""
    for rank, (made, _) in enumerate(answers):
        if not isinstance(made, list) or len(made) != len(NAMES):
            return f"rank {rank} returns no tuple of {', '.join(NAMES)}."
        for name, mine, right in zip(NAMES, made, _right(rank, len(answers)), strict=True):
            differs = difference(mine, right, tolerance=1e-9, where=name)
            if differs:
                return f"on rank {rank} {differs}."
    return ""


Answer = tuple["list[torch.Tensor] | None", dict[str, "int | None"]]
"""What a rank returned, and the messages and bytes it sent."""


def _try(comm: Any, student: Callable[..., Any]) -> Answer:
    x, up, down, of_y = _problem()
    own = up.tensor_split(comm.size)[comm.rank].clone(), down.tensor_split(comm.size, 1)[comm.rank].clone()
    comm.traffic.take()
    made = student(comm, x, *own, of_y)
    sent = comm.traffic.take()
    return (list(made) if isinstance(made, (tuple, list)) else None), sent


def _right(rank: int, ranks: int) -> list[torch.Tensor]:
    """What a rank must return, by one process and autograd."""
    import torch

    x, up, down, of_y = _problem()
    for tensor in (x, up, down):
        tensor.requires_grad_()
    y = torch.relu(x @ up.T) @ down.T
    of_x, of_up, of_down = torch.autograd.grad(y, (x, up, down), of_y)
    return [y.detach(), of_x, of_up.tensor_split(ranks)[rank], of_down.tensor_split(ranks, 1)[rank]]


def _problem() -> Problem:
    """The same on every rank, in float64, with every number in its own place."""
    from torch import arange, float64

    def waves(rows: int, columns: int, pitch: float) -> torch.Tensor:
        return (pitch * arange(1, rows * columns + 1, dtype=float64)).sin().view(rows, columns)

    return Problem(
        x=waves(SAMPLES, INPUTS, 1.1),
        up=waves(HIDDEN, INPUTS, 2.3),
        down=waves(OUTPUTS, HIDDEN, 0.7),
        of_y=waves(SAMPLES, OUTPUTS, 1.9),
    )
