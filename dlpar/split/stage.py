"""One rank's stage of a pipeline: the parts of the model it holds, and what it has to do with other stages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from dlpar.split.chunk import Chunk
from dlpar.split.data import Replica
from dlpar.split.deferred import Later
from dlpar.split.partition import cut, measured, units
from dlpar.split.schedules import SCHEDULES

if TYPE_CHECKING:
    from dlpar.split.split import Task

TIED = 0
"""Tag of a weight that two stages have, and of its gradients; no micro-batch has that."""


class Part(NamedTuple):
    """Consecutive layers of a model: which they are, FLOPs of a sample, shape of what comes in for one."""

    layers: slice
    flops: float
    shape: tuple[int, ...]


class Stage:
    """What this rank holds; collective over the workers.

    Parameters
    ----------
    task : Task
        Its model is cut: of P stages with C chunks each, stage s holds parts s, s + P, … of P × C.
    pause : callable
        The context in which a pass stops for messages between the ranks of a stage.

    Attributes
    ----------
    number, stages : int
        This stage, 0-based, and how many there are.
    pipe : Comm
        The ranks of this replica with the same piece of every layer, by stage.
    mates : Comm
        All ranks of this replica.
    chunks : list of Chunk
        In the order in which a micro-batch passes them.
    replica : Replica
        Their weights.
    speaker : int
        The rank among mates that speaks for the replica: of the last stage, the first.
    """

    def __init__(self, task: Task, pause: Callable[[str], AbstractContextManager]) -> None:
        mesh, self.mates, self.task, self._pause = task.place.mesh, task.place.mates, task, pause
        sizes = mesh.sizes
        self.number, self.stages = mesh.at["pipeline"], sizes["pipeline"]
        self.pipe = mesh.group("pipeline")
        self.tensor = mesh.group("tensor") if sizes.get("tensor", 1) > 1 else None
        self.dtype = next(iter(task.model.parameters())).dtype
        self.parts = _parts(task, self.stages)
        whole = [task.model[self.parts[part].layers] for part in self._of(self.number)]
        self.held = [self._piece(layers) for layers in whole]
        self.replica = Replica(reduce(add, self.held), task.comm)
        self.chunks = self._chunks()
        self._tied = self._find_tied(reduce(add, whole))
        inner = [axis for axis in sizes if axis != "data"]  # the order of mates
        self.speaker = reduce(
            lambda number, axis: number * sizes[axis] + (self.stages - 1 if axis == "pipeline" else 0),
            inner,
            0,
        )
        if self.mates.rank > 0:
            task.comm.compute(lambda: _forget(task.model, keep=whole if self.tensor is None else []))

    @property
    def speaks(self) -> bool:
        """Whether this rank speaks for the replica."""
        return self.mates.rank == self.speaker

    def _of(self, stage: int) -> range:
        """Numbers of the parts a stage holds."""
        return range(stage, len(self.parts), self.stages)

    def _piece(self, layers: nn.Sequential) -> nn.Sequential:
        """What this rank has of some layers: of a hybrid a piece of each, else all."""
        if self.tensor is None:
            return layers
        from dlpar.split.cut import cut as cut_layers

        return cut_layers(layers, self.tensor, self._pause, weights_wait=self._has_weight_pass)

    @property
    def _has_weight_pass(self) -> bool:
        return SCHEDULES[self.task.experiment.split.schedule].has_weight_pass

    def _chunks(self) -> list[Chunk]:
        task, last = self.task, len(self.parts) - 1
        waits = self._has_weight_pass
        later = task.comm.compute(lambda: Later(reduce(add, self.held), task.memory)) if waits else None
        return [
            Chunk(
                task,
                layers,
                self.parts[part].flops,
                takes=self.parts[part].shape if part > 0 else None,
                gives=self.parts[part + 1].shape if part < last else None,
                later=later,
                charges=self.tensor is not None,
            )
            for part, layers in zip(self._of(self.number), self.held)
        ]

    def _find_tied(self, whole: nn.Sequential) -> list[tuple[int, nn.Parameter]]:
        """This rank's parameters that another stage has, too, with that stage."""
        others = {
            id(parameter): part % self.stages
            for part in range(len(self.parts))
            if part % self.stages != self.number
            for parameter in self.task.model[self.parts[part].layers].parameters()
        }
        pairs = zip(whole.parameters(), self.replica.model.parameters())
        return [(others[id(of_model)], own) for of_model, own in pairs if id(of_model) in others]

    def level(self) -> None:
        """Where replicas run free, and parts' servers update in different orders: let ranks have equal copies, those
        of a stage of what is not cut, and the last stage of what it shares with the first."""
        if not self.task.experiment.free_running:
            return
        if self.tensor is not None:
            from dlpar.split.cut import level

            level(self.replica.model, self.tensor)
        comm = self.task.comm
        for stage, parameter in self._tied:
            copy = comm.empty(parameter.shape, self.dtype)
            if self.number < stage:
                comm.compute(lambda: copy.copy_(parameter.detach()))
                self.pipe.send(copy, stage, TIED)
            else:
                self.pipe.recv(copy, stage, TIED)
                comm.compute(lambda: parameter.detach().copy_(copy))

    def add_up_tied(self) -> None:
        """Add to the gradients of weights another stage has, too, what it found; it does the same."""
        comm = self.task.comm
        for stage, parameter in self._tied:
            mine, theirs = comm.compute(lambda: parameter.grad), comm.empty(parameter.shape, self.dtype)
            sent = mine if isinstance(mine, Tensor) else theirs.clone()
            self.pipe.sendrecv(sent, stage, theirs, stage, TIED)
            comm.compute(lambda: mine.add_(theirs), cost=parameter.numel())

    def whole(self) -> nn.Module | None:
        """The model with all stages' weights on the replica's first rank; collective over its ranks, not traffic."""
        return self.task.comm.compute(self._whole)

    def _whole(self) -> nn.Module | None:
        from dlpar.split.cut import joined

        if self.tensor is None:
            own = [parameter.detach().cpu() for parameter in self.replica.model.parameters()]
        else:
            own = joined(self.replica.model, self.tensor)
        if own is None:
            return None
        stages = self.pipe.gather(own)
        if stages is None:
            return None
        for stage in reversed(range(self.stages)):  # the first has the last word on what it shares
            layers = reduce(add, [self.task.model[self.parts[part].layers] for part in self._of(stage)])
            for parameter, values in zip(layers.parameters(), stages[stage]):
                parameter.data.copy_(values)
        return self.task.model


def _parts(task: Task, stages: int) -> list[Part]:
    """The model, cut as its experiment asks for."""
    split, model = task.experiment.split, task.model
    x, _ = task.batch(0)
    found = task.comm.once("units", lambda: units(model, x.new_zeros((1, *x.shape[1:]))))
    costs = [unit.flops for unit in found]
    if split.partition == "measured":
        costs = measured(model, found, x[: -(-len(x) // split.microbatches)], task.place.mesh.comm)
    number = stages * (split.chunks if SCHEDULES[split.schedule].has_chunks and stages > 1 else 1)
    return [
        Part(
            slice(found[part.start].layers.start, found[part.stop - 1].layers.stop),
            sum(found[unit].flops for unit in part),
            found[part.start].shape,
        )
        for part in cut(costs, number, split.partition)
    ]


def _forget(model: nn.Sequential, keep: list[nn.Sequential]) -> None:
    """Let go of the layers this rank has no part in."""
    kept = {id(layer) for layers in keep for layer in layers}
    for name, layer in list(model.named_children()):
        if id(layer) not in kept:
            delattr(model, name)
