"""A model's layers spread over ranks; micro-batches go through them as a schedule says.

Each rank walks down its own list of actions (:mod:`dlpar.split.schedules`).  Whatever
the schedule, an action is the same three things: wait for what it needs from a
neighbour, compute, start sending what the other neighbour needs.  A receive is posted
before the action in front of it computes, so that a message travels meanwhile, and a
send is waited for at the end of the step only, so that no two ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from dlpar.replica import Replica
from dlpar.split.deferred import Later
from dlpar.split.partition import cut, measured, units
from dlpar.split.schedules import SCHEDULES, Action, of_step
from dlpar.split.split import Split, Task, backward, narrowed, of_activations

if TYPE_CHECKING:
    from dlpar.comm import Request
    from dlpar.memory import Memory


class PipelineSplit(Split):
    """This rank's stage of a replica's pipeline.

    Notes
    -----
    A boundary between two parts carries, for each micro-batch, its activations one way
    and as many gradients back.  The last stage knows the loss and speaks for the replica.
    A weight that the first and the last stage share is on both: their gradients are added
    up at the end of a step, so both make the same update.

    Without a flush (pipedream) a step of the training loop is the backward pass of one
    batch, while forward passes run ahead by as many steps as stages follow.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        stage = self.stage
        self.speaks, self.chunks, self.pp_group = stage.speaks, stage.chunks, stage.pp_group
        self.schedule = SCHEDULES[task.experiment.split.schedule]
        self.actions = self.schedule.actions(stage.number, stage.stages, self.microbatches, len(stage.chunks))
        self.stash = None if self.schedule.has_flush else WeightStash(self.replica, task.memory)
        self._batches: dict[int, list[tuple[Tensor, Tensor]]] = {}  # of steps under way, in micro-batches
        self._coming: dict[Action, tuple[Request, Tensor]] = {}
        self._sending: list[Request] = []
        self._in_flight = self._most = self._staleness = 0

    def cut(self, model: nn.Module) -> nn.Module:
        self.stage = Stage(self.task, self.pause)
        return self.stage.layers

    def gradient(self, step: int) -> None:
        self.replica.zero_gradient()
        with self.record.span("communicate"):
            self.stage.level()
        self._step, self._losses, self._most = step, 0.0, self._in_flight
        left = self._sending
        self._sending = []
        for action, following in self._of_step(step):
            for one in (action, following):
                self._listen(one)
            {"F": self._forward, "B": self._backward, "W": self._weight}[action.kind](action)
        with self.record.span("communicate"):
            self.stage.add_up_tied()
        if self.schedule.has_flush or step == self.task.experiment.steps - 1:
            left += self._sending
        with self.record.span(
            "send"
        ):  # without a flush, what was just sent is for another step of its receiver
            for request in left:
                request.wait()
        self._tell(sum(len(y) for _, y in self._batches.pop(step)))

    def _of_step(self, step: int) -> Iterator[tuple[Action, Action | None]]:
        """The actions of a step, each with the one that follows."""
        actions, following = self.actions, []
        if not self.schedule.has_flush:
            number, stages, steps = self.stage.number, self.stage.stages, self.task.experiment.steps
            actions = of_step(number, stages, step, steps)
            following = of_step(number, stages, step + 1, steps)[:1] if step + 1 < steps else []
        return zip(actions, [*actions[1:], *following, None])

    def _forward(self, action: Action) -> None:
        chunk, micro = self.chunks[action.chunk], action.micro
        x, y = self._samples(action)
        if not chunk.is_first:
            x = self._came(action)
        if self.stash:
            self.stash.keep(micro)
        with self._weights_of(micro), self._pass("forward", "reduce", action.micro, action.chunk):
            output = chunk.forward(micro, x, y)
        if chunk.is_last:
            self._losses += output.detach() * len(y)
        else:
            self._send(output, action, +1)
        self._in_flight += 1
        self._most = max(self._most, self._in_flight)

    def _backward(self, action: Action) -> None:
        chunk, micro = self.chunks[action.chunk], action.micro
        if chunk.recompute:
            with self._weights_of(micro), self._pass("recompute", "reduce", action.micro, action.chunk):
                chunk.again(micro)
        samples = len(self._samples(action)[1])
        share = self.task.share(samples)
        whole = torch.full((), share, dtype=self.stage.dtype, device=self.comm.device)
        gradient = whole if chunk.is_last else self._came(action)
        with self._weights_of(micro), self._pass("backward", "reduce", action.micro, action.chunk):
            result = chunk.backward(micro, gradient)
        if not chunk.is_first:
            self._send(result, action, -1)
        if self.stash:
            self._staleness = self.stash.let_go(micro)
            self.stash.version += 1
        self._in_flight -= not self.schedule.has_weight_pass

    def _weight(self, action: Action) -> None:
        with self._pass("weight", "reduce", action.micro, action.chunk):
            self.chunks[action.chunk].weight(action.micro, len(self._samples(action)[1]))
        self._in_flight -= 1

    # ---- messages -----------------------------------------------------------------------

    def _listen(self, action: Action | None) -> None:
        """Be ready for the message an action needs, if it needs one."""
        if action is None or action.kind == "W" or action in self._coming:
            return
        chunk, forward = self.chunks[action.chunk], action.kind == "F"
        if chunk.is_first if forward else chunk.is_last:
            return
        shape = (len(self._samples(action)[1]), *(chunk.takes if forward else chunk.gives))
        room = self.comm.empty(shape, of_activations(self.task.experiment))
        source = (self.stage.number + (-1 if forward else +1)) % self.stage.stages
        self._coming[action] = self.pp_group.irecv(room, source, self._tag(action)), room

    def _came(self, action: Action) -> Tensor:
        """The message an action needs."""
        request, room = self._coming.pop(action)
        with self.record.span("receive", action.micro, action.chunk):
            request.wait()
        return room

    def _send(self, result: Tensor, action: Action, way: int) -> None:
        """Start sending what an action gave to the next part of the model, or (way -1) to the one before."""
        number, stages = self.stage.number, self.stage.stages
        chunk = (
            action.chunk + (number + way) // stages
        )  # the last stage's neighbour is the first with its next chunk
        mine, samples = self.chunks[action.chunk], len(self._samples(action)[1])
        shape = (samples, *(mine.gives if way > 0 else mine.takes))
        # A result has this shape and type already, except for the single number of a world that computes none.
        message = result.detach().expand(shape).to(of_activations(self.task.experiment))
        tag = self._tag(action._replace(chunk=chunk))
        self._sending.append(self.pp_group.isend(message, (number + way) % stages, tag))

    def _tag(self, action: Action) -> int:
        """Of the message an action needs, from 1: no two are under way with one."""
        return 1 + 2 * (action.micro * len(self.chunks) + action.chunk) + (action.kind == "B")

    # ---- what a step is made of -----------------------------------------------------------

    def _samples(self, action: Action) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a micro-batch, which without a flush is a whole batch."""
        flush = self.schedule.has_flush
        step = self._step if flush else action.micro
        if step not in self._batches:
            self._batches[step] = self.task.microbatches(step, self.microbatches if flush else 1)
        return self._batches[step][action.micro if flush else 0]

    def _weights_of(self, micro: int) -> AbstractContextManager:
        return self.stash.used(micro) if self.stash else nullcontext()

    def _tell(self, samples: int) -> None:
        """Say what is known of the step: the loss, by the rank that knows it."""
        loss = self._losses / samples if samples else self._losses
        if self.task.experiment.sync.scheme in ("mapreduce", "own"):  # they may ask every rank for it
            loss = self.stage.mp_group.broadcast(float(loss), root=self.stage.speaker)
        self._report(loss, samples)

    def facts(self) -> dict[str, Any]:
        """``in_flight``, the most micro-batches (of a chunk each) whose activations were held in the step; without a
        flush ``staleness``, the updates between the forward and the backward pass of the batch, and ``versions`` of
        the weights, the present one included."""
        stale = {"staleness": self._staleness, "versions": self.stash.versions} if self.stash else {}
        return {"in_flight": self._most, **stale}

    def whole(self) -> nn.Module | None:
        return self.stage.whole()


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
    pp_group : Comm
        The ranks of this replica with the same piece of every layer, by stage.
    mp_group : Comm
        All ranks of this replica.
    chunks : list of Chunk
        In the order in which a micro-batch passes them.
    layers : nn.Sequential
        All of theirs.
    speaker : int
        The rank in mp_group that speaks for the replica: of the last stage, the first.
    """

    def __init__(self, task: Task, pause: Callable[[], AbstractContextManager]) -> None:
        mesh, self.mp_group, self.task, self._pause = task.place.mesh, task.place.mp_group, task, pause
        sizes = mesh.sizes
        self.number, self.stages = mesh.at["pipeline"], sizes["pipeline"]
        self.pp_group = mesh.group("pipeline")
        self.tp_group = mesh.group("tensor") if sizes.get("tensor", 1) > 1 else None
        self.dtype = next(iter(task.model.parameters())).dtype
        self.parts = _parts(task, self.stages)
        whole = [task.model[self.parts[part].layers] for part in self._of(self.number)]
        self.held = [self._piece(layers) for layers in whole]
        self.layers = reduce(add, self.held)
        self.chunks = self._chunks()
        self._tied = self._find_tied(reduce(add, whole))
        self.speaker = (self.stages - 1) * sizes.get("tensor", 1)
        if self.mp_group.rank > 0:
            task.comm.compute(lambda: _forget(task.model, keep=whole if self.tp_group is None else []))

    @property
    def speaks(self) -> bool:
        """Whether this rank speaks for the replica."""
        return self.mp_group.rank == self.speaker

    def _of(self, stage: int) -> range:
        """Numbers of the parts a stage holds."""
        return range(stage, len(self.parts), self.stages)

    def _piece(self, layers: nn.Sequential) -> nn.Sequential:
        """What this rank has of some layers: of a hybrid a piece of each, else all."""
        if self.tp_group is None:
            return layers
        from dlpar.split.tensor import cut_layers

        return cut_layers(layers, self.tp_group, self._pause, weights_wait=self._has_weight_pass)

    @property
    def _has_weight_pass(self) -> bool:
        return SCHEDULES[self.task.experiment.split.schedule].has_weight_pass

    def _chunks(self) -> list[Chunk]:
        task, last = self.task, len(self.parts) - 1
        waits = self._has_weight_pass
        later = task.comm.compute(lambda: Later(self.layers, task.memory)) if waits else None
        return [
            Chunk(
                task,
                layers,
                self.parts[part].flops,
                takes=self.parts[part].shape if part > 0 else None,
                gives=self.parts[part + 1].shape if part < last else None,
                later=later,
                charges=self.tp_group is not None,
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
        pairs = zip(whole.parameters(), self.layers.parameters())
        return [(others[id(of_model)], own) for of_model, own in pairs if id(of_model) in others]

    def level(self) -> None:
        """Where replicas run free, and parts' servers update in different orders: let ranks have equal copies, those
        of a stage of what is not cut, and the last stage of what it shares with the first."""
        if not self.task.experiment.free_running:
            return
        if self.tp_group is not None:
            from dlpar.split.tensor import level

            level(self.layers, self.tp_group)
        comm = self.task.comm
        for stage, parameter in self._tied:
            copy = comm.empty(parameter.shape, self.dtype)
            if self.number < stage:
                comm.compute(lambda: copy.copy_(parameter.detach()))
                self.pp_group.send(copy, stage, TIED)
            else:
                self.pp_group.recv(copy, stage, TIED)
                comm.compute(lambda: parameter.detach().copy_(copy))

    def add_up_tied(self) -> None:
        """Add to the gradients of weights another stage has, too, what it found; it does the same."""
        comm = self.task.comm
        for stage, parameter in self._tied:
            mine, theirs = comm.compute(lambda: parameter.grad), comm.empty(parameter.shape, self.dtype)
            sent = mine.expand(parameter.shape).to(self.dtype)  # no change, where numbers are computed
            self.pp_group.sendrecv(sent, stage, theirs, stage, TIED)
            comm.compute(lambda: mine.add_(theirs), cost=parameter.numel())

    def whole(self) -> nn.Module | None:
        """The model with all stages' weights on the replica's first rank; collective over its ranks, not traffic."""
        return self.task.comm.compute(self._whole)

    def _whole(self) -> nn.Module | None:
        from dlpar.split.tensor import joined

        if self.tp_group is None:
            own = [parameter.detach().cpu() for parameter in self.layers.parameters()]
        else:
            own = joined(self.layers, self.tp_group)
        if own is None:
            return None
        stages = self.pp_group.gather(own)
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
    found = task.comm.world.once("units", lambda: units(model, x.new_zeros((1, *x.shape[1:]))))
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


class Held(NamedTuple):
    """A micro-batch between its forward and its backward pass."""

    x: Tensor
    y: Tensor
    output: Tensor | None
    samples: int


class Chunk:
    """Consecutive layers.

    Parameters
    ----------
    task : Task
        What they are layers for.
    layers : nn.Sequential
        In the order in which they compute.
    flops : float
        Of a sample, forward and backward.
    takes, gives : tuple of int or None
        Shape of what comes from the layers before for a sample, and of what goes to those behind; None where
        there are none.
    later : Later, optional
        What puts off the gradients of weights, where they have a pass of their own.
    charges : bool
        Whether layers charge for their computing themselves, as those that send messages in it do.
    """

    def __init__(
        self,
        task: Task,
        layers: nn.Sequential,
        flops: float,
        takes: tuple[int, ...] | None,
        gives: tuple[int, ...] | None,
        later: Later | None = None,
        charges: bool = False,
    ) -> None:
        self.task, self.layers, self.flops, self.takes, self.gives = task, layers, flops, takes, gives
        self.is_first, self.is_last, self.later = takes is None, gives is None, later
        self.recompute, self.charges = task.experiment.split.recompute, charges
        self._held: dict[int, Held] = {}

    def forward(self, micro: int, x: Tensor, y: Tensor) -> Tensor:
        """The layers' output for `x`, or, of the model's last, the mean loss of that and `y`; kept for later passes."""

        def work() -> Tensor:
            if not self.is_first:
                x.requires_grad_()
            with torch.set_grad_enabled(not self.recompute):
                return self._through(x, y)

        output = self._compute(work, len(y) / 3)
        if self.recompute:
            self.task.memory.hold("activations", x)
        self._held[micro] = Held(x, y, None if self.recompute else output, len(y))
        return output

    def again(self, micro: int) -> None:
        """Where activations were not kept, make them once more from the input."""
        held = self._held[micro]
        output = self._compute(lambda: self._through(held.x, held.y), held.samples / 3)
        self._held[micro] = held._replace(output=output)

    def backward(self, micro: int, gradient: Tensor) -> Tensor | None:
        """From the gradient of the output to that of the input, adding to those of weights unless they wait."""
        held = self._held.pop(micro)

        def work() -> Tensor | None:
            if self.later:
                self.later.begin(micro)
            backward(held.output, gradient)
            return held.x.grad

        result = self._compute(work, held.samples * (1 if self.later else 2) / 3)
        if self.recompute:
            self.task.memory.drop(held.x)
        return result

    def weight(self, micro: int, samples: int) -> None:
        """Add to the gradients of weights what waited since the backward pass."""
        cost = self.later.flops(micro) if self.charges else self.flops * samples / 3
        self.task.comm.compute(lambda: self.later.end(micro), cost=cost)

    def _through(self, x: Tensor, y: Tensor) -> Tensor:
        with self.task.forward_pass():
            output = self.layers(x)
            return self.task.criterion(output, y) if self.is_last else narrowed(output)

    def _compute(self, work: Callable[[], Any], share: float) -> Any:
        """Do `work`, which costs as much as `share` samples."""
        return work() if self.charges else self.task.comm.compute(work, cost=self.flops * share)


class WeightStash:
    """Weights of one stage as they were.

    Parameters
    ----------
    replica : Replica
        Whose weights; they move in place.
    memory : Memory
        Where versions that are kept are counted.

    Attributes
    ----------
    version : int
        Of the present weights: how many updates have been made.
    """

    def __init__(self, replica: Replica, memory: Memory) -> None:
        self.replica, self.memory, self.version = replica, memory, 0
        self._version_of: dict[int, int] = {}  # of each micro-batch in flight
        self._kept: dict[int, Tensor] = {}

    @property
    def versions(self) -> int:
        """Different versions of the weights that are there, the present one included."""
        return len({self.version, *self._kept})

    def keep(self, micro: int) -> None:
        """The present weights are those of a micro-batch; one copy serves all that share a version."""
        self._version_of[micro] = self.version
        if self.version not in self._kept:  # a copy: the present ones move in place
            kept = self._kept[self.version] = self.replica.weights.clone()
            self.memory.hold("weights", kept)

    def let_go(self, micro: int) -> int:
        """A micro-batch is back; how many updates were made since it came."""
        version = self._version_of.pop(micro)
        if version not in self._version_of.values():
            self.memory.drop(self._kept.pop(version))
        return self.version - version

    @contextmanager
    def used(self, micro: int) -> Iterator[None]:
        """Compute with the weights of a micro-batch meanwhile."""
        present = self.replica.weights
        self.replica.look_at(self._kept[self._version_of[micro]])
        try:
            yield
        finally:
            self.replica.look_at(present)
