"""Closed forms of what the ranks of one replica send for each layer in a step, by the name of the layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlpar.collectives.closed_forms import closed_form
from dlpar.costmodel.halo import halo
from dlpar.costmodel.steps.sizes import CHARACTERS, IMAGES, ROWS
from dlpar.costmodel.tensor import redundant_layer, transformer_layer_elements

if TYPE_CHECKING:
    from dlpar.experiment import Experiment

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
                             no gradient (:func:`dlpar.costmodel.halo.halo`)
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
