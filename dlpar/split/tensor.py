"""Tensor parallelism: every layer cut over the ranks of a replica, which compute each sample together.

The cut itself is in :mod:`dlpar.split.tensor`, what ranks say to each other in :mod:`dlpar.split.tensor_ops`.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from dlpar.collectives import star_broadcast
from dlpar.models import Attention, Block, Embedding, Tied
from dlpar.replica import Replica
from dlpar.split.split import Split, Task, propagate
from dlpar.split.tensor_ops import Ways, added, copied, gathered

if TYPE_CHECKING:
    from dlpar.comm import Comm


class TensorSplit(Split):
    """A replica whose every layer is cut over its ranks (Shoeybi et al., Megatron-LM, arXiv 1909.08053).

    Parameters
    ----------
    task : Task
        What to compute.

    Attributes
    ----------
    part : nn.Sequential
        This rank's pieces of all layers.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.comm, self.record, self.mates = task, task.comm, task.record, task.place.mates
        self._passes = {name: task.record.span(name) for name in ("forward", "backward")}
        self.part = cut_layers(task.model, self.mates, self._pause, task.experiment.split.redundancy)
        self.replica = Replica(self.part, task.comm)
        # Time is charged layer by layer as gradients come, in every world: what they finish can be told at once.
        self.replica.inside = lambda call: call()
        self.loss, self.samples = None, 0
        self._overlapping = [layer for layer in self.part if isinstance(layer, Overlapping)]
        for layer in self._overlapping:
            task.memory.hold("gathered", layer.copies)

    def gradient(self, step: int) -> None:
        task, replica = self.task, self.replica
        x, y = task.batch(step)
        replica.zero_gradient()
        with self._passes["forward"], task.forward_pass():
            self._agree()
            value = task.criterion(self.part(x), y)
        with self._passes["backward"]:
            propagate(value, task.share(len(y)))
        replica.loss, replica.samples = value.detach(), len(y)
        self.loss, self.samples = (replica.loss, replica.samples) if self.mates.rank == 0 else (None, 0)

    def _agree(self) -> None:
        """Where ranks hold copies of a weight, let them be equal."""
        for layer in self._overlapping:
            layer.refresh()
        if self.task.experiment.free_running:
            with self._pause("forward"):
                level(self.part, self.mates)

    @contextmanager
    def _pause(self, during: str) -> Iterator[None]:
        """A pass stops, and goes on when messages are there."""
        self._passes[during].__exit__(None, None, None)
        with self.record.span("communicate"):
            yield
        self._passes[during].__enter__()

    def whole(self) -> nn.Module | None:
        parameters = joined(self.part, self.mates)
        if parameters is None:
            return None
        for whole, present in zip(self.task.model.parameters(), parameters, strict=True):
            whole.data.copy_(present)
        return self.task.model


