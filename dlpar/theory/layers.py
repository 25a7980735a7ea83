"""Layers of a model, and the payload sent for each layer. An experiment's fields determine both.

No model is built and torch is not loaded.  Layers have the names and order of :mod:`dlpar.models`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from dlpar.theory.counts import closed_form
from dlpar.worlds.platforms.workloads import Payload

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment, Model


CHARACTERS = 96
"""Size of the alphabet of ``docstrings``."""

INPUTS = {
    "digits": (1, 8, 8), "mnist": (1, 28, 28), "cifar10": (3, 32, 32), "diabetes": (10,), "docstrings": (1000,),
}  # fmt: skip
"""Shape of a sample by data set: channels, height and width of an image; features; or number of words."""

BOUNDARY = "boundary after "
"""Prefix that makes a layer's name the name of the pipeline's boundary after this layer."""

SHARED = "gradients of shared weights"
"""Name of the traffic outside layers: sums of the gradients of weights that several ranks hold."""

Shape = tuple[int, ...]


class Tensor(NamedTuple):
    """Tensor of weights: its elements, and its FLOPs per sample, forward and backward."""

    parameters: int
    flops: float


class Layer(NamedTuple):
    """A layer of a model.

    Attributes
    ----------
    name : str
        As in :mod:`dlpar.models`.
    output : tuple of int
        Shape of its output for one sample.
    tensors : tuple of Tensor
        Its weights in the order of the forward pass.
    flops : float
        FLOPs per sample of operations without weights, forward and backward.
    """

    name: str
    output: Shape
    tensors: tuple[Tensor, ...] = ()
    flops: float = 0.0


@dataclass(frozen=True)
class Sizes(Payload):
    """Parameters and FLOPs of one of our models, named as in a :class:`~dlpar.worlds.platforms.Workload`.

    Attributes
    ----------
    layers : tuple of Tensor
        Each tensor, in the order in which the backward pass finishes gradients.
    flops : float
        FLOPs per sample, forward and backward.
    itemsize : int
        Bytes of an element.
    """

    layers: tuple[Tensor, ...]
    flops: float
    itemsize: int


def sizes(experiment: Experiment) -> Sizes:
    """Return the sizes of an experiment's own model, as counted for the models of `dlpar.models`."""
    rows = layers(experiment)
    tensors = [tensor for layer in rows for tensor in layer.tensors]
    flops = sum(tensor.flops for tensor in tensors) + sum(layer.flops for layer in rows)
    return Sizes(tuple(reversed(tensors)), flops, experiment.itemsize)


def layers(experiment: Experiment) -> list[Layer]:
    """Return the layers of an experiment's model in the order of the forward pass."""
    model, data = experiment.model, experiment.data
    if model.name == "transformer":
        return _transformer(model, data.context)
    shape, classes = INPUTS[data.name], 1 if data.name == "diabetes" else 10
    found = _hidden(model, shape) if model.name in ("mlp", "cnn") else []
    inputs = prod(found[-1].output if found else shape)
    return [*found, Layer("output", (classes,), _product(inputs, classes))]


