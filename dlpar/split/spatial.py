"""Spatial parallelism: every rank holds all weights and a piece of each image, and neighbours exchange halos.

Before the images are flattened each rank computes its piece; then the pieces are
gathered, and every rank computes what follows for whole images.  (Dryden et al.,
IPDPS 2019, arXiv 1903.06681; Gholami et al., "Integrated Model, Batch and Domain
Parallelism", SPAA 2018, arXiv 1712.04432.)
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dlpar.collectives import ring_allgather, ring_allreduce
from dlpar.split.derivative import derivative
from dlpar.split.halo import Grid, index
from dlpar.split.mesh import coordinates
from dlpar.split.precision import narrowed
from dlpar.split.split import Split
from dlpar.split.window import shares
from dlpar.split.windowed import Spans, Windowed, forward_flops

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.split.mesh import Place
    from dlpar.split.split import Task


class SpatialSplit(Split):
    """A convolutional network whose images are cut by height, or by height and width.

    Its phases are ``forward`` and ``backward`` (computing), ``halo`` (exchange with neighbours),
    ``gather`` (of the pieces, where whole images are needed) and ``reduce`` (sum of the weights'
    gradients over the pieces).

    Parameters
    ----------
    task : Task
        What to compute; of its model :func:`cut` says more.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.grid = grid_of(task.place, task.comm)
        height, width = task.batch(0)[0].shape[-2:]
        self.images = range(height), range(width)
        self.layers = cut(task.model, self.grid, height, width, task.record.span)
        in_pieces = [p for each in self.layers if isinstance(each, Windowed) for p in each.layer.parameters()]
        # The last layers' gradients lie first, those of the layers computed in pieces at the end.
        start = len(self.replica.gradient) - sum(p.numel() for p in in_pieces)
        self.of_pieces = self.replica.gradient[start:]
        self.speaks = (self.grid.row, self.grid.column) == (0, 0)

    def gradient(self, step: int) -> None:
        task, replica, span, grid = self.task, self.replica, self.record.span, self.grid
        images, labels = task.batch(step)
        share = task.share(len(labels))
        replica.zero_gradient()
        with task.forward_pass():
            x = narrowed(images[index(self.layers[0].owned, self.images)])
            for layer in self.layers:
                x = layer.forward(x)
            with span("forward"):
                x.requires_grad_()
                loss = self.comm.compute(lambda: task.criterion(x, labels))
        with span("backward"):
            (gradient,) = self.comm.compute(lambda: derivative(loss, [x], torch.full_like(loss, share)))
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)
        with span("reduce"):
            ring_allreduce(grid.comm, self.of_pieces, grid.ranks)
        replica.loss, replica.samples = loss.detach(), len(labels)
        if self.speaks:
            self.loss, self.samples = replica.loss, replica.samples

    def whole(self) -> nn.Module | None:
        return self.task.model if self.speaks else None


def grid_of(place: Place, comm: Comm) -> Grid:
    """The ranks of a replica by the row and column of their pieces, in whatever order the mesh has its axes."""
    if place.mates is None:
        return Grid(comm, 1, 1, [comm.rank])
    sizes = {axis: size for axis, size in place.mesh.sizes.items() if axis != "data"}
    at = [coordinates(rank, sizes) for rank in range(place.mates.size)]
    ranks = sorted(range(place.mates.size), key=lambda rank: (at[rank]["rows"], at[rank]["columns"]))
    return Grid(place.mates, sizes["rows"], sizes["columns"], ranks)


def cut(model: nn.Sequential, grid: Grid, height: int, width: int, span: Spans = nullcontext) -> list[Layer]:
    """The layers of a model as a rank of the grid computes them.

    Parameters
    ----------
    model : nn.Sequential
        Convolutions, poolings and ReLUs; then ``nn.Flatten()``, and what follows needs whole images.
    grid : Grid
        The ranks that hold the pieces.
    height, width : int
        Of an image.
    span : callable, optional
        Times phases, by name.

    Raises
    ------
    ValueError
        If the model has a layer that needs more than a piece and a halo, or pieces are too small for a layer.
    """
    layers: list[Layer] = []
    in_pieces = True
    for layer in model:
        if isinstance(layer, nn.Flatten):
            layers.append(Gather(grid, height, width, span))
            in_pieces = False
        elif not in_pieces or isinstance(layer, nn.ReLU):
            layers.append(Local(layer, grid.comm, span))
        else:
            layers.append(Windowed(layer, grid, height, width, first=not layers, span=span))
            height, width = layers[-1].height, layers[-1].width
    return layers


class Local:
    """A layer that a rank computes by itself: of its piece element by element, or of whole images as all ranks do."""

    def __init__(self, layer: nn.Module, comm: Comm, span: Spans) -> None:
        self.layer, self.comm, self.span = layer, comm, span

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        self._given = x.detach().requires_grad_()
        with self.span("forward"):
            self._made = self.comm.compute(
                lambda: self.layer(self._given), cost=forward_flops(self.layer, len(x))
            )
        return self._made.detach()

    def backward(self, gradient: Tensor) -> Tensor:
        """The loss's gradient with respect to the input; that of the weights is added to theirs."""
        weights = list(self.layer.parameters())

        def derive() -> Tensor:
            of_input, *found = derivative(self._made, [self._given, *weights], gradient)
            for weight, of_weight in zip(weights, found):
                weight.grad += of_weight
            return of_input

        with self.span("backward"):
            return self.comm.compute(derive, cost=2 * forward_flops(self.layer, len(gradient)))


class Gather:
    """All pieces of an image on all ranks, flattened: (n, channels, rows, columns) to (n, features).

    As every rank computes the loss of whole images, the gradient of its own piece is there without a message.
    """

    def __init__(self, grid: Grid, height: int, width: int, span: Spans) -> None:
        self.grid, self.span, self.whole = grid, span, (range(height), range(width))
        self.places = [(r, c) for r in shares(height, grid.rows) for c in shares(width, grid.columns)]
        self.own = grid.ranks.index(grid.comm.rank)

    def forward(self, x: Tensor) -> Tensor:
        """Features in the order in which one process has them."""
        with self.span("gather"):
            self._shape = (*x.shape[:2], *map(len, self.whole))
            pieces = [
                self.grid.comm.empty(x.shape[:2].numel() * len(r) * len(c), x.dtype) for r, c in self.places
            ]
            pieces[self.own].view_as(x).copy_(x)
            # The ring begins with the piece of the rank before as what each rank lacks.
            ring_allgather(self.grid.comm, [*pieces[-1:], *pieces[:-1]], self.grid.ranks)
            images = self.grid.comm.empty(self._shape, x.dtype)
            for place, piece in zip(self.places, pieces):
                part = images[index(place, self.whole)]
                part.copy_(piece.view_as(part))
            return images.flatten(1)

    def backward(self, gradient: Tensor) -> Tensor:
        """One's own piece of the gradient."""
        return gradient.view(self._shape)[index(self.places[self.own], self.whole)]


Layer = Windowed | Local | Gather
"""Each has ``forward(x)`` and ``backward(gradient)``, to be called in turn."""
