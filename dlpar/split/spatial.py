"""Spatial parallelism: every rank holds all weights and a piece of each image, and neighbours exchange halos.

Before the images are flattened each rank computes its piece; then the pieces are
gathered, and every rank computes what follows for whole images.  (Dryden et al.,
IPDPS 2019, arXiv 1903.06681; Gholami et al., "Integrated Model, Batch and Domain
Parallelism", SPAA 2018, arXiv 1712.04432.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dlpar.collectives import ring_allgather, ring_allreduce
from dlpar.split.halo import OWN, Cut, Grid, Halo, Pieces, Region, Window, complete, index, padding, shares
from dlpar.split.split import Split, derivative, narrowed

if TYPE_CHECKING:
    from dlpar.comm import Comm
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
        self.grid = Grid(task.place.mp_group, *task.experiment.split.axes(task.experiment.workers).values())
        height, width = task.batch(0)[0].shape[-2:]
        self.images = range(height), range(width)
        self.layers = cut_images(task.model, self.grid, height, width, task.record.span)
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
        self._report(loss.detach(), len(labels))

    def whole(self) -> nn.Module | None:
        return self.task.model if self.speaks else None


def cut_images(
    model: nn.Sequential, grid: Grid, height: int, width: int, span: Spans = nullcontext
) -> list[Layer]:
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


Spans = Callable[[str], Any]
"""Times a phase: ``with span("forward"): …``; :meth:`dlpar.jobs.record.Recorder.span` is one."""


class Windowed:
    """A rank's share of a convolution or pooling layer: the outputs of its piece, from its inputs and a halo.

    Parameters
    ----------
    layer : nn.Conv2d, nn.MaxPool2d or nn.AvgPool2d
        Every rank has the same weights.  Gradients are added to those of this layer: this rank's share of them.
    grid : Grid
        The ranks that hold the image.
    height, width : int
        Of the whole input.
    first : bool, default False
        Whether the input is the image itself, of which nobody wants the gradient.
    span : callable, optional
        Times ``forward`` and ``backward``, and, while it has to do with neighbours, ``halo``.

    Attributes
    ----------
    height, width : int
        Of the whole output.
    owned, outputs : (range, range)
        Rows and columns of this rank's piece, of the input and of the output.

    Raises
    ------
    ValueError
        If the layer is another or pads in another way, or a piece is too small: see :class:`~dlpar.split.halo.Cut`.
    """

    def __init__(
        self,
        layer: nn.Module,
        grid: Grid,
        height: int,
        width: int,
        first: bool = False,
        span: Spans = nullcontext,
    ) -> None:
        self.layer, self.comm, self.span, self.first = layer, grid.comm, span, first
        self._compute_block, self._padded_with = _function(layer)
        vertical, horizontal = windows(layer)
        rows, columns = (
            Cut(vertical, height, grid.rows, grid.row),
            Cut(horizontal, width, grid.columns, grid.column),
        )
        self.height, self.width = vertical.outputs(height), horizontal.outputs(width)
        self.owned, self.outputs = (rows.owned, columns.owned), (rows.outputs, columns.outputs)
        self.halo = Halo(grid, rows, columns)
        self.exchanging = (lambda: span("halo")) if self.halo.exchanges else nullcontext
        self.interior, self.border = _blocks(rows, columns)
        self._made: dict[Block, tuple[Tensor, Tensor]] = {}  # its inputs and its outputs

    def forward(self, x: Tensor) -> Tensor:
        """This rank's outputs, from its piece of the input; shapes (n, channels, rows, columns)."""
        self._x, self._made = x, {}
        with self.exchanging():
            pieces, requests = self.halo.fetch(x)
        with self.span("forward"):
            self._make(self.interior, pieces)  # while the halo travels
        with self.exchanging():
            complete(requests)
        with self.span("forward"):
            self._make(self.border, pieces)
            return self._together()

    def backward(self, gradient: Tensor) -> Tensor | None:
        """The loss's gradient with respect to the piece that :meth:`forward` got; None for the first layer.

        The border comes first: the gradient of the halo travels while the interior's is computed.
        """
        if self.first:
            with self.span("backward"):
                self._derive([*self.border, *self.interior], gradient)
            return None
        pieces = self.halo.zeros(self._x)
        with self.span("backward"):
            self._derive(self.border, gradient, pieces)
        with self.exchanging():
            came, requests = self.halo.give_back(pieces)
        with self.span("backward"):
            self._derive(self.interior, gradient, pieces)
        with self.exchanging():
            complete(requests)
            self.halo.take_back(pieces[OWN], came)
        return pieces[OWN]

    def _make(self, blocks: list[Block], pieces: Pieces) -> None:
        """Compute blocks of outputs, and keep what their derivatives need."""

        def make() -> None:
            for block in blocks:
                given = (
                    self.halo.block(pieces, block.inputs, self._padded_with)
                    .detach()
                    .requires_grad_(not self.first)
                )
                self._made[block] = given, self._compute_block(given, block.padding)

        if blocks:
            self.comm.compute(make, cost=self._flops(blocks))

    def _together(self) -> Tensor:
        """All blocks of the output."""
        if len(self._made) == 1:
            return next(iter(self._made.values()))[1].detach()
        some = next(iter(self._made.values()))[1]
        output = self.comm.empty((*some.shape[:2], *map(len, self.outputs)), some.dtype)
        for block, (_, made) in self._made.items():
            output[index(block.outputs, self.outputs)] = made.detach()
        return output

    def _derive(self, blocks: list[Block], gradient: Tensor, into: Pieces | None = None) -> None:
        """Add blocks' share of the gradient to that of the weights, and to that of the inputs."""
        weights = list(self.layer.parameters())

        def derive() -> None:
            for block in blocks:
                given, made = self._made.pop(block)
                wanted = [*weights, given] if into is not None else weights
                found = derivative(made, wanted, gradient[index(block.outputs, self.outputs)])
                for weight, of_weight in zip(weights, found):
                    weight.grad += of_weight
                if into is not None:
                    self.halo.spread(found[-1], block.inputs, into)

        if blocks and (weights or into is not None):
            self.comm.compute(derive, cost=2 * self._flops(blocks))

    def _flops(self, blocks: list[Block]) -> int:
        positions = sum(len(rows) * len(columns) for rows, columns in (block.outputs for block in blocks))
        return forward_flops(self.layer, len(self._x) * positions)


