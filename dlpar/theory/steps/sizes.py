"""How many parameters and FLOPs a model has, from the fields of an experiment: nothing is built, nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dlpar.config.experiment import Data, Experiment, Model


IMAGES = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
"""Channels, height and width."""

ROWS = {"diabetes": 10, "docstrings": 1000}
"""Features of what is no image; of docstrings, the words that are counted."""

CHARACTERS = 96
"""Of the docstrings' alphabet."""


class Tensor(NamedTuple):
    """A tensor of weights: its elements, and the FLOPs a sample costs because of it, forward and backward."""

    elements: int
    flops: float


@dataclass(frozen=True)
class Sizes:
    """What is sent and computed for one step.

    Attributes
    ----------
    tensors : tuple of Tensor
        In the order in which the backward pass finishes their gradients.
    flops : float
        Of a sample, forward and backward.
    """

    tensors: tuple[Tensor, ...]
    flops: float

    @property
    def elements(self) -> int:
        """Of all weights."""
        return sum(tensor.elements for tensor in self.tensors)


def sizes(experiment: Experiment) -> Sizes:
    """The sizes of an experiment's own model: what `dlpar.models` would build and count."""
    model, data = experiment.model, experiment.data
    if model.name == "transformer":
        return _transformer(model, data.context)
    outputs = 1 if data.name == "diabetes" else 10
    if model.name == "cnn":
        rows = _cnn(model, IMAGES[data.name], outputs)
    else:
        widths = [model.width] * model.depth if model.name == "mlp" else []
        rows = _dense([_features(data), *widths, outputs], model.norm != "none")
    tensors = tuple(reversed(rows))
    return Sizes(tensors, sum(tensor.flops for tensor in tensors))


def _features(data: Data) -> int:
    if data.name in ROWS:
        return ROWS[data.name]
    channels, height, width = IMAGES[data.name]
    return channels * height * width


def _layer(inputs: int, outputs: int, places: int = 1, bias: bool = True) -> list[Tensor]:
    """Weight and bias of a product applied at so many places; 2 FLOPs a multiply-add, three passes."""
    weight = Tensor(inputs * outputs, 6 * inputs * outputs * places)
    return [weight, Tensor(outputs, 0)] if bias else [weight]


def _norm(channels: int) -> list[Tensor]:
    return [Tensor(channels, 0)] * 2


def _dense(widths: list[int], norm: bool) -> list[Tensor]:
    rows: list[Tensor] = []
    for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        hidden = i < len(widths) - 2
        rows += _layer(inputs, outputs) + (_norm(outputs) if norm and hidden else [])
    return rows


def _cnn(model: Model, image: tuple[int, int, int], outputs: int) -> list[Tensor]:
    inputs, height, width = image
    channels, rows = model.channels, []
    for _ in range(model.depth):
        rows += _layer(9 * inputs, channels, height * width)
        rows += _norm(channels) if model.norm != "none" else []
        if min(height, width) >= 8:
            height, width = height // 2, width // 2
        inputs = channels
    return rows + _layer(channels * height * width, outputs)


def _transformer(model: Model, context: int) -> Sizes:
    width = model.width
    # The last product is by the weight that embeds characters, whose gradient is finished last.
    rows = [Tensor(CHARACTERS * width, 6 * CHARACTERS * width * context), Tensor(context * width, 0)]
    for _ in range(model.depth):
        rows += _norm(width) + 4 * _layer(width, width, context) + _norm(width)
        rows += _layer(width, 4 * width, context) + _layer(4 * width, width, context)
    rows += _norm(width)
    between_positions = 3 * 4 * context * width * context * model.depth  # scores, and reading by them
    return Sizes(tuple(reversed(rows)), sum(row.flops for row in rows) + between_positions)
