"""Spatial parallelism: every rank holds all weights and a piece of each image, and neighbours exchange halos.

Before the images are flattened each rank computes its piece; then the pieces are
gathered, and every rank computes the rest for whole images.  (Dryden et al.,
IPDPS 2019, arXiv 1903.06681; Gholami et al., "Integrated Model, Batch and Domain
Parallelism", SPAA 2018, arXiv 1712.04432.)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dlpar.collectives import ring_allgather, ring_allreduce
from dlpar.split.halo import Cut, Halo, Region, Window, index, shares
from dlpar.split.mesh import Mesh
from dlpar.split.split import Split, backward, narrowed, propagate
from dlpar.split.tensor_ops import turned

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.split.split import Task

Spans = Callable[[str], Any]
"""Times a phase: ``with span("forward"): …``; :meth:`dlpar.comm.Recorder.span` is one."""


class SpatialSplit(Split):
    """A convolutional network whose images are cut by height, or by height and width.

    Its phases are ``forward`` and ``backward`` (computing), ``halo`` (exchange with neighbours),
    ``gather`` (of the pieces, where whole images are needed) and ``reduce`` (sum of the weights'
    gradients over the pieces).  :func:`cut_images` says which models can be cut.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        experiment = task.experiment
        self.mesh = Mesh(task.place.mp_group, experiment.split.axes(experiment.workers))
        self.speaks = self.mesh.comm.rank == 0
        height, width = task.batch(0)[0].shape[-2:]
        self.images = range(height), range(width)
        self.layers = cut_images(task.model, self.mesh, height, width, task.record.span)
        in_pieces = [p for each in self.layers if isinstance(each, Windowed) for p in each.layer.parameters()]
        # The last layers' gradients lie first, those of the layers computed in pieces at the end.
        start = len(self.replica.gradient) - sum(p.numel() for p in in_pieces)
        self.of_pieces = self.replica.gradient[start:]

    def gradient(self, step: int) -> None:
        task, span = self.task, self.record.span
        images, labels = task.batch(step)
        self.replica.zero_gradient()
        with task.forward_pass():
            x = narrowed(images[index(self.layers[0].owned, self.images)])
            for layer in self.layers:
                x = layer.forward(x)
            with span("forward"):
                x.requires_grad_()
                loss = self.comm.compute(lambda: task.criterion(x, labels))
        with span("backward"):
            self.comm.compute(lambda: propagate(loss, task.share(len(labels))))
        gradient = x.grad
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)
        with span("reduce"):
            ring_allreduce(self.mesh.comm, self.of_pieces)
        self._report(loss.detach(), len(labels))

    def whole(self) -> nn.Module | None:
        return self.task.model if self.speaks else None


def cut_images(
    model: nn.Sequential, mesh: Mesh, height: int, width: int, span: Spans = nullcontext
) -> list[Layer]:
    """Return the layers of a model as one rank computes them.

    Parameters
    ----------
    model : nn.Sequential
        Convolutions, poolings and ReLUs; then ``nn.Flatten()``, and layers that need whole images.
    mesh : Mesh
        The ranks that hold the pieces, with the axes ``rows`` and ``columns``.
    height, width : int
        Size of an image.
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
            layers.append(Gather(mesh, height, width, span))
            in_pieces = False
        elif not in_pieces or isinstance(layer, nn.ReLU):
            layers.append(Local(layer, mesh.comm, span))
        else:
            layers.append(Windowed(layer, mesh, height, width, first=not layers, span=span))
            height, width = layers[-1].height, layers[-1].width
    return layers


class Local:
    """A layer that a rank computes by itself: of its piece element by element, or of whole images as all ranks do."""

    def __init__(self, layer: nn.Module, comm: Comm, span: Spans) -> None:
        self.layer, self.comm, self.span = layer, comm, span

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer's output."""
        self._given, cost = x.detach().requires_grad_(), forward_flops(self.layer, len(x))
        with self.span("forward"):
            self._made = self.comm.compute(lambda: self.layer(self._given), cost=cost)
        return self._made.detach()

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the loss's gradient with respect to the input; add that of the weights to theirs."""
        cost = 2 * forward_flops(self.layer, len(gradient))
        with self.span("backward"):
            self.comm.compute(lambda: backward(self._made, gradient), cost=cost)
        return self._given.grad


