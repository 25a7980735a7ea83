"""Tensor parallelism: the ranks of a replica cut every layer and compute each sample together.

The operators that send messages are in :mod:`dlpar.split.tensor_ops`.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dlpar.collectives import star_broadcast
from dlpar.comm import Comm
from dlpar.models import Attention, Block, Embedding, Tied
from dlpar.split.mesh import shares
from dlpar.split.split import LayerwiseSplit, Task, moved, release
from dlpar.split.tensor_ops import TensorGroup, added, charged, columns, copied, gathered, pair

Ties = dict[nn.Parameter, nn.Parameter]
"""This rank's piece of each weight that two layers share."""


class TensorSplit(LayerwiseSplit):
    """Split that cuts every layer over the ranks of a replica (Shoeybi et al., Megatron-LM, arXiv 1909.08053)."""

    def __init__(self, task: Task) -> None:
        self.group = task.place.mp_group
        self.speaks = self.group.rank == 0
        super().__init__(task)
        # Layers charge for each computation when it happens, so a finished gradient can be announced at once.
        self.replica.inside = lambda call: call()
        self._overlapping = [each for each in self.replica.model.children() if isinstance(each, Overlapping)]
        for layer in self._overlapping:
            task.memory.hold("gathered", layer.copies)

    def cut(self, model: nn.Sequential) -> nn.Sequential:
        split = self.task.experiment.split
        group = TensorGroup(self.group, self.pause, async_allreduce=split.async_allreduce)
        part = moved(cut_layers(model, group, split.redundancy), self.comm.device)
        release(model)
        return part

    def _forward(self, x: Tensor, y: Tensor) -> Tensor:
        # First make ranks' copies of the same weights equal.
        for layer in self._overlapping:
            layer.refresh()
        if self.task.experiment.sync.runs_free:
            with self.pause():
                level(self.replica.model, self.group)
        return super()._forward(x, y)

    def whole(self) -> nn.Module | None:
        parameters = joined(self.replica.model, self.group)
        if parameters is None:
            return None
        for whole, present in zip(self.task.model.parameters(), parameters, strict=True):
            whole.data = present.to(whole.device, copy=True)
        return self.task.model.to(self.comm.device)

    def release(self) -> None:
        release(self.task.model)


ELEMENTWISE = nn.Linear, nn.Conv2d, nn.Flatten, nn.ReLU, nn.GELU, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d
"""Layers that may follow a layer cut by outputs: those that end the pieces, or act on each element or channel."""


def cut_layers(model: nn.Module, group: TensorGroup, redundancy: float = 0.0) -> nn.Sequential:
    """Return this rank's piece of a model or of some layers. Inputs and outputs are those of whole layers.

    Parameters
    ----------
    model : nn.Module
        Its children are the layers, in the order in which they compute. It is not changed.
    group : TensorGroup
        The t ranks over which to cut. All must call this with the same model, and compute together.
    redundancy : float, default 0
        Share of each rank's neurons that all ranks compute. Only linear layers can have a share above 0
        (:class:`Overlapping`).

    Returns
    -------
    nn.Sequential
        Layers with the same names, followed by ``whole`` if the last layer left its output in pieces. Its
        parameters are in the order of the model's. Each has ``cut_along``: the dimension along which it is
        cut, or None for a copy on each rank.

    Notes
    -----
    t must divide the width and the heads of a block, and the channels of a convolution. It must also divide
    the outputs of a linear layer that another layer follows. The numbers of characters and classes can have
    any value. Between a layer cut by outputs and the next linear layer or convolution, only layers of
    :data:`ELEMENTWISE` may stand.

    Raises
    ------
    ValueError
        If there is another layer, a convolution with groups, or a dropout, which would differ between copies.
    """
    layers = OrderedDict[str, nn.Module]()
    ties: Ties = {}  # pieces of weights that two layers use
    # The layers so far give whole outputs (None), or pieces: elements along dimension 1 of all ranks together.
    pieces: int | None = None
    children = list(model.named_children())
    for place, (name, layer) in enumerate(children):
        between = pieces is None or isinstance(layer, ELEMENTWISE)
        if not between or getattr(layer, "groups", 1) > 1 or getattr(layer, "p", 0) > 0:
            raise ValueError(f"model: got {layer}, allowed here is a layer that can be cut, or copied")
        if isinstance(layer, nn.Linear) and redundancy and place < len(children) - 1:
            layers[name] = Overlapping(piece_of(layer, group, 0), group, redundancy)
        elif isinstance(layer, (nn.Linear, nn.Conv2d)) and pieces is None:
            # Overlapping neurons sum their gradients themselves.
            layers[name] = ColumnParallel(layer, group, sums_gradient=not redundancy)
            pieces = layer.weight.shape[0]
        elif isinstance(layer, (nn.Linear, nn.Conv2d)):
            layers[name], pieces = RowParallel(layer, group), None
        elif isinstance(layer, nn.Flatten) and pieces is not None:
            layers[name], pieces = copy.deepcopy(layer), 0
        elif isinstance(layer, Block):
            layers[name] = _block(layer, group)
        elif isinstance(layer, (Embedding, Tied)):
            by_characters = ParallelEmbedding if isinstance(layer, Embedding) else ParallelOutput
            layers[name] = by_characters(layer, group, ties)
        else:
            layers[name] = piece_of(layer, group, None)
    if pieces is not None:
        layers["whole"] = Gathered(group, pieces)
    return nn.Sequential(layers)


