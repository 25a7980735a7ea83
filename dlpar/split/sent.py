"""What a rank sends in the forward and the backward pass of each layer, counted as one step runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from dlpar.costmodel.layers import BOUNDARY, SHARED
from dlpar.split import make_split
from dlpar.split.held import prepared
from dlpar.split.pipeline import PipelineSplit
from dlpar.split.redundant import Overlapping
from dlpar.split.spatial import SpatialSplit

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.comm.base import Traffic
    from dlpar.experiment import Experiment
    from dlpar.split.split import Split

PASSES = ("forward", "backward")

OUTSIDE = (SHARED, "backward")
"""What is sent in no layer."""


class Sent(NamedTuple):
    """What one rank sent in a step.

    Attributes
    ----------
    replica : int
        Whose rank it is.
    layers : list of str
        Of the whole model, in the order in which they compute.
    bytes : dict of (str, str) to int
        By layer, boundary or other place and by pass; only where something was sent.
    """

    replica: int
    layers: list[str]
    bytes: dict[tuple[str, str], int]


class Watch:
    """Splits up a rank's count of bytes by what it is doing."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic, self._doing, self._before = traffic, [OUTSIDE], traffic.bytes
        self._found: dict[tuple[str, str], int] = defaultdict(int)

    def begin(self, what: str, during: str) -> None:
        """From now on this is being done."""
        self._note()
        self._doing.append((what, during))

    def end(self) -> None:
        """What was begun last is done."""
        self._note()
        self._doing.pop()

    def found(self) -> dict[tuple[str, str], int]:
        """Bytes by what was done."""
        self._note()
        return {doing: sent for doing, sent in self._found.items() if sent}

    def module(self, module: nn.Module, name: str) -> None:
        """Watch a module whose messages autograd makes."""
        module.register_forward_pre_hook(lambda *_: self.begin(name, "forward"))
        module.register_forward_hook(lambda *_: self.end())
        module.register_full_backward_pre_hook(lambda *_: self._turn_to(name, "backward"))

    def call(self, thing: Any, method: str, what: str, during: str) -> None:
        """Watch a method of an object."""
        self.calls(thing, method, lambda *_: (what, during))

    def calls(self, thing: Any, method: str, named: Callable[..., tuple[str, str]]) -> None:
        """Watch a method; `named` says by its arguments what it does."""
        inner = getattr(thing, method)

        def watched(*arguments: Any) -> Any:
            self.begin(*named(*arguments))
            try:
                return inner(*arguments)
            finally:
                self.end()

        setattr(thing, method, watched)

    def _turn_to(self, what: str, during: str) -> None:
        """The same until something else is turned to: of a layer whose input has no gradient, autograd tells no end."""
        self._note()
        self._doing[0] = what, during

    def _note(self) -> None:
        now = self._traffic.bytes
        self._found[self._doing[-1]] += now - self._before
        self._before = now


def sent(comm: Comm, experiment: Experiment) -> Sent:
    """What this rank sends for one step's gradient, before replicas agree; collective over all workers."""
    task = prepared(comm, experiment)
    layers = [name for name, _ in task.model.named_children()]
    part = make_split(task)
    watch = Watch(comm.traffic)
    _attach(watch, part, layers)
    part.gradient(0)
    return Sent(task.place.number, layers, watch.found())


def _attach(watch: Watch, part: Split, layers: list[str]) -> None:
    if isinstance(part, SpatialSplit):
        for name, layer in zip(layers, part.layers):
            for during in PASSES:
                watch.call(layer, during, name, during)
    elif isinstance(part, PipelineSplit):
        for chunk in part.chunks if part.stage.tensor else ():
            _attach_modules(watch, chunk.layers)
        parts, stages = part.stage.parts, part.stage.stages

        def boundary(_: Any, action: Any, way: int) -> tuple[str, str]:
            before = action.chunk * stages + part.stage.number - (way < 0)
            return BOUNDARY + layers[parts[before].layers.stop - 1], "forward" if way > 0 else "backward"

        watch.calls(part, "_send", boundary)
        watch.call(part.stage, "add_up_tied", *OUTSIDE)
    else:
        _attach_modules(watch, part.replica.model)


def _attach_modules(watch: Watch, layers: nn.Module) -> None:
    for name, layer in layers.named_children():
        watch.module(layer, name)
        if isinstance(layer, Overlapping):
            watch.call(layer, "refresh", name, "forward")
