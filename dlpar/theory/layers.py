"""Closed forms of what the ranks of one replica send for each layer in a step, by the name of the layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlpar.theory.counts import closed_form
from dlpar.theory.steps.sizes import CHARACTERS, IMAGES, ROWS

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


Shape = tuple[int, ...]

BOUNDARY = "boundary after "
"""Before the name of the last layer on one side of a pipeline's boundary."""

SHARED = "gradients of shared weights"
"""What is sent in no layer: sums of the gradients of weights that several ranks of a replica hold."""


def elements_by_layer(experiment: Experiment) -> dict[str, float]:
    """Elements sent inside layers; those that send nothing or have no form here are left out.

    ==========  ===========  ==================================================================
    split       layer        elements of all ranks of a replica, b samples
    ==========  ===========  ==================================================================
    tensor, t   block        t · 8·b·s·h·(t-1)/t (Narayanan et al., arXiv 2104.04473, 3.2)
    tensor      embed        a ring all-reduce of b·s·h
    tensor      output       the same, and an all-gather of b·s·v scores
    tensor      mlp, cnn     a ring all-reduce of the output of every second layer, and of the
                             input of the others but the first; an all-gather of a last output
                             that is in pieces (Shoeybi et al., arXiv 1909.08053, section 3)
    spatial     conv         of each rank its halo, twice but for the first layer, which sends
                             no gradient (:func:`dlpar.theory.layers.halo`)
    spatial     flatten      an all-gather of the images
    spatial     `SHARED`     a ring all-reduce of the convolutions' weights
    pipeline    `SHARED`     v·h by the first stage and by the last, which both have tied weights
    ==========  ===========  ==================================================================
    """
    kind, ranks = experiment.split.kind, experiment.split.axes(experiment.workers)
    if kind == "spatial":
        return _spatial(experiment, ranks["rows"], ranks["columns"])
    is_transformer, tensor = experiment.model.name == "transformer", ranks.get("tensor", 1)
    tied = (
        {SHARED: 2 * CHARACTERS * experiment.model.width}
        if is_transformer and ranks.get("pipeline", 1) > 1
        else {}
    )
    if tensor == 1 or getattr(experiment.split, "recompute", False):
        return tied
    if is_transformer:
        return _transformer(experiment, tensor) | tied
    return (
        _in_turns(experiment, tensor) if kind == "tensor" else {}
    )  # a stage's layers take turns by themselves


def boundary_elements(experiment: Experiment, layer: str) -> int:
    """Elements sent over a pipeline's boundary behind a layer: its output forward, and as many gradients back.

    b·s·h each way (Narayanan et al., arXiv 2104.04473, section 4.1), by each of the ranks of a stage.
    """
    size = 1
    for length in outputs(experiment)[layer]:
        size *= length
    return 2 * experiment.local_batch(0) * size * experiment.split.axes(experiment.workers).get("tensor", 1)


def outputs(experiment: Experiment) -> dict[str, Shape]:
    """The shape of each layer's output for one sample, by the names and in the order of :mod:`dlpar.models`."""
    model, data = experiment.model, experiment.data
    classes = 1 if data.name == "diabetes" else 10
    if model.name == "transformer":
        rows = (data.context, model.width)
        names = ["embed", *(f"block{i}" for i in range(1, model.depth + 1)), "norm"]
        return {**dict.fromkeys(names, rows), "output": (data.context, CHARACTERS)}
    found: dict[str, Shape] = {}
    if model.name == "mlp":
        for i in range(1, model.depth + 1):
            found |= {f"linear{i}": (model.width,), f"relu{i}": (model.width,)}
        return {**found, "output": (classes,)}
    if model.name != "cnn":
        return {"output": (classes,)}
    _, height, width = IMAGES[data.name]
    for i in range(1, model.depth + 1):
        shape = (model.channels, height, width)
        found |= {f"conv{i}": shape, f"relu{i}": shape}
        if min(height, width) >= 8:
            height, width = height // 2, width // 2
            found[f"pool{i}"] = (model.channels, height, width)
    return {**found, "flatten": (model.channels * height * width,), "output": (classes,)}