def joined(part: nn.Module, comm: Comm) -> list[Tensor] | None:
    """Return, on the first rank, the whole parameters of a model cut over `comm`, in order.

    Collective.

    This is for inspection outside a step, so it does not count as traffic.
    """
    ranks = comm.gather([parameter.detach().cpu() for parameter in part.parameters()])
    if ranks is None:
        return None
    parameters: list[Any] = list(part.parameters())
    dims = [parameter.cut_along for parameter in parameters]
    return [pieces[0] if dim is None else torch.cat(pieces, dim) for dim, pieces in zip(dims, zip(*ranks))]


@torch.no_grad()
def level(part: nn.Module, comm: Comm) -> None:
    """Copy the first rank's uncut weights to all ranks. Collective.

    Copies get the same gradients.  But if replicas do not wait for each other, servers add up the updates of
    different parts in different orders, so copies would drift apart.
    """
    parameters: list[Any] = list(part.parameters())
    copies = [parameter for parameter in parameters if parameter.cut_along is None]
    if copies:
        flat = nn.utils.parameters_to_vector(copies)
        star_broadcast(comm, flat)
        for weight, values in zip(copies, flat.split([weight.numel() for weight in copies])):
            weight.copy_(values.view_as(weight))


def share_of(parameter: Tensor, group: TensorGroup, dim: int | None) -> Any:
    """Return this rank's piece along a dimension, or all if it is None. First pieces may be longer by one."""
    piece = parameter.detach()
    if dim is not None:
        piece = piece.tensor_split(group.size, dim)[group.rank]
    share: Any = nn.Parameter(piece.clone(memory_format=torch.contiguous_format))
    share.cut_along = dim
    return share


def piece_of(layer: nn.Module, group: TensorGroup, dim: int | None) -> Any:
    """Copy a piece of a layer: some outputs (dim 0), some inputs without the bias (1), or all (None)."""
    piece = copy.deepcopy(layer)
    for name, parameter in layer.named_parameters(recurse=False):
        setattr(piece, name, None if dim and name == "bias" else share_of(parameter, group, dim))
    return piece


def product(layer: Any, x: Tensor, group: TensorGroup) -> Tensor:
    """Compute a layer's output and charge its operations. The backward pass has one or two products."""
    output = layer(x)
    flops = 2 * output.numel() * layer.weight.shape[1:].numel()
    return charged(output, group, flops, back=flops if group.weights_wait else 2 * flops)


class ColumnParallel(nn.Module):
    """Linear layer or convolution cut by its outputs: neurons, channels or classes.

    Parameters
    ----------
    sums_gradient : bool, default True
        Whether this layer adds up the ranks' gradients of the input, instead of an earlier operator.
    """

    def __init__(self, layer: nn.Module, group: TensorGroup, sums_gradient: bool = True) -> None:
        super().__init__()
        self.group, self.piece, self.sums_gradient = group, piece_of(layer, group, 0), sums_gradient

    def forward(self, x: Tensor) -> Tensor:
        if self.group.async_allreduce and self.sums_gradient:
            return columns(x, self.group, [self.piece])[0]
        return product(self.piece, copied(x, self.group) if self.sums_gradient else x, self.group)


class RowParallel(nn.Module):
    """Linear layer or convolution cut by its inputs. Each rank has a copy of the bias."""

    def __init__(self, layer: Any, group: TensorGroup) -> None:
        super().__init__()
        self.group, self.piece = group, piece_of(layer, group, 1)
        # The bias is in the piece, so that it follows the weight as in the whole layer.
        self.piece.shift = None if layer.bias is None else share_of(layer.bias, group, None)
        self.shape = (-1, 1, 1) if isinstance(layer, nn.Conv2d) else (-1,)

    def forward(self, x: Tensor) -> Tensor:
        output = added(product(self.piece, x, self.group), self.group)
        return output if self.piece.shift is None else output + self.piece.shift.view(self.shape)


