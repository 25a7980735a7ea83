"""Pipeline parallelism: layers are spread over ranks, and a schedule passes micro-batches through them.

Each rank executes its own list of actions (:mod:`dlpar.split.schedules`).  In every schedule an action has
three parts: wait for a neighbour's message, compute, and start sending the result to the other neighbour.  A
receive is posted before the previous action computes, so that the computation hides the message.  Ranks wait
for sends only at the end of the step, so that no two ranks wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, reduce
from itertools import product
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from dlpar.collectives import star_broadcast
from dlpar.comm import Comm, Request, wait_all
from dlpar.memory import Memory
from dlpar.models import Tied
from dlpar.replica import Replica
from dlpar.split.partition import partition
from dlpar.split.schedules import DIRECTION, SCHEDULES, Action, by_step
from dlpar.split.split import Split, Task, backward, derivative, moved, narrowed, release
from dlpar.split.tensor import cut_layers, joined, level
from dlpar.split.tensor_ops import Pause, TensorGroup, pair


class PipelineSplit(Split):
    """Split that gives each rank a stage of a replica's pipeline.

    Notes
    -----
    For each micro-batch, a boundary between two parts carries activations forward and as many
    gradients back.  The last stage knows the loss and reports it.  If the first and the last stage share a
    weight, both hold it.  They add up its gradients at the end of a step, so both make the same update, up to rounding.

    Without a flush (pipedream) a step of the training loop is the backward pass of one batch. Forward passes
    run ahead by one step for each later stage. The actions of all steps are listed at the start (300 bytes a step).
    """

    kept = ("replica", "stash")

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        stage, split, steps = self.stage, task.experiment.split, task.experiment.steps
        self.speaks, self.chunks = stage.mp_group.rank == stage.speaker, stage.chunks
        self.traits, self.stash = split.traits, None
        micros = self.microbatches if self.traits.has_flush else steps
        actions = SCHEDULES[split.schedule](stage.number, stage.stages, micros, len(self.chunks))
        self.steps = [actions]
        if not self.traits.has_flush:
            self.steps, self.stash = list(by_step(actions)), WeightStash(self.replica, task.memory)
        self._batches: dict[int, list[tuple[Tensor, Tensor]]] = {}  # micro-batches of steps under way
        self._coming: dict[Action, tuple[Request, Tensor]] = {}
        self._sending: list[Request] = []
        self._in_flight = self._most = self._staleness = 0
        # A GPU loads the kernels of the first passes when it is idle, so it may not wait for a later message.
        self._looks_ahead = not self.stage.lanes

    def cut(self, model: nn.Sequential) -> nn.Module:
        self.stage = Stage(self.task, partial(self.pause, "reduce"))
        part = moved(self.stage.layers, self.comm.device)
        self.release()
        return part

    def gradient(self, step: int) -> None:
        self.replica.gradient.zero_()
        with self.record.span("communicate"):
            self.stage.equalise_copies()
        self._step, self._most = step, self._in_flight
        self._losses: Any = 0.0
        left, self._sending = self._sending, []
        do = {"F": self._forward_pass, "B": self._backward_pass, "W": self._weight_pass}
        for action, following in self._of_step(step):
            self._listen(action)
            self._listen(following if self._looks_ahead else None)
            do[action.kind](action)
        with self.record.span("communicate"):
            self.stage.add_up_tied()
        # Without a flush, the receiver needs these messages only in a later step.
        if self.traits.has_flush or step == self.task.experiment.steps - 1:
            left += self._sending
        with self.record.span("send"):
            wait_all(left)
        self._looks_ahead = True
        samples = sum(len(y) for _, y in self._batches.pop(step))
        loss = self._losses / samples if samples else self._losses
        if self.task.experiment.sync.needs_loss_everywhere:
            loss = self.stage.mp_group.broadcast(float(loss), root=self.stage.speaker)
        self._report(loss, samples)

    def resume(self, step: int) -> None:
        """Repeat the forward passes of the batches in flight, with the weights that these passes used."""
        for micro in self.stash.resume() if self.stash else ():
            action = Action("F", micro, 0)
            self._listen(action)
            self._forward_pass(action)

    def _of_step(self, step: int) -> Iterator[tuple[Action, Action | None]]:
        """Yield a step's actions, each with its successor."""
        # With a flush all steps share one list of actions, and its last action has no successor.
        actions = self.steps[step % len(self.steps)]
        return zip(actions, [*actions[1:], *(each[0] for each in self.steps[step + 1 : step + 2]), None])

    def _forward_pass(self, action: Action) -> None:
        chunk, micro = self.chunks[action.chunk], action.micro
        x, y = self._samples(action)
        if not chunk.is_first:
            x = self._came(action)
        if self.stash:
            self.stash.keep(micro)
        with self._weights_of(micro), self._pass("forward", micro, action.chunk):
            output = chunk.forward(micro, x, y)
        if chunk.is_last:
            self._losses += output.detach() * len(y)
        else:
            self.send(action, output)
        self._in_flight += 1
        self._most = max(self._most, self._in_flight)

    def _backward_pass(self, action: Action) -> None:
        chunk, micro = self.chunks[action.chunk], action.micro
        if chunk.recompute:
            with self._weights_of(micro), self._pass("recompute", micro, action.chunk):
                chunk.again(micro)
        share = self.task.share(len(self._samples(action)[1]))
        whole = torch.full((), share, dtype=self.stage.dtype, device=self.comm.device)
        gradient = whole if chunk.is_last else self._came(action)
        with self._weights_of(micro), self._pass("backward", micro, action.chunk):
            result = chunk.backward(micro, gradient)
        if not chunk.is_first:
            self.send(action, result)
        if self.stash:
            self._staleness = self.stash.let_go(micro)
            self.stash.version += 1
        self._in_flight -= not self.traits.has_weight_pass

    def _weight_pass(self, action: Action) -> None:
        with self._pass("weight", action.micro, action.chunk):
            self.chunks[action.chunk].weight(action.micro, len(self._samples(action)[1]))
        self._in_flight -= 1

    # ---- messages -----------------------------------------------------------------------

    def _listen(self, action: Action | None) -> None:
        """Post the receive of an action's message if the action needs one."""
        if action is None or action in self._coming:
            return
        boundary = self.chunks[action.chunk].takes[action.kind]
        if boundary is None:
            return
        room = self.comm.empty((len(self._samples(action)[1]), *boundary), self.task.activation_dtype)
        group, source, tag = self.stage.channel(action.kind, -DIRECTION[action.kind], self._tag(action))
        self._coming[action] = group.irecv(room, source, tag), room

    def _came(self, action: Action) -> Tensor:
        """Wait for the message that an action needs."""
        request, room = self._coming.pop(action)
        with self.record.span("receive", action.micro, action.chunk):
            request.wait()
        return room

    def send(self, action: Action, result: Tensor) -> None:
        """Start sending a pass's result: forward to the next part, or backward to the previous part."""
        step, stage = DIRECTION[action.kind], self.stage
        # A result already has this shape and type, except in a world that computes no values. There it is a
        # single number.
        shape = (len(self._samples(action)[1]), *self.chunks[action.chunk].gives[action.kind])
        message = result.detach().expand(shape).to(self.task.activation_dtype)
        # The last stage sends to the first, which holds the next chunk.
        tag = self._tag(action._replace(chunk=action.chunk + (stage.number + step) // stage.stages))
        group, dest, tag = stage.channel(action.kind, step, tag)
        self._sending.append(group.isend(message, dest, tag))

    def _tag(self, action: Action) -> int:
        """Return the tag of an action's message, at least 1.

        No two messages under way have the same tag.
        """
        return 1 + 2 * (action.micro * len(self.chunks) + action.chunk) + (action.kind == "B")

    # ---- the samples, weights and loss of a step --------------------------------------------

    def _samples(self, action: Action) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a micro-batch. Without a flush it is a whole batch."""
        flush = self.traits.has_flush
        step = self._step if flush else action.micro
        if step not in self._batches:
            self._batches[step] = self.task.microbatches(step, self.microbatches if flush else 1)
        return self._batches[step][action.micro if flush else 0]

    def _weights_of(self, micro: int) -> AbstractContextManager:
        return self.stash.used(micro) if self.stash else nullcontext()

    def facts(self) -> dict[str, Any]:
        """Return ``in_flight``, the maximum number of micro-batches of chunks whose activations the stage held.

        Without a flush, also return ``staleness`` and ``versions``. ``staleness`` counts the updates between
        the forward and the backward pass of the batch. ``versions`` counts the weight versions, including the
        current one.
        """
        stale = {"staleness": self._staleness, "versions": self.stash.versions} if self.stash else {}
        return {"in_flight": self._most, **stale}

    def whole(self) -> nn.Module | None:
        return self.comm.compute(self.stage.whole)

    def release(self) -> None:
        if self.comm.world.computes:  # otherwise all ranks share one outline
            release(self.task.model, self.stage.layers)


class Stage:
    """Stage of a pipeline, seen from one of its ranks. Its creation is collective over the workers.

    Parameters
    ----------
    task : Task
        Its model is cut into P × C parts for P stages with C chunks each. Stage s holds parts s, s + P, ….
    pause : callable
        The context in which a pass stops for messages between the ranks of a stage.

    Attributes
    ----------
    number, stages : int
        Number of this stage, 0-based, and the number of all stages.
    pp_group : Comm
        Pipeline-parallel group: the ranks of this replica with the same piece of every layer, by stage.
    tp_group : Comm or None
        Tensor-parallel group: the ranks of this stage; None if the stage is one rank.
    mp_group : Comm
        All ranks of this replica.
    parts : list of ModelPart
        All parts of the whole model.
    chunks : list of Chunk
        Chunks, in the order in which a micro-batch passes through them.
    layers : nn.Sequential
        Layers of all chunks.
    speaker : int
        The rank in mp_group that reports the loss: the first rank of the last stage.
    """

    def __init__(self, task: Task, pause: Pause) -> None:
        self.task, mesh, self.mp_group = task, task.place.mesh, task.place.mp_group
        self.number, self.stages = mesh.at["pipeline"], mesh.sizes["pipeline"]
        self.pp_group = mesh.group("pipeline")
        self.tp_group = mesh.group("tensor") if mesh.sizes.get("tensor", 1) > 1 else None
        self.dtype = next(iter(task.model.parameters())).dtype
        self.parts = partition(task)
        whole = [task.model[self.parts[part].layers] for part in self._of(self.number)]
        weights_wait, held = task.experiment.split.traits.has_weight_pass, whole
        if self.tp_group:
            group = TensorGroup(self.tp_group, pause, weights_wait)
            held = [cut_layers(layers, group) for layers in whole]
        self.layers = reduce(add, held)
        later = task.comm.compute(lambda: Later(self.layers, task.memory)) if weights_wait else None
        self.chunks = [Chunk(self, part, own, later) for part, own in zip(self._of(self.number), held)]
        self._tied = self._find_tied(reduce(add, whole))
        can = task.comm.world.native and task.experiment.split.traits.in_order and self.stages > 1
        self.lanes = self._open_lanes() if can else {}
        self.speaker = (self.stages - 1) * mesh.sizes.get("tensor", 1)

    def _of(self, stage: int) -> range:
        """List the numbers of the parts that a stage holds."""
        return range(stage, len(self.parts), self.stages)

    def _open_lanes(self) -> dict[tuple[str, int], Comm]:
        """Form a group of two stages for each kind of message across each boundary. Collective.

        Boundary b is between stages b and b + 1.  NCCL has no tags, and a message waits for earlier messages of
        its group.  So a lane carries messages of one direction, in order.
        """
        lanes, last, wraps = {}, self.stages - 1, self.task.experiment.split.traits.has_chunks
        for kind, turn in product(DIRECTION, range(2 + wraps)):
            # Boundaries of one turn have no stage in common.
            beside = [b for b in (self.number - 1, self.number) if (2 if b in (-1, last) else b % 2) == turn]
            boundary = beside[0] % self.stages if beside else -1
            lane = lanes[kind, boundary] = self.pp_group.split(boundary + 1)
            if beside:  # the first message of a lane blocks the host until both ends take part
                lane.sendrecv(lane.empty(1), 1 - lane.rank, lane.empty(1), 1 - lane.rank)
        self.pp_group.traffic.take()  # these messages belong to no step
        return lanes

    def channel(self, kind: str, step: int, tag: int) -> tuple[Comm, int, int]:
        """Return group, rank and tag for a message to or from the stage at distance `step`, 1 or -1."""
        lane = self.lanes.get((kind, (self.number - (step < 0)) % self.stages))
        return (lane, 1 - lane.rank, 0) if lane else (self.pp_group, (self.number + step) % self.stages, tag)

    def _find_tied(self, whole: nn.Module) -> list[tuple[int, Any]]:
        """List the parameters that this rank shares with another stage, each with that stage."""
        holders: dict[nn.Parameter, set[int]] = defaultdict(set)
        for number, part in enumerate(self.parts):
            for parameter in self.task.model[part.layers].parameters():
                holders[parameter].add(number % self.stages)
        pairs = zip(whole.parameters(), self.layers.parameters())
        return [(stage, own) for of_model, own in pairs for stage in holders[of_model] - {self.number}]

    def equalise_copies(self) -> None:
        """Make all copies of a weight equal if replicas run asynchronously.

        Copies drift apart, because servers update parts in different orders.

        Ranks of a stage have copies of the weights that are not cut.  The last stage has a copy of the first
        stage's tied weight.
        """
        if not self.task.experiment.sync.runs_free:
            return
        if self.tp_group:
            level(self.layers, self.tp_group)
        comm = self.task.comm
        for stage, parameter in self._tied:
            copy, both = comm.empty(parameter.shape, self.dtype), sorted([self.number, stage])
            comm.compute(partial(copy.copy_, parameter.detach()))
            star_broadcast(self.pp_group, copy.view(-1), both[0], both)
            comm.compute(partial(Tensor.copy_, parameter.detach(), copy))

    def add_up_tied(self) -> None:
        """Sum the gradients of tied weights over the two stages that hold them."""
        comm = self.task.comm
        for stage, parameter in self._tied:
            mine, theirs = (comm.empty(parameter.shape, self.dtype) for _ in range(2))
            comm.compute(partial(mine.copy_, parameter.grad))
            self.pp_group.sendrecv(mine, stage, theirs, stage, 0)  # no micro-batch has tag 0
            comm.compute(partial(Tensor.add_, parameter.grad, theirs), cost=parameter.numel())

    def whole(self) -> nn.Module | None:
        """Assemble the model on the replica's first rank.

        Collective over the replica's ranks. Traffic is not counted.
        """
        own: list[Tensor] | None = [parameter.detach().cpu() for parameter in self.layers.parameters()]
        if self.tp_group:
            own = joined(self.layers, self.tp_group)
        stages = None if own is None else self.pp_group.gather(own)
        if stages is None:
            return None
        here = {id(parameter) for parameter in self.layers.parameters()}
        for stage in reversed(range(self.stages)):  # the first stage decides tied weights
            layers = reduce(add, [self.task.model[self.parts[part].layers] for part in self._of(stage)])
            for parameter, values in zip(layers.parameters(), stages[stage]):
                if id(parameter) not in here:
                    parameter.data = values.to(parameter.device, copy=True)
        return self.task.model.to(self.task.comm.device)


class Chunk:
    """Consecutive layers of a stage.

    Parameters
    ----------
    stage : Stage
        The stage that holds the layers.
    part : int
        Number of this part of the model.
    layers : nn.Sequential
        This rank's piece of the layers, in the order of computation.
    later : Later, optional
        Delays the gradients of weights until a separate pass.

    Attributes
    ----------
    is_first, is_last : bool
        Whether the chunk has the model's first or last layers.
    takes, gives : dict of str to tuple of int
        Shapes, per sample, of the message that each kind of pass takes and of the message that it gives.
        Without a message, the shapes are None and empty.
    """

    def __init__(self, stage: Stage, part: int, layers: nn.Module, later: Any = None) -> None:
        self.task, self.layers, self.later = stage.task, layers, later
        self.is_first, self.is_last = part == 0, part == len(stage.parts) - 1
        self.flops = stage.parts[part].flops
        before = None if self.is_first else stage.parts[part].shape
        behind = None if self.is_last else stage.parts[part + 1].shape
        self.takes, self.gives = {"F": before, "B": behind, "W": None}, {"F": behind or (), "B": before or ()}
        self.recompute = stage.task.experiment.split.recompute
        self.charges = stage.tp_group is not None  # cut layers charge for their own computation
        # Input, targets and output of micro-batches between their forward and backward pass.
        self._held: dict[int, tuple[Tensor, Tensor, Any]] = {}

    def forward(self, micro: int, x: Tensor, y: Tensor) -> Tensor:
        """Compute the output for `x`, or the mean loss in the last chunk.

        Keep activations for later passes.
        """
        output = self._compute(partial(self._through, x, y, not self.recompute), len(y) / 3)
        if self.recompute:
            self.task.memory.hold("activations", x)
        self._held[micro] = x, y, None if self.recompute else output
        return output

    def again(self, micro: int) -> None:
        """Recompute dropped activations from the input."""
        x, y, _ = self._held[micro]
        self._held[micro] = x, y, self._compute(partial(self._through, x, y), len(y) / 3)

    def backward(self, micro: int, gradient: Tensor) -> Any:
        """Compute the input's gradient from the output's.

        Add to the weights' gradients unless these are delayed.
        """
        x, y, output = self._held.pop(micro)

        def work() -> Tensor | None:
            if self.later:
                self.later.begin(micro)
            backward(output, gradient)
            return x.grad

        result = self._compute(work, len(y) * (1 if self.later else 2) / 3)
        if self.recompute:
            self.task.memory.drop(x)
        return result

    def weight(self, micro: int, samples: int) -> None:
        """Compute the weight gradients that the backward pass delayed, and add them to ``grad``."""
        cost = self.later.flops(micro) if self.charges else self.flops * samples / 3
        self.task.comm.compute(lambda: self.later.end(micro), cost=cost)

    def _through(self, x: Tensor, y: Tensor, keep: bool = True) -> Tensor:
        """Compute the output. Keep activations for a backward pass, or drop them."""
        if not self.is_first:
            x.requires_grad_()
        with torch.set_grad_enabled(keep), self.task.forward_pass():
            output = self.layers(x)
            return self.task.criterion(output, y) if self.is_last else narrowed(output)

    def _compute(self, work: Callable[[], Any], share: float) -> Any:
        """Execute `work` at the cost of `share` samples."""
        return work() if self.charges else self.task.comm.compute(work, cost=self.flops * share)


WAITING = (nn.Linear, nn.Conv2d, nn.Embedding, Tied)
"""Types of layers whose weight gradients can be delayed."""


class Later:
    """Backward passes in two parts for zero-bubble schedules. The second part computes weight gradients.

    A layer's backward pass has two products.  The previous stage waits for the gradient of the input. No
    stage waits for the gradient of the weight (Qi et al., arXiv 2401.10241, section 1).  If a whole stage
    called autograd twice, it would repeat the work between layers.  So each layer has its own graph, which is
    walked twice.  Normalisation and positions stay in the stage's graph, because their gradients are sums,
    not products.

    Parameters
    ----------
    layers : nn.Module
        Changed in place: its linear layers, convolutions, embeddings and tied outputs now delay gradients of
        weights.
    memory : Memory
        Counts the gradients that are kept.
    """

    def __init__(self, layers: nn.Module, memory: Memory) -> None:
        self.memory = memory
        # For each layer: its output with the graph, and the gradient of the output.
        self._waiting: dict[int, list[tuple[Any, Tensor, Tensor]]] = {}
        for layer in layers.modules():
            if type(layer) in WAITING:
                layer.forward = partial(self._forward, layer)

    def _forward(self, layer: Any, x: Tensor) -> Tensor:
        """Compute a layer so that its backward pass gives only the gradient of its input."""
        compute, x = partial(type(layer).forward, layer), narrowed(x)
        if not torch.is_grad_enabled():
            return compute(x)
        given = x.detach().requires_grad_(x.requires_grad)
        output = compute(given)

        def of_input(gradient: Tensor) -> Tensor | None:
            self.memory.hold("activations", gradient)
            self._now.append((layer, output, gradient))
            return derivative(output, given, gradient) if given.requires_grad else None

        return pair(x, lambda x: output.detach(), of_input, layer.weight)

    def begin(self, micro: int) -> None:
        """Begin the backward pass of a micro-batch."""
        self._now = self._waiting[micro] = []

    def flops(self, micro: int) -> int:
        """Count the delayed FLOPs of a micro-batch, two per multiply-add.

        An embedding's gradient needs none.
        """
        products = [(layer, y) for layer, _, y in self._waiting[micro] if not isinstance(layer, nn.Embedding)]
        return sum(2 * gradient.numel() * layer.weight.shape[1:].numel() for layer, gradient in products)

    def end(self, micro: int) -> None:
        """Add the delayed gradients of a micro-batch."""
        for layer, output, gradient in self._waiting.pop(micro):
            backward(output, gradient, tuple(layer.parameters()))
            self.memory.drop(gradient)


class WeightStash:
    """Earlier versions of one stage's weights.

    Parameters
    ----------
    replica : Replica
        The owner of the weights, which are updated in place.
    memory : Memory
        Counts the versions that are kept.

    Attributes
    ----------
    version : int
        Version of the current weights: the number of updates made.
    """

    kept = ("version", "_version_of", "_kept")

    def __init__(self, replica: Replica, memory: Memory) -> None:
        self.replica, self.memory, self.version = replica, memory, 0
        self._version_of: dict[int, int] = {}  # version of each micro-batch in flight
        self._kept: dict[int, Tensor] = {}

    @property
    def versions(self) -> int:
        """Return the number of weight versions held, including the current one."""
        return len({self.version, *self._kept})

    def keep(self, micro: int) -> None:
        """Keep the current weights for a micro-batch. Each version has one copy."""
        if micro in self._version_of:  # its forward pass is repeated
            return
        self._version_of[micro] = self.version
        if self.version not in self._kept:  # a copy, because the weights are updated in place
            self._kept[self.version] = self.replica.weights.clone()
            self.memory.hold("weights", self._kept[self.version])

    def resume(self) -> list[int]:
        """Restore the stashed weights of the micro-batches in flight, and return these micro-batches in order."""
        for weights in self._kept.values():
            self.memory.hold("weights", weights)
        return sorted(self._version_of)

    def let_go(self, micro: int) -> int:
        """Drop a finished micro-batch. Return the number of updates since its forward pass."""
        version = self._version_of.pop(micro)
        if version not in self._version_of.values():
            self.memory.drop(self._kept.pop(version))
        return self.version - version

    @contextmanager
    def used(self, micro: int) -> Iterator[None]:
        """Return a context in which passes use the weights of a micro-batch."""
        present = self.replica.weights
        self.replica.look_at(self._kept[self._version_of[micro]])
        try:
            yield
        finally:
            self.replica.look_at(present)