def _ring(name: str, ranks: int, elements: int) -> int:
    return closed_form(name, ranks, elements, 1).bytes


def _transformer(experiment: Experiment, ranks: int) -> dict[str, float]:
    batch, model, context = experiment.local_batch(0), experiment.model, experiment.data.context
    block = ranks * transformer_layer_elements(batch, context, model.width, ranks)
    summed = _ring("ring", ranks, batch * context * model.width)
    scores = _ring("ring_allgather", ranks, batch * context * CHARACTERS)
    return {
        "embed": summed,
        **{f"block{i}": block for i in range(1, model.depth + 1)},
        "output": summed + scores,
    }


def _in_turns(experiment: Experiment, ranks: int) -> dict[str, float]:
    """Of layers cut by outputs and by inputs in turn; or by outputs with neurons that overlap."""
    batch, shapes = experiment.local_batch(0), outputs(experiment)
    names = [name for name in shapes if name.startswith(("linear", "conv", "output"))]
    found: dict[str, float] = {}
    if experiment.split.redundancy:
        inputs = [_features(experiment), *(shapes[name][0] for name in names)]
        for name, before in zip(names[:-1], inputs):
            layer = redundant_layer(batch, before, shapes[name][0], ranks, experiment.split.redundancy)
            found[name] = ranks * layer.elements(ranks)
        return {**found, "whole": _ring("ring_allgather", ranks, batch * shapes["output"][0])}
    order = list(shapes)
    for place, name in enumerate(names):
        if place % 2:  # cut by inputs: its output is added up
            found[name] = _ring("ring", ranks, batch * _size(shapes[name]))
        elif place:  # cut by outputs: the gradient of its input is
            found[name] = _ring("ring", ranks, batch * _size(shapes[order[order.index(name) - 1]]))
    if len(names) % 2:
        found["whole"] = _ring("ring_allgather", ranks, batch * shapes["output"][0])
    return found


def _features(experiment: Experiment) -> int:
    name = experiment.data.name
    return ROWS[name] if name in ROWS else _size(IMAGES[name])


def _size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _spatial(experiment: Experiment, rows: int, columns: int) -> dict[str, float]:
    batch, shapes = experiment.local_batch(0), outputs(experiment)
    found: dict[str, float] = {}
    weights, (channels, height, width) = 0, IMAGES[experiment.data.name]
    for name, shape in shapes.items():
        if name.startswith("conv"):
            weights += (9 * channels + 1) * shape[0]
            ways = 1 if name == "conv1" else 2
            found[name] = ways * sum(
                halo(batch, channels, tall, wide, 1, r > 0, r < rows - 1, c > 0, c < columns - 1).elements
                for r, tall in enumerate(_shares(height, rows))
                for c, wide in enumerate(_shares(width, columns))
            )
        if name == "flatten":
            found[name] = _ring("ring_allgather", rows * columns, batch * shape[0])
            found[SHARED] = _ring("ring", rows * columns, weights)
            break
        channels, height, width = shape
    return {name: elements for name, elements in found.items() if elements}


