"""Workloads: the big models a small one may stand in for, by their parameters and operations, layer by layer.

The small model does the mathematics; the bytes and FLOPs of the big one are charged.
The tables follow from the architectures, in :mod:`dlpar.platforms.architectures`.
"""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from dlpar.platforms.files import fields_of, is_path
from dlpar.schema import BadExperiment, Part, sentence, shown


class Layer(Part):
    """A layer of a workload: what its gradient holds, and what it costs to get.

    Attributes
    ----------
    name : str
        What it is called in the paper or its reference code.
    parameters : int
        From 0: a layer that shares another's weights has none of its own.
    flops : float
        Floating-point operations a sample, forward and backward, a multiply-add being two.
    outputs : int, default 0
        Elements a sample's output has, which one stage of a pipeline sends the next; 0: not known, nothing is sent.
    """

    name: str = Field(min_length=1, description="Name.")
    parameters: int = Field(ge=0, description="Parameters.")
    flops: float = Field(ge=0, allow_inf_nan=False, description="FLOPs a sample, forward and backward.")
    outputs: int = Field(0, ge=0, description="Elements a sample's output has.")


def _layer(fields: Any, where: str) -> Layer:
    """A layer, complaints beginning with `where`."""
    if isinstance(fields, Layer):
        return fields
    if not isinstance(fields, dict):
        raise ValueError(
            f"{where[:-1]}: got {shown(fields)}, allowed is a mapping of {', '.join(Layer.model_fields)}"
        )
    try:
        return Layer(**fields)
    except ValidationError as error:
        raise ValueError(where + sentence(error, Layer)) from None


class Workload(Part):
    """A model as a network and a device see it.

    In place of layers, `parameters` and `flops` of the whole may be given: they make one layer.

    Attributes
    ----------
    name, source : str
        What it is called, and where its architecture is described.
    layers : tuple of Layer
        In the order in which a backward pass finishes their gradients: the last of the network first.
    itemsize : int, default 4
        Bytes of an element of a gradient, and of the weights: 1, 2, 4 or 8.
    parameters : int
        Of all layers together.
    flops : float
        Floating-point operations a sample: forward and backward, as 1 to 2, a multiply-add being two.
    nbytes : int
        Of the whole gradient.

    Raises
    ------
    BadExperiment
        For a bad value, in one sentence that names the field.
    """

    name: str = Field(min_length=1, description="Name.")
    source: str = Field("", description="Where the architecture is described.")
    layers: tuple[Layer, ...] = Field(min_length=1, description="Layers in the order of the backward pass.")
    itemsize: Literal[1, 2, 4, 8] = Field(4, description="Bytes of an element of a gradient.")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise BadExperiment(sentence(error, type(self))) from None

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, fields: Any) -> Any:
        """Layers are a list, or one layer made of the totals; complaints name the layer."""
        if not isinstance(fields, dict):
            return fields
        if not fields.get("layers") and {"parameters", "flops"} <= fields.keys():
            totals = {name: fields[name] for name in ("parameters", "flops")}
            others = {name: value for name, value in fields.items() if name not in (*totals, "layers")}
            return {**others, "layers": (_layer({"name": "all", **totals}, ""),)}
        layers = fields.get("layers")
        if not (isinstance(layers, (list, tuple)) and layers):
            allowed = "a list of layers, or parameters and flops in its place"
            raise ValueError(f"layers: got {shown(layers)}, allowed is {allowed}")
        return {**fields, "layers": tuple(_layer(layer, f"layers.{n}.") for n, layer in enumerate(layers))}

    @cached_property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def flops(self) -> float:
        return sum(layer.flops for layer in self.layers)

    @property
    def nbytes(self) -> int:
        return self.parameters * self.itemsize

    def in_place_of(self, nbytes: int, flops: float) -> tuple[float, float]:
        """How many of its bytes and FLOPs one of a small model's stands for; raises `BadExperiment` if it has no bytes.

        Parameters
        ----------
        nbytes : int
            Of the small model's gradient.
        flops : float
            Of a sample.
        """
        if not self.parameters:
            got = f"{shown(self.name)}, which has no parameters"
            raise BadExperiment(
                f"cluster.stand_in_for: got {got}, allowed with messages values is one that has some"
            )
        return self.nbytes / nbytes, self.flops / flops


WORKLOADS = (
    "alexnet", "vgg16", "inception3", "resnet50", "resnet101", "resnet152", "bert-large", "gpt2", "gpt2-xl",
)  # fmt: skip
"""Names of the workloads that come with dlpar."""


@cache
def _known(name: str) -> Workload:
    from dlpar.platforms.architectures import ARCHITECTURES

    source, walk = ARCHITECTURES[name]
    layers = tuple(
        # The backward pass computes two products for each of the forward one, and a multiply-add is two operations.
        Layer(name=layer, parameters=parameters, flops=6 * multiply_adds, outputs=sum(outputs))
        for layer, parameters, multiply_adds, *outputs in reversed(walk())
    )
    return Workload(name=name, source=source, layers=layers)


def workload(which: str) -> Workload:
    """A workload by its name, or from a JSON or TOML file with the fields of :class:`Workload`.

    Parameters
    ----------
    which : str
        One of :data:`WORKLOADS`, or a path: it ends in .json or .toml, or has a slash.

    Raises
    ------
    BadExperiment
        ``cluster.stand_in_for: …``, if there is none, or the file says something that is not allowed.
    """
    if which in WORKLOADS:
        return _known(which)
    if not is_path(which):
        allowed = f"one of {', '.join(WORKLOADS)}, or the path of a .json or .toml file"
        raise BadExperiment(f"cluster.stand_in_for: got {shown(which)}, allowed is {allowed}")
    fields = fields_of(which, "cluster.stand_in_for")
    try:
        return Workload(**fields)
    except BadExperiment as error:
        raise BadExperiment(f"cluster.stand_in_for: got {shown(Path(which).name)}, where {error}") from None
