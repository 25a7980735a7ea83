"""What every split is: how the ranks of one replica compute its gradient together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dlpar.memory import Memory
from dlpar.replica import Replica

if TYPE_CHECKING:
    from dlpar.comm import Comm, Recorder
    from dlpar.config.experiment import Experiment
    from dlpar.split.mesh import Place


@dataclass(frozen=True)
class Task:
    """What a replica has to do, and where.

    Attributes
    ----------
    experiment : Experiment
        What is run.
    comm : Comm
        All ranks.
    place : Place
        This rank's.
    model : nn.Module
        The whole model; every rank has made the same.
    criterion : callable
        ``(output, target)`` to the mean loss over samples.
    flops : float
        Of a sample's forward and backward pass through the whole model.
    batch : callable
        From a step to the replica's samples of it, ``(x, y)``; steps may be asked for in any order.
    record : Recorder
        Where spans are written.
    memory : Memory
        Where is counted what this rank holds beside weights, gradient and what autograd keeps.
    """

    experiment: Experiment
    comm: Comm
    place: Place
    model: nn.Module
    criterion: Callable[[Tensor, Tensor], Tensor]
    flops: float
    batch: Callable[[int], tuple[Tensor, Tensor]]
    record: Recorder
    memory: Memory = field(default_factory=Memory)

    def forward_pass(self) -> AbstractContextManager:
        """The context of a forward pass: with mixed precision its products are made in bfloat16."""
        return forward_pass(self.experiment, self.comm.device)

    def share(self, samples: int) -> float:
        """What so many samples are of the global batch: by so much their mean loss counts."""
        return samples / self.experiment.global_batch


class Split:
    """A replica that one rank computes by itself; other splits change what differs.

    Parameters
    ----------
    task : Task
        What to compute.

    Attributes
    ----------
    replica : Replica
        The weights this rank holds, and their gradient.
    loss, samples : float, Tensor of shape () or None, int
        Of the step just computed: the replica's, on the one rank that speaks for it; elsewhere None and 0.  A tensor
        is on the rank's device: who reads it waits for what a GPU still has to do.
    whole_on_all : bool
        Whether the ranks of all replicas must call :meth:`whole`, in place of the first one's.
    """

    whole_on_all = False

    def __init__(self, task: Task) -> None:
        self.task, self.comm, self.record = task, task.comm, task.record
        self.microbatches = getattr(task.experiment.split, "microbatches", 1)
        self.replica = Replica(task.model, task.comm)
        self.loss, self.samples = None, 0

    def gradient(self, step: int) -> None:
        """Leave in ``replica.gradient`` what the replica's samples of a step contribute to the gradient of the
        global batch's mean loss: over replicas it adds up."""
        task, replica, comm, record = self.task, self.replica, self.comm, self.record
        x, y = task.batch(step)
        pieces = [(x, y)]
        if self.microbatches > 1:
            pieces = list(zip(x.tensor_split(self.microbatches), y.tensor_split(self.microbatches)))
        losses, counts = [], [len(y_of) for _, y_of in pieces]
        replica.zero_gradient()
        for micro, (x_of, y_of) in enumerate(pieces):
            cost = task.flops * counts[micro]
            replica.last = micro == len(pieces) - 1  # its backward pass finishes the gradient
            with record.span("forward"):
                value = comm.compute(partial(self._loss, x_of, y_of), cost=cost / 3)
            with record.span("backward"):
                backward = partial(propagate, value, task.share(counts[micro]))
                comm.compute(backward, cost=cost * 2 / 3, marks=replica.marks if replica.last else ())
            losses.append(value.detach())
        self.loss, self.samples = mean(losses, counts), sum(counts)
        replica.loss, replica.samples = self.loss, self.samples

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of some samples."""
        with self.task.forward_pass():
            return self.task.criterion(self.task.model(x), y)

    def facts(self) -> dict[str, Any]:
        """What else is recorded of the step just done."""
        return {}

    def whole(self) -> nn.Module | None:
        """The whole model with its present weights on the replica's first rank, None on the others; collective over
        the replica's ranks."""
        return self.task.model


def mean(losses: list[Tensor], counts: list[int]) -> Tensor:
    """The mean over all samples from those of pieces of so many samples."""
    total = sum(counts)
    if len(losses) == 1 or not total:
        return losses[0]
    return sum(loss * (count / total) for loss, count in zip(losses, counts))


_run = torch.autograd.Variable._execution_engine.run_backward


def derivative(output: Tensor, inputs: Sequence[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    """The loss's gradient with respect to `inputs`, from that with respect to `output`, which has its shape.

    The same as ``torch.autograd.grad(output, inputs, gradient)``.
    """
    return _run(
        (output,), (gradient,), False, False, tuple(inputs), allow_unreachable=False, accumulate_grad=False
    )


def backward(output: Tensor, gradient: Tensor) -> None:
    """Add up derivatives where they belong: ``output.backward(gradient)``."""
    _run((output,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def propagate(loss: Tensor, share: float) -> None:
    """Add the gradient of `share` times a loss to the weights': ``(loss * share).backward()``."""
    backward(loss, torch.full_like(loss, share))


def forward_pass(experiment: Experiment, device: torch.device) -> AbstractContextManager:
    """The context of a forward pass."""
    return nullcontext() if experiment.precision == "full" else torch.autocast(device.type, torch.bfloat16)


def of_activations(experiment: Experiment) -> torch.dtype:
    """The type in which activations, and their gradients, travel between the ranks of a replica."""
    return getattr(torch, experiment.dtype) if experiment.precision == "full" else torch.bfloat16


def narrowed(x: torch.Tensor) -> torch.Tensor:
    """A tensor of floats as products take it at present: in a forward pass of mixed precision, in bfloat16."""
    kind = x.device.type
    if not (
        x.is_floating_point() and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    ):
        return x
    return x.to(torch.get_autocast_dtype(kind))