class Block(NamedTuple):
    """A rectangle of outputs and what it is made of.

    Attributes
    ----------
    outputs, inputs : (range, range)
        Rows and columns of the whole image; the inputs' may reach beyond its edges, into padding.
    padding : (int, int)
        Further rows above and below, and columns on both sides, which the layer pads by itself.
    """

    outputs: Region
    inputs: Region
    padding: tuple[int, int]


def _blocks(rows: Cut, columns: Cut) -> tuple[list[Block], list[Block]]:
    """A rank's outputs: those that need no halo, and up to four strips around them."""

    def block(*outputs: range) -> Block:
        reads = [cut.window.reads(part) for cut, part in zip((rows, columns), outputs)]
        both = [min(padding(part, cut.size)) for cut, part in zip((rows, columns), reads)]
        inputs = (range(part.start + pad, part.stop - pad) for part, pad in zip(reads, both))
        return Block(outputs, tuple(inputs), tuple(both))

    (tall, wide), (inner, middle) = (rows.outputs, columns.outputs), (rows.inner, columns.inner)
    if not (inner and middle):
        return [], [block(tall, wide)]
    above, below = range(tall.start, inner.start), range(inner.stop, tall.stop)
    left, right = range(wide.start, middle.start), range(middle.stop, wide.stop)
    strips = [(above, wide), (below, wide), (inner, left), (inner, right)]
    return [block(inner, middle)], [block(*strip) for strip in strips if all(strip)]


def windows(layer: nn.Module) -> tuple[Window, Window]:
    """What a convolution or pooling does along height and along width."""
    settings = (layer.kernel_size, layer.stride, layer.padding, getattr(layer, "dilation", 1))
    pairs = [each if isinstance(each, tuple) else (each, each) for each in settings]
    return Window(*(pair[0] for pair in pairs)), Window(*(pair[1] for pair in pairs))


def _function(layer: nn.Module) -> tuple[Callable[[Tensor, tuple[int, int]], Tensor], float]:
    """The layer with a padding of one's own choice, and what it pads with."""
    if isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        fixed = layer.dilation, layer.groups
        return lambda x, pad: F.conv2d(x, layer.weight, layer.bias, layer.stride, pad, *fixed), 0.0
    if isinstance(layer, nn.MaxPool2d) and not (layer.ceil_mode or layer.return_indices):
        return lambda x, pad: F.max_pool2d(x, layer.kernel_size, layer.stride, pad, layer.dilation), -math.inf
    if (
        isinstance(layer, nn.AvgPool2d)
        and not layer.ceil_mode
        and (layer.count_include_pad or not layer.padding)
    ):
        divisor = layer.divisor_override
        return lambda x, pad: F.avg_pool2d(
            x, layer.kernel_size, layer.stride, pad, divisor_override=divisor
        ), 0.0
    raise ValueError(
        f"layer: got {layer}, allowed is Conv2d, MaxPool2d or AvgPool2d with rounding down, and padding by numbers, "
        f"of zeros, that count in a mean"
    )


def forward_flops(layer: nn.Module, outputs: int) -> int:
    """Of a layer's products where its weights are used for so many outputs; a backward pass has two such products."""
    weight = getattr(layer, "weight", None)
    return 0 if weight is None else 2 * outputs * weight.numel()


Layer = Windowed | Local | Gather
"""Each has ``forward(x)`` and ``backward(gradient)``, to be called in turn."""