def cut_layers(
    model: nn.Module,
    comm: Comm,
    pause: Callable[[str], AbstractContextManager] | None = None,
    redundancy: float = 0.0,
    weights_wait: bool = False,
) -> nn.Sequential:
    """This rank's piece of a model, or of a stage of one: it takes and gives what the whole does.

    Parameters
    ----------
    model : nn.Module
        Its children are the layers, in the order in which they compute; left as it is.
    comm : Comm
        The ranks to cut over, t; all of them must call with the same model, and compute together.
    pause : callable, optional
        The context in which a pass stops for messages; see :class:`Ways`.
    redundancy : float, default 0
        Share of each rank's neurons that all ranks compute; above 0 for linear layers only (:class:`Overlapping`).
    weights_wait : bool, default False
        Whether gradients of weights have a pass of their own (:class:`dlpar.split.deferred.Later`).

    Returns
    -------
    nn.Sequential
        Layers of the same names, and at the end ``whole`` where the last of them left its output in pieces.
        Its parameters are in the order of the model's, each with ``cut_along``: the dimension along which ranks
        have pieces of it, or None where each has a copy.

    Notes
    -----
    t must divide the width and the heads of a block, the channels of a convolution and the outputs of a
    linear layer with another behind it; characters and classes may be any number.
    """
    ways, layers, ties = Ways(comm, pause, weights_wait), OrderedDict(), {}
    pieces: int | None = (
        None  # of what the layers so far give, elements along dimension 1 of all ranks, or whole
    )
    children = list(model.named_children())
    for place, (name, layer) in enumerate(children):
        if isinstance(layer, nn.Linear) and redundancy and place < len(children) - 1:
            layers[name] = Overlapping(piece_of(layer, ways, 0), ways, redundancy)
        elif isinstance(layer, (nn.Linear, nn.Conv2d)) and pieces is None:
            kind = Inner if redundancy else Columns  # overlapping neurons add up gradients themselves
            layers[name], pieces = kind(layer, ways), layer.weight.shape[0]
        elif isinstance(layer, (nn.Linear, nn.Conv2d)):
            layers[name], pieces = Rows(layer, ways), None
        elif isinstance(layer, nn.Flatten) and pieces is not None:
            layers[name], pieces = copy.deepcopy(layer), 0
        elif isinstance(layer, Block):
            layers[name] = _block(layer, ways)
        elif isinstance(layer, Embedding):
            layers[name] = Characters(layer, ways, ties)
        elif isinstance(layer, Tied):
            layers[name] = Scores(layer, ways, ties)
        else:
            layers[name] = copy_of(layer, ways)
    if pieces is not None:
        layers["whole"] = Whole(ways, pieces)
    return nn.Sequential(layers)


def joined(part: nn.Module, comm: Comm) -> list[Tensor] | None:
    """The whole parameters of a model that was cut over `comm`, in order, on its first rank; collective.

    It is for looking at the model, not a part of any step: it is not counted as traffic.
    """
    ranks = comm.gather([parameter.detach().cpu() for parameter in part.parameters()])
    if ranks is None:
        return None
    dims = [parameter.cut_along for parameter in part.parameters()]
    return [pieces[0] if dim is None else torch.cat(pieces, dim) for dim, pieces in zip(dims, zip(*ranks))]


@torch.no_grad()
def level(part: nn.Module, comm: Comm) -> None:
    """Give all ranks the first one's copies of what a model cut over `comm` has not cut; collective.

    Copies get the same gradients.  But where replicas do not wait for each other, servers add up
    the updates of different ranks' parts in different orders, and copies would drift apart.
    """
    copies = [parameter for parameter in part.parameters() if parameter.cut_along is None]
    if copies:
        flat = torch.cat([weight.view(-1) for weight in copies])
        star_broadcast(comm, flat)
        for weight, values in zip(copies, flat.split([weight.numel() for weight in copies])):
            weight.copy_(values.view_as(weight))


def share_of(parameter: nn.Parameter, ways: Ways, dim: int | None) -> nn.Parameter:
    """This rank's piece along a dimension, the first ranks' longer by one if need be; all of it for None."""
    piece = parameter.detach() if dim is None else parameter.detach().tensor_split(ways.size, dim)[ways.rank]
    share = nn.Parameter(piece.clone(memory_format=torch.contiguous_format))
    share.cut_along = dim
    return share


def piece_of(layer: nn.Module, ways: Ways, dim: int) -> nn.Module:
    """A linear layer or convolution with some of its outputs (dim 0), or of its inputs and no bias (dim 1)."""
    piece = copy.deepcopy(layer)
    piece.weight = share_of(layer.weight, ways, dim)
    piece.bias = None if dim or layer.bias is None else share_of(layer.bias, ways, 0)
    kind = "channels" if isinstance(layer, nn.Conv2d) else "features"
    for name, size in zip(("out", "in"), piece.weight.shape):
        setattr(piece, f"{name}_{kind}", size)
    return piece


def copy_of(layer: nn.Module, ways: Ways) -> nn.Module:
    """The layer, as every rank has it."""
    twin = copy.deepcopy(layer)
    for name, parameter in layer.named_parameters(recurse=False):
        setattr(twin, name, share_of(parameter, ways, None))
    return twin