class ParallelAttention(Attention):
    """Attention cut by heads. Each rank computes some heads, and the merged outputs are summed.

    Queries, keys and values read one input, so its gradient is added up once for all three.
    """

    def __init__(self, attention: Attention, group: TensorGroup) -> None:
        nn.Module.__init__(self)
        self.group, self.heads = group, attention.heads // group.size
        for name in ("query", "key", "value"):
            setattr(self, name, ColumnParallel(getattr(attention, name), group, sums_gradient=False))
        self.merge: Any = RowParallel(attention.merge, group)

    def forward(self, x: Tensor) -> Tensor:
        if self.group.async_allreduce:
            layers: Any = [self.query.piece, self.key.piece, self.value.piece]
            return self.merge(self.read(*columns(x, self.group, layers)))
        return super().forward(copied(x, self.group))

    def read(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = super().read(query, key, value)
        return charged(output, self.group, 4 * output.numel() * output.shape[1])


def _block(block: Block, group: TensorGroup) -> Block:
    """Cut a transformer block by heads, then by the neurons between `up` and `down`. All ranks normalise."""
    part: Any = copy.deepcopy(block)
    part.norm1, part.norm2 = piece_of(block.norm1, group, None), piece_of(block.norm2, group, None)
    part.attention = ParallelAttention(block.attention, group)
    part.up, part.down = ColumnParallel(block.up, group), RowParallel(block.down, group)
    return part


class ParallelEmbedding(nn.Module):
    """Embedding cut by characters. Each rank looks up its own characters, and adds zeros for the others."""

    def __init__(self, embedding: Any, group: TensorGroup, ties: Ties) -> None:
        super().__init__()
        whole = embedding.token.weight
        self.group, self.weight = group, ties.setdefault(whole, share_of(whole, group, 0))
        self.first = shares(len(whole), group.size)[group.rank].start
        self.position = piece_of(embedding.position, group, None)

    def forward(self, x: Tensor) -> Tensor:
        number = x - self.first
        here = (number >= 0) & (number < len(self.weight))
        found = F.embedding(torch.where(here, number, 0), self.weight) * here.unsqueeze(-1)
        return added(found, self.group) + self.position.weight[: x.shape[1]]


class ParallelOutput(nn.Module):
    """Tied output cut by characters. Each rank scores its own characters, and all ranks get all scores.

    Megatron-LM (arXiv 1909.08053, section 3) does not gather scores. It computes the cross-entropy on the pieces.
    """

    def __init__(self, tied: Any, group: TensorGroup, ties: Ties) -> None:
        super().__init__()
        self.group, self.weight = group, ties.setdefault(tied.weight, share_of(tied.weight, group, 0))
        self.characters = len(tied.weight)

    def forward(self, x: Tensor) -> Tensor:
        scores = F.linear(copied(x, self.group), self.weight)
        scores = charged(scores, self.group, 2 * scores.numel() * x.shape[-1])
        return gathered(scores, self.group, self.characters, dim=scores.dim() - 1)


class Gathered(nn.Module):
    """Layer that gathers all ranks' pieces after a last layer that is cut by outputs."""

    def __init__(self, group: TensorGroup, total: int) -> None:
        super().__init__()
        self.group, self.total = group, total

    def forward(self, x: Tensor) -> Tensor:
        # After Flatten, pieces are equal.
        return gathered(x, self.group, self.total or x.shape[1] * self.group.size, dim=1)


class Overlapping(nn.Module):
    """Linear layer cut by its outputs. Every rank also computes some outputs of all other ranks.

    Parameters
    ----------
    own : nn.Linear
        This rank's neurons. Every rank has the same number of neurons.
    group : TensorGroup
        The ranks.
    redundancy : float
        Share of each rank's neurons, from 0 to 1, that all ranks compute. It is rounded to whole neurons.

    Attributes
    ----------
    own : nn.Linear
        The same as the parameter: a layer with a bias.
    common : int
        Neurons of each rank that all ranks compute.
    copies : Tensor, shape (ranks, common, inputs + 1)
        Weights of common neurons, followed by their biases, as of the last :meth:`refresh`.
    """

    def __init__(self, own: nn.Linear, group: TensorGroup, redundancy: float) -> None:
        super().__init__()
        self.group, self.own = group, own
        self.common = round(redundancy * len(own.weight))
        self.copies = group.comm.empty((group.size, self.common, own.weight.shape[1] + 1), own.weight.dtype)

    @torch.no_grad()
    def refresh(self) -> None:
        """Fetch the current weights of other ranks' neurons that this rank also computes. Collective."""
        if not self.common:
            return
        own = torch.cat([self.own.weight[: self.common], self.own.bias[: self.common, None]], 1)
        torch.stack(self.group.gather(own, [self.common] * self.group.size, 0), out=self.copies)

    def forward(self, x: Tensor) -> Tensor:
        group, inputs = self.group, x.shape[1]
        mine = product(self.own, x, group)
        with torch.no_grad():
            computed = [
                mine if rank == group.rank else F.linear(x, copy[:, :-1], copy[:, -1])
                for rank, copy in enumerate(self.copies)
            ]
        mine = group.charge(2 * len(x) * inputs * self.common * (group.size - 1), mine)
        # Neurons that only their owner computes are gathered. The gradients of all neurons are summed over
        # ranks.
        return pair(mine, partial(self._exchanged, computed=computed), partial(group.scatter, dim=1))

    def _exchanged(self, own: Tensor, computed: list[Tensor]) -> Tensor:
        """Join all neurons: common neurons as computed here, and the other neurons from their owners."""
        alone = own[:, self.common :]
        if not alone.shape[1]:
            return torch.cat(computed, 1)
        sent = self.group.gather(alone, [alone.shape[1]] * self.group.size, 1)
        pieces = zip((part[:, : self.common] for part in computed), sent)
        return torch.cat([piece for of_rank in pieces for piece in of_rank], 1)
