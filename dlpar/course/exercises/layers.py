"""Exercise of lab 08: two layers cut over ranks: their outputs and gradients, and the data sent for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlpar.course.judge import Held, Step, Verdict, first_difference, judge_on_ranks, secret
from dlpar.theory.counts import closed_form

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


NAMES = ("y", "of_x", "of_up", "of_down")
"""Parts of an answer."""

SAMPLES, INPUTS, HIDDEN, OUTPUTS = 5, 6, 12, 3
"""Sizes of the perceptron on which every answer is tried: 2, 3 and 4 ranks divide its hidden neurons."""

SOLVED = "{name} computes what one process does, with one all-reduce each way, on {ranks}."


class Problem(NamedTuple):
    """A whole perceptron and its data: ``y = relu(x @ up.T) @ down.T``.

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
    student: Callable[..., Any] | None, workers: Sequence[int] = (2, 3, 4), hints: Sequence[str] = ()
) -> Verdict:
    """Call ``student(comm, x, up, down, of_y)`` on every rank, with its pieces of two layers.

    It must return ``y, of_x, of_up, of_down``: the whole output, the gradient of the whole input, and
    those of its own weights; and send no more than an all-reduce of the output and one of the
    input's gradient.

    Parameters
    ----------
    student : callable or None
        Raises ``NotImplementedError`` while it is not written.
    workers : sequence of int
        Divisors of 12: numbers of simulated ranks to try; the last is that of the real ones.
    hints : sequence of str
        From gentle to plain; a wrong answer shows one more of them each time.

    Returns
    -------
    Verdict
        Never raises for an error in the student's code.
    """
    return judge_on_ranks(student, _on_rank, workers, _complain, SOLVED, hints, timeout=10.0)


def _complain(told: list[list[Held]]) -> str:
    for rank, held in enumerate(told):
        if not held:
            return f", rank {rank} returns no tuple of {', '.join(NAMES)}."
    ranks = len(told)
    forms = [closed_form("ring", ranks, SAMPLES * width, itemsize=8) for width in (OUTPUTS, INPUTS)]
    right = zip(*(_alone(rank, ranks) for rank in range(ranks)))
    steps = [Step("", expected, name) for name, expected in zip(NAMES, right)]
    steps[-1] = steps[-1]._replace(sends=forms)
    like = "one ring all-reduce of y and one of of_x"
    return first_difference(told, steps, like, by="ring_allreduce", tolerance=1e-9)


def _on_rank(comm: Comm, student: Callable[..., Any]) -> list[Held]:
    """Each part of the answer, with all that was sent; nothing unless the answer has as many parts as it should."""
    x, up, down, of_y = _problem(comm.size)
    own = up.tensor_split(comm.size)[comm.rank].clone(), down.tensor_split(comm.size, 1)[comm.rank].clone()
    comm.traffic.take()
    made = student(comm, x, *own, of_y)
    sent = comm.traffic.take()
    complete = isinstance(made, (tuple, list)) and len(made) == len(NAMES)
    return [(part, sent) for part in made] if complete else []


def _alone(rank: int, ranks: int) -> list[torch.Tensor]:
    """The right answer of a rank, by one process and autograd."""
    import torch

    x, up, down, of_y = _problem(ranks)
    for tensor in (x, up, down):
        tensor.requires_grad_()
    y = torch.relu(x @ up.T) @ down.T
    of_x, of_up, of_down = torch.autograd.grad(y, (x, up, down), of_y)
    return [y.detach(), of_x, of_up.tensor_split(ranks)[rank], of_down.tensor_split(ranks, 1)[rank]]


def _problem(ranks: int) -> Problem:
    """The same on every rank, in float64, with every number in its own place; random if it is graded."""
    from torch import arange, float64, from_numpy

    def waves(rows: int, columns: int, pitch: float) -> torch.Tensor:
        if draw := secret("layers", ranks, rows, columns):
            return from_numpy(draw.normal(size=(rows, columns)))
        return (pitch * arange(1, rows * columns + 1, dtype=float64)).sin().view(rows, columns)

    return Problem(
        x=waves(SAMPLES, INPUTS, 1.1),
        up=waves(HIDDEN, INPUTS, 2.3),
        down=waves(OUTPUTS, HIDDEN, 0.7),
        of_y=waves(SAMPLES, OUTPUTS, 1.9),
    )