def _shares(size: int, pieces: int) -> list[int]:
    return [size // pieces + (piece < size % pieces) for piece in range(pieces)]


class Sent(NamedTuple):
    """Payload sent in a step by all ranks of a replica together."""

    messages: int
    bytes: int


class Exchanges(NamedTuple):
    """Collectives of a replica's step, by the elements of each, all ranks' pieces together.

    Attributes
    ----------
    reduced : tuple of int
        All-reduces, those of the forward pass first.
    gathered : tuple of int
        All-gathers.
    scattered : tuple of int
        Reduce-scatters.
    """

    reduced: tuple[int, ...] = ()
    gathered: tuple[int, ...] = ()
    scattered: tuple[int, ...] = ()

    def sent(self, ranks: int, itemsize: int) -> Sent:
        """Messages and bytes, each collective being a ring (:func:`dlpar.theory.counts.closed_form`)."""
        rings = {"ring": self.reduced, "ring_allgather": self.gathered, "ring_reduce_scatter": self.scattered}
        costs = [closed_form(name, ranks, n, itemsize) for name, sizes in rings.items() for n in sizes]
        return Sent(sum(cost.messages for cost in costs), sum(cost.bytes for cost in costs))


def exchanges(experiment: Experiment) -> Exchanges:
    """What the ranks of the first replica exchange in a step of an experiment whose split is tensor.

    Of L layers with weights in an mlp or cnn the odd ones are cut by outputs and the even ones
    by inputs; activations and their gradients are counted in elements a sample, b samples.

    =====================  ==================================================================
    all-reduce, forward    b · outputs of each even layer
    all-reduce, backward   b · inputs of each odd layer but the first, whose inputs are data
    all-gather, forward    b · classes, if L is odd
    =====================  ==================================================================

    With redundancy see :func:`redundant_layer`.  A transformer's are in :func:`transformer_exchanges`.
    """
    model, batch = experiment.model, experiment.local_batch(0)
    if model.name == "transformer":
        return transformer_exchanges(batch, experiment.data.context, model.width, model.depth, CHARACTERS)
    classes = 1 if experiment.data.name == "diabetes" else 10
    if model.name == "cnn":
        inputs, outputs = _images(IMAGES[experiment.data.name], model.channels, model.depth)
        return alternating(batch, inputs, [*outputs, classes])
    features = ROWS.get(experiment.data.name) or _pixels(IMAGES[experiment.data.name])
    widths = [features, *[model.width] * model.depth, classes]
    if not experiment.split.redundancy:
        return alternating(batch, widths[:-1], widths[1:])
    ranks = experiment.split.axes(experiment.workers)["tensor"]
    layers = [redundant_layer(batch, n, model.width, ranks, experiment.split.redundancy) for n in widths[:-2]]
    gathered = [ranks * sent for layer in layers for sent in (layer.activations, layer.weights) if sent]
    return Exchanges((), (*gathered, batch * classes), tuple(ranks * layer.gradients for layer in layers))


def alternating(batch: int, inputs: Sequence[int], outputs: Sequence[int]) -> Exchanges:
    """Of layers cut by outputs and by inputs in turn, by the elements a sample of each; see :func:`exchanges`."""
    forward = [batch * n for n in outputs[1::2]]
    backward = [batch * n for n in inputs[2::2]]
    return Exchanges((*forward, *backward), (batch * outputs[-1],) if len(outputs) % 2 else ())


def transformer_exchanges(batch: int, context: int, width: int, depth: int, characters: int) -> Exchanges:
    """Of a transformer: b samples of s positions, h wide, v characters.

    Each block takes two all-reduces of b·s·h forward and two backward (Shoeybi et al., arXiv
    1909.08053, section 3); the embedding one forward, the output one backward and an all-gather
    of b·s·v scores.
    """
    return Exchanges((batch * context * width,) * (4 * depth + 2), (batch * context * characters,))


def transformer_layer_elements(batch: int, context: int, width: int, ranks: int) -> float:
    """Elements each device sends in a step for one block: 8·b·s·h·(t-1)/t (Narayanan et al., arXiv 2104.04473)."""
    return 8 * batch * context * width * (ranks - 1) / ranks


class RedundantLayer(NamedTuple):
    """What one rank does for a layer of overlapping neurons.

    Attributes
    ----------
    forward, backward : int
        FLOPs; a multiply-add counts as two.
    activations, gradients, weights : int
        Elements of one piece it sends in the forward pass, in the backward pass, and between steps: t-1 messages each.
    """

    forward: int
    backward: int
    activations: int
    gradients: int
    weights: int

    def elements(self, ranks: int) -> int:
        """That one rank sends in a step."""
        return (ranks - 1) * (self.activations + self.gradients + self.weights)


def redundant_layer(batch: int, inputs: int, neurons: int, ranks: int, redundancy: float) -> RedundantLayer:
    """Both costs of redundancy in a fully connected layer, for one rank of t.

    With n/t neurons of i inputs on each rank, c of them computed by all, and b samples:

    =====================  =========================
    FLOPs, forward         2·b·i·(n/t + (t-1)·c)
    FLOPs, backward        4·b·i·n/t
    sent, forward          (t-1)·b·(n/t - c)
    sent, backward         (t-1)·b·n/t
    sent, between steps    (t-1)·c·(i + 1)
    =====================  =========================

    A common neuron saves b elements and costs i + 1, its weights: it pays where b > i + 1, if at
    all, as everyone computes it.

    Parameters
    ----------
    batch, inputs, neurons, ranks : int
        b, i, n and t, which divides n.
    redundancy : float
        Share of each rank's neurons that are common; c is rounded to whole neurons.
    """
    own = neurons // ranks
    common = round(redundancy * own)
    return RedundantLayer(
        forward=2 * batch * inputs * (own + (ranks - 1) * common),
        backward=4 * batch * inputs * own,
        activations=batch * (own - common),
        gradients=batch * own,
        weights=common * (inputs + 1),
    )


def _pixels(image: tuple[int, int, int]) -> int:
    channels, height, width = image
    return channels * height * width


def _images(image: tuple[int, int, int], channels: int, depth: int) -> tuple[list[int], list[int]]:
    """Elements a sample that go into each convolution and come out of it, and those that go into the last layer."""
    inputs, outputs = [_pixels(image)], []
    _, height, width = image
    for _ in range(depth):
        outputs.append(channels * height * width)
        if min(height, width) >= 8:
            height, width = height // 2, width // 2
        inputs.append(channels * height * width)
    return inputs, outputs


class HaloCost(NamedTuple):
    """Payload one rank sends for one layer, in one direction.

    Attributes
    ----------
    messages, elements : int
        One message to each neighbour, and the numbers in all of them.
    """

    messages: int
    elements: int


def halo(
    samples: int,
    channels: int,
    height: int,
    width: int,
    radius: int,
    above: bool = True,
    below: bool = True,
    left: bool = True,
    right: bool = True,
) -> HaloCost:
    """Of a convolution with stride 1 that keeps the size of its images: kernel 2r + 1, padding r.

    With N samples and C channels an interior rank, which has a piece of h = H / p_h rows and
    w = W / p_w columns, sends N C (2 r (h + w) + 4 r²) elements in 8 messages: r rows or columns
    along each edge, and a square of r × r across each corner.  At the edge of the image there
    are fewer.  The backward pass sends as many, of the gradient (Dryden et al., IPDPS 2019,
    arXiv 1903.06681).

    Parameters
    ----------
    samples, channels : int
        Of the layer's input.
    height, width : int
        Rows and columns of the rank's own piece, no less than `radius`.
    radius : int
        r.
    above, below, left, right : bool, default True
        Where the rank has neighbours.

    Examples
    --------
    >>> halo(samples=1, channels=1, height=4, width=4, radius=1)
    HaloCost(messages=8, elements=20)
    """
    if not 0 <= radius <= min(height, width):
        most = min(height, width)
        raise ValueError(f"radius: got {radius}, allowed with a piece of {height} × {width} is 0 to {most}")
    if radius == 0:
        return HaloCost(0, 0)
    vertical, horizontal = above + below, left + right
    edges = radius * (vertical * width + horizontal * height)
    corners = radius * radius * vertical * horizontal
    return HaloCost(vertical + horizontal + vertical * horizontal, samples * channels * (edges + corners))
