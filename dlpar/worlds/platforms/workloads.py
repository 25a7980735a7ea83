"""Workloads: large models as parameters and operations per layer. A small model may represent a workload.

The small model does the mathematics, and the bytes and FLOPs of the big model are charged.  The tables are
derived from the architectures in the papers, and a test repeats the derivation.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Collection
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, model_validator

from dlpar.config.paths import read_plain
from dlpar.config.schema import BadExperiment, FromFile, shown

T = TypeVar("T", bound=FromFile)

TABLES = Path(__file__).parent / "tables"
"""Files that describe the named workloads and clusters."""


class Layer(FromFile):
    """Layer of a workload: the size of its gradient, and the cost of its computation.

    Attributes
    ----------
    name : str
        Its name in the paper or its reference code.
    parameters : int
        At least 0: a layer that shares another layer's weights has 0.
    flops : float
        Floating-point operations per sample, forward and backward. A multiply-add counts as two.
    outputs : int, default 0
        Elements of a sample's output, which one stage of a pipeline sends to the next. 0: not known, and
        nothing is sent.
    """

    name: str = Field(min_length=1)
    parameters: int = Field(ge=0)
    flops: float = Field(ge=0)
    outputs: int = Field(0, ge=0)


class Payload:
    """Bytes that a model sends: the gradients of its layers.

    Attributes
    ----------
    parameters, nbytes : int
        Of all layers together.
    """

    @cached_property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def nbytes(self) -> int:
        return self.parameters * self.itemsize


class Workload(FromFile, Payload):
    """Workload of a model: the bytes that it sends and the FLOPs that it computes, by layer.

    Instead of layers, `parameters` and `flops` of the whole may be given. They then form one layer.

    Attributes
    ----------
    name, source : str
        Its name, and the source that describes its architecture.
    layers : tuple of Layer
        In the order in which a backward pass finishes their gradients: the network's last layer comes first.
    itemsize : int, default 4
        Bytes of an element of a gradient, and of the weights: 1, 2, 4 or 8.
    parameters : int
        Of all layers together.
    flops : float
        Floating-point operations per sample: one part forward, two parts backward. A multiply-add counts as
        two.
    nbytes : int
        Of the whole gradient.

    Raises
    ------
    BadExperiment
        For a bad value, in one sentence that names the field.
    """

    name: str = Field(min_length=1)
    source: str = ""
    layers: tuple[Layer, ...]
    itemsize: Literal[1, 2, 4, 8] = 4

    @model_validator(mode="before")
    @classmethod
    def _has_layers(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Make one layer from the totals if there are no layers."""
        layers = fields.get("layers")
        if not layers and {"parameters", "flops"} <= fields.keys():
            totals = {name: fields[name] for name in ("parameters", "flops")}
            others = {name: value for name, value in fields.items() if name not in (*totals, "layers")}
            return {**others, "layers": (Layer(name="all", **totals),)}
        if not (isinstance(layers, (list, tuple)) and layers):
            allowed = "a list of layers, or parameters and flops instead"
            raise ValueError(f"layers: got {shown(layers)}, allowed is {allowed}")
        return fields

    @cached_property
    def flops(self) -> float:
        return sum(layer.flops for layer in self.layers)

    def in_place_of(self, nbytes: int, flops: float) -> tuple[float, float]:
        """Return bytes and FLOPs of this workload for each byte and FLOP of a small model.

        Parameters
        ----------
        nbytes : int
            Of the small model's gradient.
        flops : float
            Of a sample.

        Raises
        ------
        BadExperiment
            If the workload has no bytes.
        """
        if not self.parameters:
            got = f"{FIELD}: got {shown(self.name)}, which has no parameters"
            raise BadExperiment(f"{got}, allowed with messages values is one that has some")
        return self.nbytes / nbytes, self.flops / flops


WORKLOADS = "alexnet vgg16 googlenet inception3 resnet50 resnet101 resnet152 bert-large gpt2 gpt2-xl".split()
"""Names of the workloads that come with dlpar."""

FIELD = "cluster.stand_in_for"


@cache
def _known(name: str) -> Workload:
    return Workload(**fields_of(str(TABLES / f"{name}.json"), FIELD, WORKLOADS))


def workload(which: str) -> Workload:
    """Return a workload by its name.

    A JSON or TOML file with the fields of :class:`Workload` may also define it.

    Parameters
    ----------
    which : str
        One of :data:`WORKLOADS`, or a path. A path ends in .json or .toml, or has a slash.

    Raises
    ------
    BadExperiment
        ``cluster.stand_in_for: …``, if there is no such workload, or the file has a value that is not
        allowed.
    """
    if which in WORKLOADS:
        return _known(which)
    return described(Workload, which, FIELD, fields_of(which, FIELD, WORKLOADS))


def is_path(which: str) -> bool:
    """Return whether a name is the path of a file. A path ends in .json or .toml, or has a slash."""
    return which.endswith((".json", ".toml")) or "/" in which


def fields_of(path: str, field: str, names: Collection[str]) -> dict[str, Any]:
    """Read the mapping in a file. A missing `name` becomes the file's name.

    Parameters
    ----------
    path : str
        Path of the file. Any file but .toml is read as JSON.
    field : str
        The field that has the path as its value, for error messages.
    names : collection of str
        Other values of this field, for error messages.

    Raises
    ------
    BadExperiment
        If it is no path, the file cannot be read, or it holds no mapping.
    """
    if not is_path(path):
        allowed = f"one of {', '.join(names)}, or the path of a .json or .toml file"
        raise BadExperiment(f"{field}: got {shown(path)}, allowed is {allowed}")
    file, got = Path(os.path.expanduser(path)), f"{field}: got {shown(path, limit=200)}, allowed is a file"
    kind, read = ("TOML", tomllib.loads) if file.suffix == ".toml" else ("JSON", json.loads)
    try:
        fields = read(read_plain(file).decode())
    except OSError as error:
        raise BadExperiment(f"{got} that can be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise BadExperiment(f"{got} of {kind} ({error})") from None
    if not isinstance(fields, dict):
        raise BadExperiment(f"{got} with a mapping of fields to values")
    return {"name": file.stem, **fields}


def described(kind: type[T], path: str, field: str, fields: dict[str, Any]) -> T:
    """Return the part that a file describes. Raises `BadExperiment`, which names the file and the field in it."""
    try:
        return kind(**fields)
    except BadExperiment as error:
        raise BadExperiment(f"{field}: got {shown(Path(path).name)}, where {error}") from None
