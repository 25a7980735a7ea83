"""ZeRO stage 3: data parallelism in which no rank keeps the model, but a chunk of each of its layers.

A layer's weights are gathered right before it computes, forward and again backward,
and let go right after; its gradient is added up over ranks as soon as it is finished,
each rank keeping its chunk.  So an N-th of the memory costs one and a half times the
bytes of an all-reduce (Rajbhandari et al., "ZeRO", arXiv 1910.02054, 5.3 and 7.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dlpar.collectives import HALVES, own_chunk
from dlpar.split.partition import units
from dlpar.split.split import Split, Task, backward

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.memory import Memory


class Lent:
    """A flat vector whose memory comes and goes, and a view of it for each of some tensors.

    Autograd keeps the weights a layer computed with until it computes backward, so that
    dropping them frees nothing; their storage has to shrink.  Views of it stay what they are.
    """

    def __init__(self, like: Sequence[Tensor], comm: Comm, memory: Memory) -> None:
        self.memory = memory
        self.flat = comm.empty(sum(tensor.numel() for tensor in like), dtype=like[0].dtype)
        self.nbytes = self.flat.nbytes
        parts = self.flat.split([tensor.numel() for tensor in like])
        self.pieces = [part.view(tensor.shape) for part, tensor in zip(parts, like)]
        self.chunks = self.flat.tensor_split(comm.size)
        memory.hold("gathered", self.flat)

    def take(self) -> None:
        """Have memory; what is in it is undefined."""
        self.flat.untyped_storage().resize_(self.nbytes)
        self.memory.resized(self.flat)

    def let_go(self) -> None:
        """Have none."""
        self.flat.untyped_storage().resize_(0)
        self.memory.resized(self.flat)


class Shared:
    """Parameters that are used together, of which each rank keeps a chunk.

    Parameters
    ----------
    parameters : sequence of nn.Parameter
        Whole now; from then on only between :meth:`gather` and :meth:`release`.
    first, last : int
        Numbers of the first and the last layer that uses them: one and the same, but for tied weights.
    task : Task
        Whose ranks share them.

    Attributes
    ----------
    own : nn.Parameter, shape (n / N,)
        This rank's chunk; in its ``grad`` the gradients of micro-batches add up.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], first: int, last: int, task: Task) -> None:
        self.parameters, self.first, self.last, self.comm = parameters, first, last, task.place.dp_group
        self.reduce_scatter, self.allgather = HALVES[task.experiment.sync.allreduce]
        self.weights, self.gradient = (Lent(parameters, self.comm, task.memory) for _ in range(2))
        self.gradient.let_go()
        for piece, parameter in zip(self.weights.pieces, parameters):
            piece.copy_(parameter.detach())
        self.mine = own_chunk(self.comm)
        self.own = nn.Parameter(self.weights.chunks[self.mine].clone())
        self.release()

    def gather(self) -> None:
        """Make the parameters whole; collective."""
        self.weights.take()
        self.weights.chunks[self.mine].copy_(self.own.detach())
        self.allgather(self.comm, self.weights.chunks)
        for parameter, piece in zip(self.parameters, self.weights.pieces):
            parameter.data = piece

    def release(self) -> None:
        """Let go of what others keep."""
        for parameter in self.parameters:
            parameter.data = parameter.new_empty(0)  # who reads it now gets an error, not freed memory
        self.weights.let_go()

    def expect_gradient(self) -> None:
        """Give the backward pass a place to add to; the parameters are whole."""
        self.gradient.take()
        self.gradient.flat.zero_()
        for parameter, piece in zip(self.parameters, self.gradient.pieces):
            parameter.grad = piece

    def scatter_gradient(self) -> None:
        """Add the gradient up over ranks, and keep this rank's chunk of it; collective."""
        self.reduce_scatter(self.comm, self.gradient.chunks)
        self.own.grad.add_(self.gradient.chunks[self.mine])
        for parameter in self.parameters:
            parameter.grad = None
        self.gradient.let_go()