def _product(inputs: int, outputs: int, places: int = 1) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a product at several places.

    Each multiply-add costs 2 FLOPs in each of three passes.
    """
    return Tensor(inputs * outputs, 6 * inputs * outputs * places), Tensor(outputs, 0)


def _norm(name: str, output: Shape, channels: int) -> Layer:
    return Layer(name, output, (Tensor(channels, 0), Tensor(channels, 0)))


def _hidden(model: Model, shape: Shape) -> list[Layer]:
    """Return the hidden layers of an mlp or a cnn for inputs of a given shape."""
    found: list[Layer] = []
    for i in range(1, model.depth + 1):
        if model.name == "mlp":
            name, weights, shape = f"linear{i}", _product(prod(shape), model.width), (model.width,)
        else:
            inputs, *size = shape
            name, weights = f"conv{i}", _product(9 * inputs, model.channels, prod(size))
            shape = (model.channels, *size)
        found.append(Layer(name, shape, weights))
        if model.norm != "none":
            found.append(_norm(f"norm{i}", shape, shape[0]))
        found.append(Layer(f"relu{i}", shape))
        if model.name == "cnn" and min(size) >= 8:
            shape = (model.channels, *(pixels // 2 for pixels in size))
            found.append(Layer(f"pool{i}", shape))
    return found if model.name == "mlp" else [*found, Layer("flatten", (prod(shape),))]


def _transformer(model: Model, context: int) -> list[Layer]:
    width, rows = model.width, (context, model.width)
    # The output uses the weight that embeds characters, so the output's FLOPs are counted there.
    embedding = Tensor(CHARACTERS * width, 6 * CHARACTERS * width * context), Tensor(context * width, 0)
    norm = _norm("norm", rows, width)
    attention = norm.tensors + 4 * _product(width, width, context)
    hidden = norm.tensors + _product(width, 4 * width, context) + _product(4 * width, width, context)
    scores = 3 * 4 * context * width * context  # between positions, with the values weighted by them
    blocks = [Layer(f"block{i}", rows, attention + hidden, scores) for i in range(1, model.depth + 1)]
    return [Layer("embed", rows, embedding), *blocks, norm, Layer("output", (context, CHARACTERS))]


class Exchange(NamedTuple):
    """Collective of the ranks of one replica.

    Attributes
    ----------
    layer : str
        Layer of the collective, or ``whole`` for outputs that are joined.
    collective : str
        A name of :func:`dlpar.theory.counts.closed_form`.
    elements : int
        Elements of the tensor, with the pieces of all ranks.
    """

    layer: str
    collective: str
    elements: int


class Sent(NamedTuple):
    """Payload of messages: their number, and their elements in total."""

    messages: int
    elements: int


def payload(exchanges: Sequence[Exchange], ranks: int) -> Sent:
    """Return the payload that all ranks together send in exchanges."""
    costs = [closed_form(each.collective, ranks, each.elements, itemsize=1) for each in exchanges]
    return Sent(sum(cost.messages for cost in costs), sum(cost.bytes for cost in costs))


def exchanges(experiment: Experiment) -> list[Exchange]:
    """Return the collectives of the first replica in a step of a tensor-parallel experiment.

    An mlp or cnn has L layers with weights.  Odd layers are cut by outputs, even layers by
    inputs.  Activations and their gradients are counted in elements per sample, for b samples.

    =====================  ==================================================================
    all-reduce, forward    b · outputs of each even layer
    all-reduce, backward   b · inputs of each odd layer but the first, whose inputs are data
    all-gather, forward    b · classes, if L is odd
    =====================  ==================================================================

    For redundancy see :func:`redundant_pieces`, for a transformer :func:`transformer_exchanges`.
    Source: Shoeybi et al. (arXiv 1909.08053), section 3.
    """
    model, batch = experiment.model, experiment.local_batch(0)
    if model.name == "transformer":
        return transformer_exchanges(batch, experiment.data.context, model.width, model.depth)
    if experiment.split.redundancy:
        return _overlapping(experiment, batch)
    rows = layers(experiment)
    cut = [place for place, layer in enumerate(rows) if layer.name.startswith(("linear", "conv", "output"))]
    found = []
    for number, place in enumerate(cut):
        if number:  # cut by inputs: add up the output; cut by outputs: the gradient of the input
            summed = rows[place if number % 2 else place - 1]
            found.append(Exchange(rows[place].name, "ring", batch * prod(summed.output)))
    whole = [Exchange("whole", "ring_allgather", batch * prod(rows[-1].output))] if len(cut) % 2 else []
    return found + whole


def transformer_exchanges(batch: int, context: int, width: int, depth: int) -> list[Exchange]:
    """Return a transformer's collectives for b samples of s positions, width h and v characters.

    Each block takes two all-reduces of b·s·h forward and two backward (Shoeybi et al., arXiv
    1909.08053, section 3).  The embedding takes one all-reduce forward. The output takes one backward, and an
    all-gather of b·s·v scores.
    """
    names = ["embed", *(f"block{i}" for i in range(1, depth + 1) for _ in range(4)), "output"]
    reduced = [Exchange(name, "ring", batch * context * width) for name in names]
    return [*reduced, Exchange("output", "ring_allgather", batch * context * CHARACTERS)]


def transformer_layer_elements(batch: int, context: int, width: int, ranks: int) -> float:
    """Return 8·b·s·h·(t-1)/t, the elements that a device sends in a step for a block.

    Source: Narayanan et al., arXiv 2104.04473.
    """
    return 8 * batch * context * width * (ranks - 1) / ranks


def redundant_pieces(
    batch: int, inputs: int, neurons: int, ranks: int, redundancy: float
) -> tuple[int, int, int]:
    """Return the elements of each message of activations, of gradients and of weights.

    The layer is fully connected and has redundancy.  A rank sends t-1 messages of each kind.

    Each rank has n/t neurons with i inputs.  All ranks compute c of these neurons.  For b samples:

    ===========  =======================  =============  =====================
    piece        sent                     elements       FLOPs of the rank
    ===========  =======================  =============  =====================
    activations  in the forward pass      b·(n/t - c)    2·b·i·(n/t + (t-1)·c)
    gradients    in the backward pass     b·n/t          4·b·i·n/t
    weights      between steps            c·(i + 1)
    ===========  =======================  =============  =====================

    A common neuron saves b elements and costs i + 1, its weights.  It pays off only if b > i + 1, because
    every rank computes it.

    Parameters
    ----------
    batch, inputs, neurons, ranks : int
        b, i, n and t, which divides n.
    redundancy : float
        Share of each rank's neurons that are common. c is rounded to whole neurons.
    """
    own = neurons // ranks
    common = round(redundancy * own)
    return batch * (own - common), batch * own, common * (inputs + 1)


def _overlapping(experiment: Experiment, batch: int) -> list[Exchange]:
    """Return the collectives of hidden layers in which ranks share neurons."""
    ranks, redundancy = experiment.split.axes(experiment.workers)["tensor"], experiment.split.redundancy
    inputs, width, found = prod(INPUTS[experiment.data.name]), experiment.model.width, []
    for i in range(1, experiment.model.depth + 1):
        activations, gradients, weights = redundant_pieces(batch, inputs, width, ranks, redundancy)
        gathered = [piece for piece in (activations, weights) if piece]
        found += [Exchange(f"linear{i}", "ring_allgather", ranks * piece) for piece in gathered]
        found.append(Exchange(f"linear{i}", "ring_reduce_scatter", ranks * gradients))
        inputs = width
    return [*found, Exchange("whole", "ring_allgather", batch * prod(layers(experiment)[-1].output))]


def elements_by_layer(experiment: Experiment) -> dict[str, int]:
    """Return the elements that a replica's ranks send inside layers. Layers that send nothing are left out.

    ==========  ===========  ==================================================================
    split       layer        elements
    ==========  ===========  ==================================================================
    tensor      any          those of its collectives (:func:`exchanges`)
    spatial     conv         of each rank its halo (:func:`halo`), twice but for the first
                             layer, which sends no gradient
    spatial     flatten      an all-gather of the images
    spatial     `SHARED`     a ring all-reduce of the convolutions' weights
    pipeline    `SHARED`     v·h by the first stage and by the last, which both have tied weights
    ==========  ===========  ==================================================================

    A pipeline of cut layers has a closed form only for transformers, and none with recomputation.
    """
    kind, ranks = experiment.split.kind, experiment.split.axes(experiment.workers)
    if kind == "spatial":
        return _spatial(experiment, ranks["rows"], ranks["columns"])
    found: Counter[str] = Counter()
    is_transformer, tensor = experiment.model.name == "transformer", ranks.get("tensor", 1)
    has_form = is_transformer or kind == "tensor"
    if tensor > 1 and has_form and not getattr(experiment.split, "recompute", False):
        for each in exchanges(experiment):
            found[each.layer] += payload([each], tensor).elements
    if is_transformer and ranks.get("pipeline", 1) > 1:
        found[SHARED] = 2 * CHARACTERS * experiment.model.width
    return dict(found)


def boundary_elements(experiment: Experiment, layer: str) -> int:
    """Return the number of elements sent over a pipeline's boundary after a layer.

    The output goes forward, and as many gradients come back: each rank of a stage sends b·s·h each way (Narayanan
    et al., arXiv 2104.04473, section 4.1).
    """
    output = next(each.output for each in layers(experiment) if each.name == layer)
    ranks = experiment.split.axes(experiment.workers).get("tensor", 1)
    return 2 * experiment.local_batch(0) * prod(output) * ranks


def _spatial(experiment: Experiment, rows: int, columns: int) -> dict[str, int]:
    batch, weights, ways, found = experiment.local_batch(0), 0, 1, {}
    channels, height, width = INPUTS[experiment.data.name]
    for layer in layers(experiment):
        if layer.name == "flatten":
            break
        if layer.name.startswith("conv") and not experiment.split.tiled:  # tiles share nothing
            # Halos add up to the halo of one piece with the neighbours of all pieces.
            halos = halo(batch, channels, height, width, 1, 2 * (rows - 1), 2 * (columns - 1))
            found[layer.name] = ways * halos.elements
            weights += sum(tensor.parameters for tensor in layer.tensors)
            ways = 2
        channels, height, width = layer.output
    gathered = Exchange(layer.name, "ring_allgather", batch * prod(layer.output))
    for each in (gathered, Exchange(SHARED, "ring", weights)):
        found[each.layer] = payload([each], rows * columns).elements
    return {name: elements for name, elements in found.items() if elements}


def halo(
    samples: int, channels: int, height: int, width: int, radius: int, vertical: int = 2, horizontal: int = 2
) -> Sent:
    """Return the payload of a rank's halo exchange in one pass. Each neighbour gets a message.

    The convolution has stride 1 and keeps the size of its images: kernel 2r + 1, padding r.  With N samples
    and C channels, a piece has h = H / p_h rows and w = W / p_w columns.  An interior rank sends N C (2 r (h
    + w) + 4 r²) elements in 8 messages. These hold r rows or columns along each edge, and a square of r × r
    across each corner.  A rank at the edge of the image sends fewer.  The backward pass sends as many
    elements of the gradient (Dryden et al., IPDPS 2019, arXiv 1903.06681).

    Parameters
    ----------
    samples, channels : int
        Samples and channels of the layer's input.
    height, width : int
        Rows and columns of the rank's own piece, at least `radius`.
    radius : int
        r.
    vertical, horizontal : int, default 2
        Neighbours above and below, and left and right.

    Raises
    ------
    ValueError
        If the radius does not fit into the piece.

    Examples
    --------
    >>> halo(samples=1, channels=1, height=4, width=4, radius=1)
    Sent(messages=8, elements=20)
    """
    if not 0 <= radius <= min(height, width):
        most = min(height, width)
        raise ValueError(f"radius: got {radius}, allowed with a piece of {height} × {width} is 0 to {most}")
    messages = (1 + vertical) * (1 + horizontal) - 1 if radius else 0
    # The numbers that the piece would gain with a border of r on the sides of its neighbours.
    border = (height + vertical * radius) * (width + horizontal * radius) - height * width
    return Sent(messages, samples * channels * border)