def product(layer: nn.Module, x: Tensor, ways: Ways) -> Tensor:
    """The layer's output; a multiply-add counts as two operations, and the way back has a product or two."""
    output = layer(x)
    flops = 2 * output.numel() * layer.weight.shape[1:].numel()
    return ways.charged(output, flops, back=flops if ways.weights_wait else 2 * flops)


class Columns(nn.Module):
    """A linear layer or convolution by its outputs: neurons, channels or classes."""

    def __init__(self, layer: nn.Module, ways: Ways) -> None:
        super().__init__()
        self.ways, self.piece = ways, piece_of(layer, ways, 0)

    def forward(self, x: Tensor) -> Tensor:
        return product(self.piece, copied(x, self.ways), self.ways)


class Inner(Columns):
    """A layer by its outputs whose input's gradient is added up by what is before it."""

    def forward(self, x: Tensor) -> Tensor:
        return product(self.piece, x, self.ways)


class Rows(nn.Module):
    """A linear layer or convolution by its inputs; each rank has a copy of the bias."""

    def __init__(self, layer: nn.Module, ways: Ways) -> None:
        super().__init__()
        self.ways, self.piece = ways, piece_of(layer, ways, 1)
        self.shift = nn.Identity() if layer.bias is None else Shift(layer, ways)

    def forward(self, x: Tensor) -> Tensor:
        return self.shift(added(product(self.piece, x, self.ways), self.ways))


class Shift(nn.Module):
    """The bias of a linear layer or convolution, for an output that has been added up."""

    def __init__(self, layer: nn.Module, ways: Ways) -> None:
        super().__init__()
        self.bias = share_of(layer.bias, ways, None)
        self.shape = (-1, 1, 1) if isinstance(layer, nn.Conv2d) else (-1,)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.view(self.shape)