class ZeroSplit(Split):
    """A replica whose weights are on all ranks, a chunk on each; every rank has samples of its own."""

    whole_on_all = True

    def __init__(self, task: Task) -> None:
        parts = units(task.model, task.batch(0)[0][:1])
        self.layers, self.flops = [task.model[part.layers] for part in parts], [part.flops for part in parts]
        self.shared = [
            Shared(parameters, first, last, task)
            for (first, last), parameters in by_users(self.layers).items()
        ]
        numbers = range(len(self.layers))
        self.begins = [[shared for shared in self.shared if shared.first == number] for number in numbers]
        self.ends = [[shared for shared in self.shared if shared.last == number] for number in numbers]
        super().__init__(task)

    def cut(self, model: nn.Module) -> nn.ParameterList:
        return nn.ParameterList([shared.own for shared in self.shared])

    def gradient(self, step: int) -> None:
        task, replica = self.task, self.replica
        pieces = task.microbatches(step, self.microbatches)
        samples, loss = sum(len(y) for _, y in pieces), 0.0
        replica.zero_gradient()
        for shared in self.shared:
            shared.release()  # a test may have left them whole
        for x, y in pieces:
            passed = self._forward(x, y)
            loss += passed[-1][1].detach() * len(y)
            self._backward(passed, len(y))
        self._report(loss / samples if samples else loss, samples)

    def _forward(self, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What entered each layer, cut off from what was before it, and what left it: the last one, the loss."""
        passed: list[tuple[Tensor, Tensor]] = []
        for number, layer in enumerate(self.layers):
            with self.record.span("communicate"):
                for shared in self.begins[number]:
                    shared.gather()
            entering = x.detach().requires_grad_(number > 0)
            compute = partial(self._loss, layer, y) if number == len(self.layers) - 1 else layer
            with self.record.span("forward"):
                x = self.comm.compute(partial(compute, entering), cost=self.flops[number] * len(y) / 3)
            passed.append((entering, x))
            for shared in self.ends[number]:
                shared.release()
        return passed

    def _loss(self, layer: nn.Module, y: Tensor, x: Tensor) -> Tensor:
        return self.task.criterion(layer(x), y)

    def _backward(self, passed: list[tuple[Tensor, Tensor]], samples: int) -> None:
        """Layer by layer from the last; what a layer kept goes with it."""
        gradient = torch.full_like(passed[-1][1], self.task.share(samples))
        for number in reversed(range(len(self.layers))):
            with self.record.span("communicate"):
                for shared in self.ends[number]:
                    shared.gather()
                    shared.expect_gradient()
            entering, leaving = passed.pop()
            with self.record.span("backward"):
                self.comm.compute(
                    partial(backward, leaving, gradient), cost=self.flops[number] * samples * 2 / 3
                )
            gradient = entering.grad
            del entering, leaving
            with self.record.span("communicate"):
                for shared in self.begins[number]:
                    shared.scatter_gradient()
                    shared.release()

    def whole(self) -> nn.Module | None:
        here = self.task.place.replica == 0
        for shared in self.shared:
            shared.gather()
            if not here:
                shared.release()
        self.comm.traffic.take()  # what a test sends is no part of a step
        return self.task.model if here else None


def by_users(layers: Sequence[nn.Module]) -> dict[tuple[int, int], list[nn.Parameter]]:
    """The parameters of a model, by the numbers of the first and the last layer that uses them."""
    users: dict[nn.Parameter, list[int]] = {}
    for number, layer in enumerate(layers):
        for parameter in layer.parameters():
            users.setdefault(parameter, []).append(number)
    together: dict[tuple[int, int], list[nn.Parameter]] = {}
    for parameter, numbers in users.items():
        together.setdefault((numbers[0], numbers[-1]), []).append(parameter)
    return together
