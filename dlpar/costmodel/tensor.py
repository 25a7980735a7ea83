"""Closed forms of a tensor-parallel step: what the t ranks of a layer send each other and compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlpar.collectives.closed_forms import closed_form
from dlpar.costmodel.steps.sizes import CHARACTERS, IMAGES, ROWS

if TYPE_CHECKING:
    from dlpar.experiment import Experiment


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
        """Messages and bytes, each collective being a ring (:func:`dlpar.collectives.closed_form`)."""
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