class Gather:
    """All pieces of an image on all ranks, flattened: (n, channels, rows, columns) to (n, features).

    As every rank computes the loss of whole images, the gradient of its own piece is there without a message.
    """

    def __init__(self, mesh: Mesh, height: int, width: int, span: Spans) -> None:
        self.comm, self.span, self.whole = mesh.comm, span, (range(height), range(width))
        rows, columns = shares(height, mesh.sizes["rows"]), shares(width, mesh.sizes["columns"])
        self.places = [(r, c) for r in rows for c in columns]

    def forward(self, x: Tensor) -> Tensor:
        """Return features in the order in which one process has them."""
        with self.span("gather"):
            self._shape = (*x.shape[:2], *map(len, self.whole))
            sizes = [x.shape[:2].numel() * len(r) * len(c) for r, c in self.places]
            pieces = [self.comm.empty(size, x.dtype) for size in sizes]
            pieces[self.comm.rank].view_as(x).copy_(x)
            ring_allgather(self.comm, turned(pieces))
            images = self.comm.empty(self._shape, x.dtype)
            for place, piece in zip(self.places, pieces):
                part = images[index(place, self.whole)]
                part.copy_(piece.view_as(part))
            return images.flatten(1)

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the own piece of the gradient."""
        return gradient.view(self._shape)[index(self.places[self.comm.rank], self.whole)]


class Windowed:
    """A rank's share of a convolution or pooling layer: the outputs of its piece, from its inputs and a halo.

    Parameters
    ----------
    layer : nn.Conv2d, nn.MaxPool2d or nn.AvgPool2d
        Every rank has the same weights.  Gradients are added to those of this layer: this rank's share of them.
    mesh : Mesh
        The ranks that hold the image, with the axes ``rows`` and ``columns``.
    height, width : int
        Size of the whole input.
    first : bool, default False
        Whether the input is the image itself, whose gradient is not needed.
    span : callable, optional
        Times ``forward``, ``backward`` and, for exchanges with neighbours, ``halo``.

    Attributes
    ----------
    height, width : int
        Size of the whole output.
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
        mesh: Mesh,
        height: int,
        width: int,
        first: bool = False,
        span: Spans = nullcontext,
    ) -> None:
        self.layer, self.comm, self.span, self.first = layer, mesh.comm, span, first
        self._unpadded, self._padding = unpadded(layer)
        self._windows = vertical, horizontal = windows(layer)
        rows = Cut(vertical, height, mesh.sizes["rows"], mesh.at["rows"])
        columns = Cut(horizontal, width, mesh.sizes["columns"], mesh.at["columns"])
        self.height, self.width = vertical.outputs(height), horizontal.outputs(width)
        self.owned, self.outputs = (rows.owned, columns.owned), (rows.outputs, columns.outputs)
        self.halo = Halo(mesh, rows, columns)
        self.exchanging = (lambda: span("halo")) if self.halo.exchanges else nullcontext
        self.interior, self.border = _blocks(self.outputs, (rows.inner, columns.inner))
        self._made: dict[Region, tuple[Tensor, Tensor]] = {}  # inputs and outputs of each block

    def forward(self, x: Tensor) -> Tensor:
        """Compute this rank's outputs from its piece of the input; shapes (n, channels, rows, columns)."""
        self._inputs, self._made = self.halo.inputs(x, self._padding), {}
        with self.exchanging():
            arrive = self.halo.fetch(x, self._inputs)
        with self.span("forward"):
            self._make(self.interior)  # while the halo travels
        with self.exchanging():
            arrive()
        with self.span("forward"):
            self._make(self.border)
            return self._together()

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Return the loss's gradient with respect to the input of :meth:`forward`; None for the first layer.

        The border comes first: the gradient of the halo travels while the interior's is computed.
        """
        if self.first:
            with self.span("backward"):
                self._derive([*self.border, *self.interior], gradient)
            return None
        of_inputs = torch.zeros_like(self._inputs)
        with self.span("backward"):
            self._derive(self.border, gradient, of_inputs)
        with self.exchanging():
            of_own, arrive = self.halo.give_back(of_inputs)
        with self.span("backward"):
            self._derive(self.interior, gradient, of_inputs)
        with self.exchanging():
            arrive()
            self.halo.take_back(of_own, of_inputs)
        return of_own

    def _make(self, blocks: list[Region]) -> None:
        """Compute blocks of outputs, and keep the tensors that their derivatives need."""

        def make() -> None:
            for block in blocks:
                # `data`: that the halo is written later must not count as a change of the interior.
                given = self._inputs.data[self._reads(block)].requires_grad_(not self.first)
                self._made[block] = given, self._unpadded(given)

        if blocks:
            self.comm.compute(make, cost=self._flops(blocks))

    def _together(self) -> Tensor:
        """Put all blocks of the output together."""
        outputs = [made.detach() for _, made in self._made.values()]
        if len(outputs) == 1:
            return outputs[0]
        whole = self.comm.empty((*outputs[0].shape[:2], *map(len, self.outputs)), outputs[0].dtype)
        for block, output in zip(self._made, outputs):
            whole[index(block, self.outputs)] = output
        return whole

    def _derive(self, blocks: list[Region], gradient: Tensor, of_inputs: Tensor | None = None) -> None:
        """Add blocks' share of the gradient to that of the weights, and to that of the inputs."""

        def derive() -> None:
            for block in blocks:
                given, made = self._made.pop(block)
                backward(made, gradient[index(block, self.outputs)])
                if of_inputs is not None:
                    of_inputs[self._reads(block)] += given.grad

        wanted = of_inputs is not None or next(self.layer.parameters(), None) is not None
        if blocks and wanted:
            self.comm.compute(derive, cost=2 * self._flops(blocks))

    def _reads(self, block: Region) -> tuple:
        """Index the inputs of a block of outputs."""
        reads = tuple(window.reads(axis) for window, axis in zip(self._windows, block))
        return index(reads, self.halo.reads)

    def _flops(self, blocks: list[Region]) -> int:
        positions = sum(len(rows) * len(columns) for rows, columns in blocks)
        return forward_flops(self.layer, len(self._inputs) * positions)