class Heads(Attention):
    """Attention by heads: each rank's read for themselves, and what they merge is added up.

    Queries, keys and values read one input, whose gradient is added up once for the three.
    """

    def __init__(self, attention: Attention, ways: Ways) -> None:
        nn.Module.__init__(self)
        self.ways, self.heads = ways, attention.heads // ways.size
        self.query, self.key, self.value = (
            Inner(layer, ways) for layer in (attention.query, attention.key, attention.value)
        )
        self.merge = Rows(attention.merge, ways)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(copied(x, self.ways))

    def read(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = super().read(query, key, value)
        return self.ways.charged(output, 4 * output.numel() * output.shape[1])


def _block(block: Block, ways: Ways) -> Block:
    """A transformer block: heads, then the neurons between `up` and `down`; normalisation is done by all."""
    part = copy.deepcopy(block)
    part.norm1, part.norm2 = copy_of(block.norm1, ways), copy_of(block.norm2, ways)
    part.attention = Heads(block.attention, ways)
    part.up, part.down = Columns(block.up, ways), Rows(block.down, ways)
    return part


def _tied(weight: nn.Parameter, ways: Ways, ties: dict[nn.Parameter, nn.Parameter]) -> nn.Parameter:
    """This rank's characters of a weight that two layers use: one piece for both."""
    return ties[weight] if weight in ties else ties.setdefault(weight, share_of(weight, ways, 0))


class Characters(nn.Module):
    """An embedding by characters: each rank looks up its own, and the others' are zeros that add nothing."""

    def __init__(self, embedding: Embedding, ways: Ways, ties: dict[nn.Parameter, nn.Parameter]) -> None:
        super().__init__()
        whole = embedding.token.weight
        self.ways, self.weight = ways, _tied(whole, ways, ties)
        self.first = sum(lengths(len(whole), ways.size)[: ways.rank])
        self.position = copy_of(embedding.position, ways)

    def forward(self, x: Tensor) -> Tensor:
        number = x - self.first
        here = (number >= 0) & (number < len(self.weight))
        found = F.embedding(torch.where(here, number, 0), self.weight) * here.unsqueeze(-1)
        return added(found, self.ways) + self.position.weight[: x.shape[1]]


class Scores(nn.Module):
    """The tied output by characters: each rank scores its own, and every rank gets all scores."""

    def __init__(self, tied: Tied, ways: Ways, ties: dict[nn.Parameter, nn.Parameter]) -> None:
        super().__init__()
        self.ways, self.weight = ways, _tied(tied.weight, ways, ties)
        self.sizes = lengths(len(tied.weight), ways.size)

    def forward(self, x: Tensor) -> Tensor:
        scores = F.linear(copied(x, self.ways), self.weight)
        return gathered(
            self.ways.charged(scores, 2 * scores.numel() * x.shape[-1]), self.ways, self.sizes, -1
        )


class Whole(nn.Module):
    """All ranks' pieces, where a row of layers ends between a layer by outputs and one by inputs."""

    def __init__(self, ways: Ways, total: int) -> None:
        super().__init__()
        self.ways, self.total = ways, total

    def forward(self, x: Tensor) -> Tensor:
        total = self.total or x.shape[1] * self.ways.size  # behind Flatten, whose pieces are equal
        return gathered(x, self.ways, lengths(total, self.ways.size), 1)


def lengths(total: int, parts: int) -> list[int]:
    """Elements of each piece, as ``tensor_split`` cuts."""
    return [total // parts + (place < total % parts) for place in range(parts)]


class Overlapping(nn.Module):
    """A linear layer by its outputs, some of which every rank computes; it gives all outputs on every rank.

    Parameters
    ----------
    own : nn.Linear
        This rank's neurons, the same number on each.
    ways : Ways
        The ranks.
    redundancy : float
        Share of each rank's neurons, from 0 to 1, that all ranks compute; rounded to whole neurons.

    Attributes
    ----------
    own : nn.Linear
        As given.
    common : int
        Of each rank's neurons, those that all compute.
    copies : Tensor, shape (ranks, common, inputs + 1)
        Their weights, and biases behind them, as they were at the last :meth:`refresh`.
    """

    def __init__(self, own: nn.Linear, ways: Ways, redundancy: float) -> None:
        super().__init__()
        self.ways, self.own = ways, own
        self.common = round(redundancy * len(own.weight))
        self.copies = own.weight.detach().new_empty(ways.size, self.common, own.weight.shape[1] + 1)

    @torch.no_grad()
    def refresh(self) -> None:
        """Get the present weights of the others' neurons that this rank computes; collective, before each step."""
        if not self.common:
            return
        own = torch.cat([self.own.weight[: self.common], self.own.bias[: self.common, None]], 1)
        torch.stack(self.ways.gather(own, [self.common] * self.ways.size, 0, "forward"), out=self.copies)

    def forward(self, x: Tensor) -> Tensor:
        ways, inputs = self.ways, x.shape[1]
        mine = self.own(x)
        mine = ways.charged(mine, 2 * mine.numel() * inputs)
        with torch.no_grad():
            computed = [
                mine if rank == ways.rank else F.linear(x, copy[:, :-1], copy[:, -1])
                for rank, copy in enumerate(self.copies)
            ]
        ways.comm.compute(lambda: None, cost=2 * len(x) * inputs * self.common * (ways.size - 1))
        return _Exchanged.apply(mine, computed, self.common, ways)


class _Exchanged(Function):
    """Forward an all-gather of what only its owner has computed; backward a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, computed: list[Tensor], common: int, ways: Ways) -> Tensor:
        ctx.ways = ways
        alone = mine.shape[1] - common
        if not alone:
            return torch.cat(computed, 1)
        sent = ways.gather(mine[:, common:], [alone] * ways.size, 1, "forward")
        return torch.cat([part for each, rest in zip(computed, sent) for part in (each[:, :common], rest)], 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.ways.scatter(gradient, 1, "backward"), None, None, None
