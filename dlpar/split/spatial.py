"""Spatial parallelism: every rank has all weights and a piece of each image. Neighbours exchange halos.

Each rank computes its piece until the images are flattened.  Then the pieces are gathered, and every rank
computes the rest for whole images.  (Dryden et al., IPDPS 2019, arXiv 1903.06681; Gholami et al., "Integrated
Model, Batch and Domain Parallelism", SPAA 2018, arXiv 1712.04432.)

A halo holds the inputs that a rank needs from surrounding pieces.  All eight neighbours exchange at once, so
that the computation of the interior hides the whole exchange.  Two phases, first rows and then columns with
corners, would send the same elements in half as many messages.  But the second phase would wait for the
first, so no computation would hide it.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dlpar.comm import wait_all
from dlpar.split.mesh import Mesh, shares
from dlpar.split.split import LayerwiseSplit, Task, backward, moved, narrowed
from dlpar.split.tensor import product
from dlpar.split.tensor_ops import Pause, TensorGroup, pair


class SpatialSplit(LayerwiseSplit):
    """Split that cuts a convolutional network's images by height, or by height and width.

    Its phases are ``forward``, ``backward``, ``halo`` (exchange with neighbours), ``gather`` (pieces to whole
    images) and ``reduce`` (sum of the weights' gradients over the pieces). :func:`cut_images` says which
    models can be cut.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.speaks, self.tiled = self.mesh.comm.rank == 0, task.experiment.split.tiled
        cut = [layer for layer in self.replica.model.children() if isinstance(layer, Windowed)]
        # Gradients of the last layers come first, and gradients of layers computed in pieces come last.
        count = sum(parameter.numel() for layer in cut for parameter in layer.parameters())
        self.of_pieces = self.replica.gradient[len(self.replica.gradient) - count :]

    def cut(self, model: nn.Sequential) -> nn.Sequential:
        moved(model, self.comm.device)
        experiment, place = self.task.experiment, self.task.place
        self.mesh = mesh = Mesh(place.mp_group, experiment.split.axes(experiment.workers))
        height, width = self.task.batch(0)[0].shape[-2:]
        self.tile = tile_of(mesh.comm.rank, mesh.sizes, height, width)
        if not experiment.split.tiled:
            return cut_images(model, mesh, height, width, self.pause)
        alone = Mesh(mesh.comm.split(mesh.comm.rank), dict.fromkeys(mesh.sizes, 1))
        # A copy, because each tile updates its own weights.
        return cut_images(copy.deepcopy(model), mesh, height, width, self.pause, alone)

    def gradient(self, step: int) -> None:
        super().gradient(step)
        with self.record.span("reduce"):
            self.reduce()

    def _forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super()._forward(x[self.tile], y)

    def reduce(self) -> None:
        """Sum the gradients of weights over the pieces of images. Tiles have separate weights."""
        if not self.tiled:
            TensorGroup(self.mesh.comm).allreduce(self.mesh.comm, self.of_pieces)

    def whole(self) -> nn.Module | None:
        if not self.tiled:
            return self.task.model if self.speaks else None
        own = copy.deepcopy(self.task.model).cpu()
        for weight, present in zip(own.parameters(), self.replica.model.parameters(), strict=True):
            weight.data.copy_(present.detach())
        tiles = self.mesh.comm.gather(own)
        return None if tiles is None else Tiled(tiles, self.mesh.sizes).to(self.comm.device)


class Tiled(nn.Module):
    """Network without halos. Its convolutions have separate weights for each tile of an image.

    Parameters
    ----------
    tiles : sequence of nn.Sequential
        One whole network for each tile, row by row. Layers after ``Flatten`` are the same in all networks.
    sizes : mapping of str to int
        Tiles along ``rows`` and ``columns``.
    """

    def __init__(self, tiles: list[nn.Sequential], sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.tiles: Any = nn.ModuleList(tiles)
        self.sizes = sizes
        self.flat = next(n for n, layer in enumerate(tiles[0]) if isinstance(layer, nn.Flatten))

    def forward(self, x: Tensor) -> Tensor:
        places = [tile_of(number, self.sizes, *x.shape[-2:]) for number in range(len(self.tiles))]
        pieces = [tile[: self.flat](x[place]) for tile, place in zip(self.tiles, places)]
        columns = self.sizes["columns"]
        rows = [torch.cat(pieces[at : at + columns], dim=3) for at in range(0, len(pieces), columns)]
        return self.tiles[0][self.flat :](torch.cat(rows, dim=2))


def tile_of(rank: int, sizes: Mapping[str, int], height: int, width: int) -> tuple:
    """Return the index of a rank's piece in images of shape (n, channels, height, width)."""
    row, column = divmod(rank, sizes["columns"])
    own = (shares(height, sizes["rows"])[row], shares(width, sizes["columns"])[column])
    return index(own, (range(height), range(width)))


def cut_images(
    model: nn.Sequential,
    mesh: Mesh,
    height: int,
    width: int,
    pause: Pause = nullcontext,
    alone: Mesh | None = None,
) -> nn.Sequential:
    """Return one rank's version of a model's layers. Names and parameters stay the same.

    Parameters
    ----------
    model : nn.Sequential
        Convolutions, poolings and ReLUs; then ``nn.Flatten()``, and layers for whole images.
    mesh : Mesh
        The ranks that hold the pieces, with the axes ``rows`` and ``columns``.
    height, width : int
        Size of an image.
    pause : callable, optional
        Returns the context in which a pass stops for messages, from the name of the phase.
    alone : Mesh, optional
        A mesh of only this rank. Pieces are then tiles, whose convolutions and poolings see no other piece.

    Raises
    ------
    ValueError
        If a layer needs more than a piece and a halo, if pieces are too small for a layer, or without a Flatten.
    """
    layers, whole, in_pieces = OrderedDict[str, Any](), TensorGroup(mesh.comm), True
    down, across = (mesh.sizes["rows"], mesh.sizes["columns"]) if alone else (1, 1)
    height, width = height // down, width // across
    for name, layer in model.named_children():
        if isinstance(layer, nn.Flatten):
            layers[name], in_pieces = Gather(mesh, down * height, across * width, pause), False
        elif isinstance(layer, nn.ReLU) or not (in_pieces or getattr(layer, "weight", None) is not None):
            layers[name] = layer
        elif in_pieces:
            layers[name] = cut = Windowed(layer, alone or mesh, height, width, pause)
            height, width = cut.height, cut.width
        else:
            layers[name] = own = copy.copy(layer)  # every rank computes it for whole images
            own.forward = partial(product, layer, group=whole)
    if in_pieces:
        raise ValueError("model: got no Flatten, allowed is one after the layers for pieces of images")
    return nn.Sequential(layers)


class Gather(nn.Module):
    """Layer that gathers whole images on all ranks: (n, channels, rows, columns) to (n, features).

    Every rank computes the loss of whole images, so it has its piece's gradient without a message.
    """

    def __init__(self, mesh: Mesh, height: int, width: int, pause: Pause) -> None:
        super().__init__()
        self.group = TensorGroup(mesh.comm, partial(pause, "gather"))
        self.whole = range(height), range(width)
        rows, columns = shares(height, mesh.sizes["rows"]), shares(width, mesh.sizes["columns"])
        self.places = [(r, c) for r in rows for c in columns]

    def forward(self, x: Tensor) -> Tensor:
        own = index(self.places[self.group.rank], self.whole)
        return pair(x, forward=self._gathered, backward=lambda gradient: gradient.view(self._shape)[own])

    def _gathered(self, x: Tensor) -> Tensor:
        """Return the features of whole images, ordered as in a single process."""
        self._shape = (*x.shape[:2], *map(len, self.whole))
        images = self.group.comm.empty(self._shape, x.dtype)
        parts = [images[index(place, self.whole)] for place in self.places]
        pieces = self.group.gather(x.reshape(-1), [part.numel() for part in parts], 0)
        for part, piece in zip(parts, pieces):
            part.copy_(piece.view_as(part))
        return images.flatten(1)


class Windowed(nn.Module):
    """A rank's share of a convolution or pooling, computed from its piece and a halo.

    Input and output have shapes (n, channels, rows, columns).

    Parameters
    ----------
    layer : nn.Conv2d, nn.MaxPool2d or nn.AvgPool2d
        Every rank has the same weights.  The rank's share of their gradients is added to this layer's.
    mesh : Mesh
        The ranks that hold the image, with the axes ``rows`` and ``columns``.
    height, width : int
        Size of the whole input.
    pause : callable, optional
        Returns the context in which a pass stops for messages. It is called with ``halo``.

    Attributes
    ----------
    height, width : int
        Size of the whole output.
    owned, outputs : (range, range)
        Rows and columns of this rank's piece, of the input and of the output.

    Raises
    ------
    ValueError
        If the layer is of another type, pads in another way, or has a piece that is too small: see
        :class:`Cut`.
    """

    def __init__(
        self, layer: nn.Module, mesh: Mesh, height: int, width: int, pause: Pause = nullcontext
    ) -> None:
        super().__init__()
        self.layer, self._padding = unpadded(layer)
        self.windows = vertical, horizontal = windows(layer)
        rows = Cut(vertical, height, mesh.sizes["rows"], mesh.at["rows"])
        columns = Cut(horizontal, width, mesh.sizes["columns"], mesh.at["columns"])
        self.height, self.width = vertical.outputs(height), horizontal.outputs(width)
        self.owned, self.outputs = (rows.owned, columns.owned), (rows.outputs, columns.outputs)
        self.comm, self.halo = mesh.comm, Halo(mesh, rows, columns, pause)
        self.interior, self.border = _blocks(self.outputs, (rows.inner, columns.inner))

    def forward(self, x: Tensor) -> Tensor:
        x = narrowed(x)
        self._input_is_wanted = x.requires_grad  # input images need no gradient
        return pair(x, self._outputs, self._of_input, *self.layer.parameters())

    def _outputs(self, x: Tensor) -> Tensor:
        """Compute this rank's outputs. The halo travels while the interior is computed."""
        self._inputs = self.halo.inputs(x, self._padding)
        self._made: dict[Region, tuple[Tensor, Tensor]] = {}  # inputs and outputs of each block
        with self.halo.fetch(x, self._inputs):
            self._make(self.interior)
        self._make(self.border)
        return self._together()

    def _of_input(self, gradient: Tensor) -> Tensor | None:
        """Return the gradient of this rank's piece of the input if it is needed.

        The border comes first: the gradient of the halo travels while the gradient of the interior is
        computed.
        """
        if not self._input_is_wanted:
            self._derive([*self.border, *self.interior], gradient)
            return None
        of_inputs = torch.zeros_like(self._inputs)
        of_own = of_inputs.new_zeros((*of_inputs.shape[:2], *map(len, self.owned)))
        self._derive(self.border, gradient, of_inputs)
        with self.halo.give_back(of_inputs, of_own):
            self._derive(self.interior, gradient, of_inputs)
        self.halo.take_back(of_own, of_inputs)
        return of_own

    def _make(self, blocks: list[Region]) -> None:
        """Compute blocks of outputs. Keep the tensors that their derivatives need."""

        def make() -> None:
            for block in blocks:
                # `data`, because writing the halo later must not count as a change of the interior.
                given = self._inputs.data[self._reads(block)].requires_grad_(self._input_is_wanted)
                with torch.enable_grad():
                    self._made[block] = given, self.layer(given)

        self.comm.compute(make, cost=self._flops(blocks))

    def _together(self) -> Tensor:
        """Join all blocks of the output into one tensor."""
        outputs = [made.detach() for _, made in self._made.values()]
        if len(outputs) == 1:
            return outputs[0]
        whole = self.comm.empty((*outputs[0].shape[:2], *map(len, self.outputs)), outputs[0].dtype)
        for block, output in zip(self._made, outputs):
            whole[index(block, self.outputs)] = output
        return whole

    def _derive(self, blocks: list[Region], gradient: Tensor, of_inputs: Tensor | None = None) -> None:
        """Add the blocks' gradients to the gradients of the weights and of the inputs."""

        def derive() -> None:
            for block in blocks:
                given, made = self._made.pop(block)
                backward(made, gradient[index(block, self.outputs)])
                if of_inputs is not None:
                    of_inputs[self._reads(block)] += given.grad  # type: ignore[arg-type]

        self.comm.compute(derive, cost=2 * self._flops(blocks))

    def _reads(self, block: Region) -> tuple:
        """Return the index of the inputs that a block of outputs reads."""
        return index(tuple(window.reads(axis) for window, axis in zip(self.windows, block)), self.halo.reads)

    def _flops(self, blocks: list[Region]) -> int:
        """Count the FLOPs of these blocks. Each weight is used once for every sample and position."""
        weight = getattr(self.layer, "weight", None)
        positions = sum(len(rows) * len(columns) for rows, columns in blocks)
        return 0 if weight is None else 2 * len(self._inputs) * positions * weight.numel()


def _blocks(outputs: Region, inner: Region) -> tuple[list[Region], list[Region]]:
    """Divide a rank's outputs into those that need no halo, and up to four strips around them."""
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


FITTING: dict[type[nn.Module], tuple[float, Callable[[Any], bool]]] = {
    nn.Conv2d: (0.0, lambda conv: conv.padding_mode == "zeros" and not isinstance(conv.padding, str)),
    nn.MaxPool2d: (-math.inf, lambda pool: not (pool.ceil_mode or pool.return_indices)),
    nn.AvgPool2d: (0.0, lambda pool: not pool.ceil_mode and (pool.count_include_pad or not pool.padding)),
}
"""Types of layers that can be computed in pieces, with their padding value and a check of their settings."""


def unpadded(layer: nn.Module) -> tuple[nn.Module, float]:
    """Return the layer without its padding, with the same weights. Also return the padding value."""
    value, fits = FITTING.get(type(layer), (0.0, lambda layer: False))
    if not fits(layer):
        raise ValueError(
            f"layer: got {layer}, allowed is Conv2d, MaxPool2d or AvgPool2d with rounding down, and padding by "
            f"numbers, of zeros, that count in a mean"
        )
    layer = copy.copy(layer)
    layer.padding = (0, 0)  # type: ignore[assignment]
    return layer, value


Region = tuple[range, range]
"""Rows and columns of the whole image."""

Places = dict[int, tuple]
"""Index of each neighbour's halo, by the neighbour's rank."""


class Halo:
    """A rank's piece of an image, and the surrounding inputs that its outputs need.

    Parameters
    ----------
    mesh : Mesh
        The ranks that hold the image, with the axes ``rows`` and ``columns``.
    rows, columns : Cut
        How height and width are cut, seen from this rank.
    pause : callable
        Returns the context in which a pass stops for messages. It is called with ``halo`` if this rank has
        anything to send or to receive.

    Attributes
    ----------
    owned, reads : Region
        This rank's piece, and the inputs of its outputs.  The inputs may reach beyond the image, into
        padding.
    """

    def __init__(self, mesh: Mesh, rows: Cut, columns: Cut, pause: Pause) -> None:
        self.comm = mesh.comm
        self.owned, self.reads = (rows.owned, columns.owned), (rows.reads, columns.reads)
        at = lambda down, right: mesh.rank(rows=mesh.at["rows"] + down, columns=mesh.at["columns"] + right)
        steps = [(down, right) for down in rows.take for right in columns.take if down or right]
        around = {at(*step): step for step in steps}
        take = {rank: (rows.take[down], columns.take[right]) for rank, (down, right) in around.items()}
        give = {rank: (rows.give[down], columns.give[right]) for rank, (down, right) in around.items()}
        # Where halos are in this rank's inputs, and the neighbours' halos in its piece.
        self._take = {rank: index(region, self.reads) for rank, region in take.items() if all(region)}
        self._give = {rank: index(region, self.owned) for rank, region in give.items() if all(region)}
        self._both = tuple(common(*axis) for axis in zip(self.owned, self.reads))
        self._pause = partial(pause, "halo") if self._take or self._give else nullcontext

    def inputs(self, own: Tensor, padding: float) -> Tensor:
        """Return the inputs of this rank's outputs before the halo has arrived.

        Parameters
        ----------
        own : Tensor, shape (n, channels, height, width)
            This rank's piece.
        padding : float
            The value of inputs beyond the image.
        """
        if self.reads == self.owned:
            return own
        inputs = self.comm.empty((*own.shape[:2], *map(len, self.reads)), own.dtype).fill_(padding)
        inputs[index(self._both, self.reads)] = own[index(self._both, self.owned)]
        return inputs

    def fetch(self, own: Tensor, inputs: Tensor) -> AbstractContextManager:
        """Start exchanging halos.

        Return a context that at its end waits for this rank's halo and writes it to `inputs`.
        """
        return self._exchange(own, self._give, inputs, self._take, Tensor.copy_)

    def give_back(self, of_inputs: Tensor, of_own: Tensor) -> AbstractContextManager:
        """Start sending the halo's gradient to its owners, the reverse of :meth:`fetch`.

        The returned context at its end waits for the neighbours' gradients, and adds them to `of_own`.
        """
        return self._exchange(of_inputs, self._take, of_own, self._give, Tensor.add_)

    def take_back(self, of_own: Tensor, of_inputs: Tensor) -> None:
        """Add the gradient of inputs inside this rank's piece to the piece's gradient."""
        of_own[index(self._both, self.owned)] += of_inputs[index(self._both, self.reads)]

    @contextmanager
    def _exchange(
        self, source: Tensor, give: Places, target: Tensor, take: Places, put: Callable
    ) -> Iterator[None]:
        """Send places of `source` and receive those of `target`, while the context's body computes."""
        with self._pause(), self.comm.together():
            # Receives first: an expected message need not be buffered.
            came = [(target[at], self.comm.empty(target[at].shape, target.dtype)) for at in take.values()]
            requests = [self.comm.irecv(piece, rank, tag=0) for rank, (_, piece) in zip(take, came)]
            requests += [self.comm.isend(source[at].contiguous(), rank) for rank, at in give.items()]
        yield
        with self._pause():
            wait_all(requests)
            for into, piece in came:
                put(into, piece)


def index(place: Sequence[range], within: Sequence[range]) -> tuple:
    """Return the index that selects rows and columns `place` in a tensor that covers `within`."""
    return (..., *(slice(p.start - w.start, p.stop - w.start) for p, w in zip(place, within)))


class Window(NamedTuple):
    """Inputs that a convolution or pooling reads along one axis.

    Attributes
    ----------
    kernel, stride, padding, dilation : int
        As in torch. The padding is on both sides.
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def outputs(self, size: int) -> int:
        """Count the output positions for an input of length `size`."""
        return max(0, (size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1)

    def reads(self, outputs: range) -> range:
        """Return the inputs of some outputs, including padding.

        Padding has positions below 0 or beyond the image.
        """
        start = outputs.start * self.stride - self.padding
        last = (len(outputs) - 1) * self.stride
        return range(start, start + last + self.dilation * (self.kernel - 1) + 1 if outputs else start)


def common(a: range, b: range) -> range:
    """Return the positions that two ranges share."""
    start = max(a.start, b.start)
    return range(start, max(start, min(a.stop, b.stop)))


def most(window: Window, size: int) -> int:
    """Return the maximum number of pieces of an axis.

    Pieces must not be empty, and must need halos only from neighbours.
    """
    return next(pieces for pieces in count(1) if not _fits(window, size, pieces + 1))


def _fits(window: Window, size: int, pieces: int) -> bool:
    if pieces > min(size, window.outputs(size)):
        return False
    owned, outputs = shares(size, pieces), shares(window.outputs(size), pieces)
    needed = [common(range(size), window.reads(own)) for own in outputs]
    beside = zip(needed, [owned[0], *owned], [*owned[1:], owned[-1]])
    return all(common(need, range(before.start, after.stop)) == need for need, before, after in beside)


class Cut:
    """One axis of a layer's images, cut into equal pieces of inputs and of outputs.

    Parameters
    ----------
    window : Window
        The inputs that an output reads.
    size : int
        Positions of the whole input.
    pieces, place : int
        Number of pieces, and the number of this rank's piece, 0-based.

    Attributes
    ----------
    owned, outputs : range
        This piece's inputs, and the outputs made here.
    reads : range
        The inputs of these outputs, padding included.
    take, give : dict of int to range
        Inputs to take from, or give to, the previous piece (-1) or the next piece (1), because the receiver's
        outputs need these inputs. Key 0: the inputs of this piece that its own outputs need.
    inner : range
        Outputs that need no other piece's inputs.

    Raises
    ------
    ValueError
        If a piece would be empty, or if its halo would be wider than the neighbouring piece.
    """

    def __init__(self, window: Window, size: int, pieces: int, place: int) -> None:
        if not _fits(window, size, pieces):
            raise ValueError(
                f"pieces: got {pieces} of {size}, allowed with kernel {window.kernel}, stride {window.stride}, padding "
                f"{window.padding} and dilation {window.dilation} is at most {most(window, size)}: no piece is empty, "
                f"and no halo wider than the piece it comes from"
            )
        image, owned, outputs = range(size), shares(size, pieces), shares(window.outputs(size), pieces)
        needed = [common(image, window.reads(own)) for own in outputs]
        beside = [step for step in (-1, 0, 1) if 0 <= place + step < pieces]
        self.window, self.owned, self.outputs = window, owned[place], outputs[place]
        self.reads = window.reads(self.outputs)
        self.take = {step: common(needed[place], owned[place + step]) for step in beside}
        self.give = {step: common(needed[place + step], owned[place]) for step in beside}
        reads = {output: common(image, window.reads(range(output, output + 1))) for output in self.outputs}
        inner = [output for output, read in reads.items() if common(read, self.owned) == read]
        self.inner = range(inner[0], inner[-1] + 1) if inner else range(self.outputs.stop, self.outputs.stop)
