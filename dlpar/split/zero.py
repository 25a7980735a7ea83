"""ZeRO stage 3: data parallelism in which each rank keeps a chunk of each layer instead of the model.

Ranks gather a layer's weights just before each forward and backward pass, and free them just after it.  Ranks
add up the layer's gradient as soon as it is finished, and each keeps its chunk.  So a rank needs 1/N of the
memory, but sends 1.5 times the bytes of an all-reduce (Rajbhandari et al., "ZeRO", arXiv 1910.02054, 5.3 and
7.2.2).  With ``sync.overlap``, the next layer's weights and the previous layer's gradient travel while a layer
computes.  So a rank holds two layers at once (Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dlpar.collectives import HALVES
from dlpar.comm import Comm, Request, wait_all
from dlpar.memory import Memory
from dlpar.split.mesh import shares
from dlpar.split.partition import units
from dlpar.split.split import LayerwiseSplit, Task, backward, moved


class Buffer:
    """Flat vector with views. Its memory can be freed and allocated again.

    Autograd keeps the weights of a layer's forward pass until its backward pass.  So dropping these weights
    frees nothing. Their storage must shrink instead.  Views of the storage stay valid.
    """

    def __init__(self, like: Sequence[Tensor], comm: Comm, memory: Memory) -> None:
        self.comm, self.memory = comm, memory
        self.under_way: list[Request] = []
        self.flat = comm.empty(sum(tensor.numel() for tensor in like), dtype=like[0].dtype)
        parts = self.flat.split([tensor.numel() for tensor in like])
        self.pieces = [part.view(tensor.shape) for part, tensor in zip(parts, like)]
        self.chunks = self.flat.tensor_split(comm.size)
        memory.hold("gathered", self.flat)

    def allocate(self, is_wanted: bool = True) -> None:
        """Allocate the memory, with undefined contents, or free it."""
        self.flat.untyped_storage().resize_(self.flat.nbytes * is_wanted)
        self.memory.resized(self.flat)

    def send(self, half: Callable[..., None], beside: bool) -> None:
        """Make one half of an all-reduce, or start it beside the computation. Collective."""
        if beside:
            self.under_way.append(self.comm.start(lambda comm, _: half(comm, self.chunks), self.flat))
        else:
            half(self.comm, self.chunks)


class Sharded:
    """Parameters that are used together. Each rank keeps a chunk of them.

    Parameters
    ----------
    parameters : sequence of nn.Parameter
        They are whole on the host now, and later on the device between :meth:`gather` and :meth:`release`.
    task : Task
        The ranks of its data-parallel group share the parameters.

    Attributes
    ----------
    own : nn.Parameter, shape (n / N,)
        This rank's chunk. Its ``grad`` accumulates the gradients of micro-batches.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], task: Task) -> None:
        self.parameters, self.comm = parameters, task.place.dp_group
        self.reduce_scatter, self.allgather = HALVES[task.experiment.sync.allreduce]
        self.overlap = task.experiment.sync.overlap
        self.weights, self.gradient = (Buffer(parameters, self.comm, task.memory) for _ in range(2))
        self.gradient.allocate(False)
        # Only these, because the device may not hold the whole model.
        moved(nn.ParameterList(parameters), self.comm.device)
        for piece, parameter in zip(self.weights.pieces, parameters):
            piece.copy_(parameter.detach())
        self.own = nn.Parameter(self.weights.chunks[self.comm.rank].clone())
        self.release()

    def fetch(self, beside: bool = True) -> None:
        """Begin to assemble the whole parameters. Collective."""
        self.weights.allocate()
        self.weights.chunks[self.comm.rank].copy_(self.own.detach())
        self.weights.send(self.allgather, beside)

    def gather(self) -> None:
        """Assemble the whole parameters, or wait for :meth:`fetch`. Collective."""
        if not self.weights.under_way:
            self.fetch(beside=False)
        wait_all(self.weights.under_way)
        for parameter, piece in zip(self.parameters, self.weights.pieces):
            parameter.data = piece

    def release(self) -> None:
        """Free the memory of the other ranks' chunks, and forget the gradients."""
        for parameter in self.parameters:
            # Reading a parameter now raises an error instead of reading freed memory.
            parameter.grad, parameter.data = None, parameter.new_empty(0)
        self.weights.allocate(False)

    def expect_gradient(self) -> None:
        """Allocate the gradient for the backward pass while the parameters are whole."""
        self.gradient.allocate()
        self.gradient.flat.zero_()
        for parameter, piece in zip(self.parameters, self.gradient.pieces):
            parameter.grad = piece

    def scatter_gradient(self) -> None:
        """Begin to sum the gradient over ranks. Collective."""
        self.gradient.send(self.reduce_scatter, self.overlap)

    def keep_gradient(self) -> None:
        """Wait for the sum, keep this rank's chunk, and free the rest."""
        wait_all(self.gradient.under_way)
        assert self.own.grad is not None
        self.own.grad.add_(self.gradient.chunks[self.comm.rank])
        self.gradient.allocate(False)


