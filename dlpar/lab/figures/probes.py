"""Probes of a split: each rank's pieces of weights, and the bytes that it sends for each layer.

Before a model is cut, every weight is set to a unique number. A rank's numbers after the cut
identify its weights in the whole model. So the result comes from the split itself and does
not depend on the implementation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from dlpar import models
from dlpar.comm import Recorder
from dlpar.data import load
from dlpar.data.sampler import Sampler
from dlpar.split import make_split
from dlpar.split.mesh import placed
from dlpar.split.pipeline import PipelineSplit
from dlpar.split.spatial import SpatialSplit, Windowed, common
from dlpar.split.split import Split, Task
from dlpar.split.tensor import Overlapping
from dlpar.sync import scheme
from dlpar.theory.layers import BOUNDARY, SHARED

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.comm.base import Traffic
    from dlpar.config.experiment import Experiment


class Piece(NamedTuple):
    """Block of a weight or bias that a rank holds.

    Attributes
    ----------
    name : str
        Name of the parameter in the whole model: ``block1.up.weight``.
    rows, columns : (int, int)
        First row and column, and one after the last, of the parameter as a matrix: outputs by all other
        dimensions.
    """

    name: str
    rows: tuple[int, int]
    columns: tuple[int, int]


class Holdings(NamedTuple):
    """Pieces that one rank holds, and the shapes of the whole parameters.

    Attributes
    ----------
    place : dict of str to int
        Coordinates of the rank on its mesh; empty if a replica is one rank.
    shapes : dict of str to (int, int)
        Every parameter of the whole model as a matrix, in the order of layers. Tied parameters appear once. A
        spatial split first has the height and width of the images that enter a layer: ``image.conv1``.
    pieces, halos : list of Piece
        Pieces of this rank, and regions of images with received halos.
    """

    place: dict[str, int]
    shapes: dict[str, tuple[int, int]]
    pieces: list[Piece]
    halos: list[Piece]


def holdings(comm: Comm, experiment: Experiment) -> Holdings:
    """Cut the model by the experiment's split and report this rank's pieces. Collective over all workers."""
    task = prepared(comm, experiment)
    shapes = numbered(task.model)
    part = make_split(task)
    weights = _found(_numbers_held(task, part), shapes)
    sizes, images, halos = _images(task, part)
    place = task.place.mesh.at if task.place.mesh else {}
    return Holdings(place, {**sizes, **shapes}, [*images, *weights], halos)


def prepared(comm: Comm, experiment: Experiment) -> Task:
    """Prepare the task of a split as training does, but without records."""
    seed, dtype, key = experiment.seed, getattr(torch, experiment.dtype), experiment.to_json()
    read = lambda: load(experiment.data, seed, dtype, experiment.model.name)
    dataset = comm.world.once(f"data of {key}", read)
    draw = lambda: Sampler(experiment.of_replicas(), dataset.train_y, len(dataset.train_x))
    sampler = comm.world.once(f"batches of {key}", draw)
    model, place = models.build(experiment, dataset), placed(experiment, comm)
    return Task(experiment, comm, place, model, dataset, sampler, Recorder())


def numbered(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Number the elements of a model's parameters in place, from 1. Return the shapes as matrices."""
    shapes, first = {}, 1
    for name, parameter in model.named_parameters():
        numbers = torch.arange(first, first + parameter.numel(), dtype=parameter.dtype)
        parameter.data = numbers.view_as(parameter)
        shapes[name] = (parameter.shape[0], parameter.numel() // parameter.shape[0])
        first += parameter.numel()
    return shapes


def _numbers_held(task: Task, part: Split) -> np.ndarray:
    """Return this rank's weights between steps. If it updates only some, return the updated ones."""
    if getattr(task.experiment.split, "zero", 0) != 1:
        return part.replica.weights.detach().numpy()
    group = task.place.dp_group
    sharded = scheme(task.experiment.of_replicas(), group, part.replica)
    return np.concatenate([chunks[group.rank].detach().numpy() for chunks in sharded.weights])


def _images(task: Task, part: Split) -> tuple[dict[str, tuple[int, int]], list[Piece], list[Piece]]:
    """Return a spatial split's image sizes at each layer, this rank's pieces, and halos."""
    sizes, pieces, halos = {}, [], []
    if isinstance(part, SpatialSplit):
        size = tuple(task.batch(0)[0].shape[-2:])
        for name, layer in part.replica.model.named_children():
            if not isinstance(layer, Windowed):
                continue
            sizes[name := f"image.{name}"] = size
            pieces.append(Piece(name, *((owned.start, owned.stop) for owned in layer.owned)))
            reads = zip(layer.windows, layer.outputs, size)
            needed = [common(range(length), window.reads(outputs)) for window, outputs, length in reads]
            halos.append(Piece(name, *map(_around, needed, layer.owned)))
            size = layer.height, layer.width
    return sizes, pieces, halos


def _around(*both: range) -> tuple[int, int]:
    """Return the ends of the range that covers both ranges."""
    return min(one.start for one in both), max(one.stop for one in both)


def _found(numbers: np.ndarray, shapes: dict[str, tuple[int, int]]) -> list[Piece]:
    """Return blocks of the numbered elements. Zeros, which a split may add as padding, are left out."""
    held = np.zeros(1 + sum(rows * columns for rows, columns in shapes.values()), dtype=bool)
    held[numbers.astype(np.int64)] = True
    pieces, first = [], 1
    for name, (rows, columns) in shapes.items():
        own = held[first : first + rows * columns].reshape(rows, columns)
        pieces += [Piece(name, *block) for block in blocks(own)]
        first += rows * columns
    return pieces


def blocks(held: np.ndarray) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return rectangles that cover the true elements of a matrix. A rectangle's rows are equal."""
    changes = np.flatnonzero((held[1:] != held[:-1]).any(1)) + 1
    bands = zip([0, *changes.tolist()], [*changes.tolist(), len(held)])
    return [((start, stop), columns) for start, stop in bands for columns in _runs(held[start])]


def _runs(held: np.ndarray) -> list[tuple[int, int]]:
    """Return the half-open index range of each run of true elements."""
    edges = np.flatnonzero(np.diff(held.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2]))