def _blocks(outputs: Region, inner: Region) -> tuple[list[Region], list[Region]]:
    """Divide a rank's outputs: those that need no halo, and up to four strips around them."""
    (tall, wide), (middle, centre) = outputs, inner
    if not (middle and centre):
        return [], [outputs]
    above, below = range(tall.start, middle.start), range(middle.stop, tall.stop)
    left, right = range(wide.start, centre.start), range(centre.stop, wide.stop)
    strips = [(above, wide), (below, wide), (middle, left), (middle, right)]
    return [inner], [strip for strip in strips if all(strip)]


def windows(layer: nn.Module) -> tuple[Window, Window]:
    """Return the windows of a convolution or pooling along height and along width."""
    settings = (layer.kernel_size, layer.stride, layer.padding, getattr(layer, "dilation", 1))
    pairs = [each if isinstance(each, tuple) else (each, each) for each in settings]
    return Window(*(pair[0] for pair in pairs)), Window(*(pair[1] for pair in pairs))


def unpadded(layer: nn.Module) -> tuple[nn.Module, float]:
    """Return the layer without its padding, with the same weights, and the value that it pads with."""
    if isinstance(layer, nn.Conv2d):
        fits, value = layer.padding_mode == "zeros" and not isinstance(layer.padding, str), 0.0
    elif isinstance(layer, nn.MaxPool2d):
        fits, value = not (layer.ceil_mode or layer.return_indices), -math.inf
    elif isinstance(layer, nn.AvgPool2d):
        fits, value = not layer.ceil_mode and (layer.count_include_pad or not layer.padding), 0.0
    else:
        fits, value = False, 0.0
    if not fits:
        raise ValueError(
            f"layer: got {layer}, allowed is Conv2d, MaxPool2d or AvgPool2d with rounding down, and padding by "
            f"numbers, of zeros, that count in a mean"
        )
    layer = copy.copy(layer)
    layer.padding = (0, 0)
    return layer, value


def forward_flops(layer: nn.Module, outputs: int) -> int:
    """Count the FLOPs of a layer's product where its weights are used for so many outputs; backward there are two."""
    weight = getattr(layer, "weight", None)
    return 0 if weight is None else 2 * outputs * weight.numel()


Layer = Windowed | Local | Gather
"""Each has ``forward(x)`` and ``backward(gradient)``, to be called in turn."""