class ZeroSplit(LayerwiseSplit):
    """Split that spreads the weights over all ranks. Each rank has separate samples."""

    whole_on_all = True
    kept = ("replica", "lengths", "buffers")

    def __init__(self, task: Task) -> None:
        parts = units(task.model, task.batch(0)[0][:1].to("cpu"))
        self.layers, self.costs = [task.model[part.layers] for part in parts], [part.flops for part in parts]
        users = {ends: Sharded(parameters, task) for ends, parameters in by_users(self.layers).items()}
        moved(task.model, task.comm.device)  # its buffers
        self.sharded = list(users.values())
        self.begins, self.ends = defaultdict(list), defaultdict(list)  # keyed by the number of a layer
        for (first, last), sharded in users.items():
            self.begins[first].append(sharded)
            self.ends[last].append(sharded)
        # Layers whose messages travel while one computes; the buffers are not in the replica's list of chunks.
        self.ahead, self.buffers = int(task.experiment.sync.overlap), list(task.model.buffers())
        super().__init__(task)
        self.replica.collects = False  # a layer's gradient is added to its chunk once computed
        # In the order of the replica.
        self.lengths = [len(sharded.weights.flat) for sharded in reversed(self.sharded)]

    def cut(self, model: nn.Sequential) -> nn.ParameterList:
        return nn.ParameterList([sharded.own for sharded in self.sharded])

    def gradient(self, step: int) -> None:
        each(self.sharded, Sharded.release)  # an evaluation may have left the layers whole
        super().gradient(step)

    def _forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss layer by layer. Keep each layer's input and output in separate graphs."""
        self._passed: list[tuple[Tensor, Tensor]] = []
        for number, layer in enumerate(self.layers):
            with self.pause():
                each(self.begins[number], Sharded.gather)
                each(self.begins[number + 1] * self.ahead, Sharded.fetch)
            entering = x.detach().requires_grad_(number > 0)
            work = partial(self._through, layer, entering, y if layer is self.layers[-1] else None)
            x = self.comm.compute(work, cost=self.costs[number] * len(y) / 3)
            self._passed.append((entering, x))
            each(self.ends[number], Sharded.release)
        return x

    def _through(self, layer: nn.Module, x: Tensor, y: Tensor | None) -> Tensor:
        """Compute a layer's output, or the loss if targets are given."""
        return layer(x) if y is None else self.task.criterion(layer(x), y)

    def _backward(self, loss: Tensor, samples: int) -> None:
        """Compute gradients layer by layer from the last layer. Drop each layer's kept tensors."""
        gradient: Any = torch.full_like(loss, self.task.share(samples))
        for number in reversed(range(len(self.layers))):
            with self.pause():
                each(self.ends[number], Sharded.gather, Sharded.expect_gradient)
                each(self.ends[number - 1] * self.ahead, Sharded.fetch)
            entering, leaving = self._passed.pop()
            self.comm.compute(partial(backward, leaving, gradient), cost=self.costs[number] * samples * 2 / 3)
            gradient = entering.grad
            del entering, leaving
            with self.pause():
                each(self.begins[number + 1] * self.ahead, Sharded.keep_gradient)
                each(self.begins[number], Sharded.scatter_gradient, Sharded.release)
                if not (self.ahead and number):
                    each(self.begins[number], Sharded.keep_gradient)

    def whole(self) -> nn.Module | None:
        here = self.task.place.replica == 0
        each(self.sharded, Sharded.gather, *[] if here else [Sharded.release])
        self.comm.traffic.take()  # these messages belong to no step
        return self.task.model if here else None


def each(sharded: Iterable[Sharded], *calls: Callable[[Sharded], None]) -> None:
    """Make all calls for each group of parameters in turn."""
    for parameters in sharded:
        for call in calls:
            call(parameters)


def by_users(layers: Sequence[nn.Module]) -> dict[tuple[int, int], list[nn.Parameter]]:
    """Group a model's parameters by the numbers of the first and last layer that use them.

    The two are the same layer, except for tied weights.
    """
    users: dict[nn.Parameter, list[int]] = {}
    for number, layer in enumerate(layers):
        for parameter in layer.parameters():
            users.setdefault(parameter, []).append(number)
    together: dict[tuple[int, int], list[nn.Parameter]] = defaultdict(list)
    for parameter, numbers in users.items():
        together[numbers[0], numbers[-1]].append(parameter)
    return together


def cut_again(chunks: Sequence[Tensor], lengths: Sequence[int], parts: int, part: int) -> Tensor:
    """Return one of `parts` ranges of flat tensors that were cut into another number of ranges.

    Parameters
    ----------
    chunks : sequence of Tensor
        Previous ranges in order. Each has its range of every tensor, one after the other.
    lengths : sequence of int
        Lengths of the whole tensors.
    parts, part : int
        New number of ranges, and the wanted range.
    """
    found = []
    for length in lengths:
        sizes = [len(share) for share in shares(length, len(chunks))]
        whole = torch.cat([chunk[:size] for chunk, size in zip(chunks, sizes)])
        chunks = [chunk[size:] for chunk, size in zip(chunks, sizes)]
        found.append(whole.tensor_split(parts)[part])
    return torch.cat(found)
