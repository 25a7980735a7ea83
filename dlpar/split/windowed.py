"""Convolution and pooling of an image that lies on several ranks in pieces.

Forward and backward are called layer by layer, not by autograd: so messages are made
at the moment when they are due, outside of any computation.  Only the derivative of
what a rank computes by itself is autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from dlpar.split.derivative import derivative
from dlpar.split.halo import OWN, Grid, Halo, Pieces, Place, complete, index
from dlpar.split.window import Cut, Window, padding

Spans = Callable[[str], Any]
"""Times a phase: ``with span("forward"): …``; :meth:`dlpar.record.Recorder.span` is one."""


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
        If the layer is another or pads in another way, or a piece is too small: see :class:`~dlpar.split.window.Cut`.
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

    outputs: Place
    inputs: Place
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