KINDS = {"F": "forward", "B": "backward"}
"""Passes after which a stage sends."""

OUTSIDE = (SHARED, "backward")
"""Key of bytes that are sent outside all layers."""


class SentByLayer(NamedTuple):
    """Bytes that one rank sent in a step.

    Attributes
    ----------
    replica : int
        Replica of the rank.
    layers : list of str
        Layers of the whole model, in the order in which they compute.
    bytes : dict of (str, str) to int
        Bytes by layer, boundary or other place, and by pass. Only entries above 0 are kept.
    """

    replica: int
    layers: list[str]
    bytes: dict[tuple[str, str], int]


class SentBytesMeter:
    """Meter of the bytes that a rank sends in each activity, such as ``("linear1", "forward")``."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic, self._doing, self._before = traffic, [OUTSIDE], traffic.bytes
        self._found: Counter[tuple[str, str]] = Counter()

    def found(self) -> dict[tuple[str, str], int]:
        """Bytes by activity."""
        now = self._traffic.bytes
        self._found[self._doing[-1]] += now - self._before
        self._before = now
        return {doing: sent for doing, sent in self._found.items() if sent}

    @contextmanager
    def during(self, doing: tuple[str, str]) -> Iterator[None]:
        """Assign the bytes that are sent inside the block to an activity."""
        self.found()
        self._doing.append(doing)
        yield
        self.found()
        self._doing.pop()

    def modules(self, layers: nn.Module) -> None:
        """Watch modules whose messages autograd sends."""

        def backward(name: str) -> None:
            self.found()  # autograd reports no end of a layer whose input has no gradient
            self._doing[0] = name, "backward"

        for name, layer in layers.named_children():
            self.calls(layer, "forward", lambda *_, name=name: (name, "forward"))
            layer.register_full_backward_pre_hook(lambda *_, name=name: backward(name))
            if isinstance(layer, Overlapping):
                self.calls(layer, "refresh", lambda *_, name=name: (name, "forward"))

    def calls(self, thing: Any, method: str, named: Callable[..., tuple[str, str]]) -> None:
        """Watch a method of an object. `named` maps the arguments to an activity."""
        inner = getattr(thing, method)

        def watched(*arguments: Any) -> Any:
            with self.during(named(*arguments)):
                return inner(*arguments)

        setattr(thing, method, watched)


def sent(comm: Comm, experiment: Experiment) -> SentByLayer:
    """Count bytes that this rank sends for a gradient, before replicas synchronise.

    Collective over workers.
    """
    task = prepared(comm, experiment)
    layers = [name for name, _ in task.model.named_children()]
    part, meter = make_split(task), SentBytesMeter(comm.traffic)
    if isinstance(part, PipelineSplit):
        stage, stages = part.stage, part.stage.stages
        for chunk in part.chunks if stage.tp_group else ():
            meter.modules(chunk.layers)

        def boundary(action: Any, *_: Any) -> tuple[str, str]:
            before = action.chunk * stages + stage.number - (action.kind != "F")
            return BOUNDARY + layers[stage.parts[before].layers.stop - 1], KINDS[action.kind]

        meter.calls(part, "send", boundary)
        meter.calls(stage, "add_up_tied", lambda *_: OUTSIDE)
    else:
        meter.modules(part.replica.model)
    if isinstance(part, SpatialSplit):
        meter.calls(part, "reduce", lambda *_: OUTSIDE)
    part.gradient(0)
    return SentByLayer(task.place.replica, layers, meter.found())
