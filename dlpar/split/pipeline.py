"""A model's layers spread over ranks; micro-batches go through them as a schedule says.

Each rank walks down its own list of actions (:mod:`dlpar.split.schedules`).  Whatever
the schedule, an action is the same three things: wait for what it needs from a
neighbour, compute, start sending what the other neighbour needs.  A receive is posted
before the action in front of it computes, so that a message travels meanwhile, and a
send is waited for at the end of the step only, so that no two ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dlpar.split.precision import of_activations
from dlpar.split.schedules import SCHEDULES, Action, of_step
from dlpar.split.split import Split, Task
from dlpar.split.stage import Stage
from dlpar.split.weight_stash import WeightStash

if TYPE_CHECKING:
    from dlpar.comm import Request


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
        self.task, self.comm, self.record = task, task.comm, task.record
        self.stage = stage = Stage(task, self._pause)
        self.replica, self.chunks, self.pipe = stage.replica, stage.chunks, stage.pipe
        split = task.experiment.split
        self.schedule, self.microbatches = SCHEDULES[split.schedule], split.microbatches
        self.actions = self.schedule.actions(stage.number, stage.stages, self.microbatches, len(stage.chunks))
        self.stash = None if self.schedule.has_flush else WeightStash(self.replica, task.memory)
        self.loss, self.samples = None, 0
        self._batches: dict[int, list[tuple[Tensor, Tensor]]] = {}  # of steps under way, in micro-batches
        self._coming: dict[Action, tuple[Request, Tensor]] = {}
        self._sending: list[Request] = []
        self._in_flight = self._most = self._staleness = 0

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
        with self._weights_of(micro), self._pass("forward", action):
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
            with self._weights_of(micro), self._pass("recompute", action):
                chunk.again(micro)
        samples = len(self._samples(action)[1])
        share = self.task.share(samples)
        whole = torch.full((), share, dtype=self.stage.dtype, device=self.comm.device)
        gradient = whole if chunk.is_last else self._came(action)
        with self._weights_of(micro), self._pass("backward", action):
            result = chunk.backward(micro, gradient)
        if not chunk.is_first:
            self._send(result, action, -1)
        if self.stash:
            self._staleness = self.stash.let_go(micro)
            self.stash.version += 1
        self._in_flight -= not self.schedule.has_weight_pass

    def _weight(self, action: Action) -> None:
        with self._pass("weight", action):
            self.chunks[action.chunk].weight(action.micro, len(self._samples(action)[1]))
        self._in_flight -= 1

    def _pass(self, name: str, action: Action) -> AbstractContextManager:
        """The span in which an action computes."""
        self._passing, self._talking = (
            self.record.span(n, action.micro, action.chunk) for n in (name, "reduce")
        )
        return self._passing

    @contextmanager
    def _pause(self, during: str) -> Iterator[None]:
        """Where a layer is cut over ranks a pass stops for their messages, and goes on when these are there."""
        self._passing.__exit__(None, None, None)
        with self._talking:
            yield
        self._passing.__enter__()

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
        self._coming[action] = self.pipe.irecv(room, source, self._tag(action)), room

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
        if not isinstance(result, Tensor):  # where no numbers are computed a message has a size alone
            mine = self.chunks[action.chunk]
            shape = mine.gives if way > 0 else mine.takes
            result = self.comm.empty(
                (len(self._samples(action)[1]), *shape), of_activations(self.task.experiment)
            )
        tag = self._tag(action._replace(chunk=chunk))
        self._sending.append(self.pipe.isend(result.detach(), (number + way) % stages, tag))

    def _tag(self, action: Action) -> int:
        """Of the message an action needs, from 1: no two are under way with one."""
        return 1 + 2 * (action.micro * len(self.chunks) + action.chunk) + (action.kind == "B")

    # ---- what a step is made of -----------------------------------------------------------

    def _samples(self, action: Action) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a micro-batch, which without a flush is a whole batch."""
        flush = self.schedule.has_flush
        step = self._step if flush else action.micro
        if step not in self._batches:
            x, y = self.task.batch(step)
            pieces = self.microbatches if flush else 1
            self._batches[step] = list(zip(x.tensor_split(pieces), y.tensor_split(pieces)))
        return self._batches[step][action.micro if flush else 0]

    def _weights_of(self, micro: int) -> AbstractContextManager:
        return self.stash.used(micro) if self.stash else nullcontext()

    def _tell(self, samples: int) -> None:
        """Say what is known of the step: the loss, by the rank that knows it."""
        stage, replica = self.stage, self.replica
        loss = self._losses / samples if samples else self._losses
        self.loss, self.samples = (loss, samples) if stage.speaks else (None, 0)
        replica.samples = samples
        if self.task.experiment.sync.scheme in ("mapreduce", "own"):  # they may ask every rank for it
            loss = stage.mates.broadcast(float(loss), root=stage.speaker)
        replica.loss = loss

    def facts(self) -> dict[str, Any]:
        """``in_flight``, the most micro-batches (of a chunk each) whose activations were held in the step; without a
        flush ``staleness``, the updates between the forward and the backward pass of the batch, and ``versions`` of
        the weights, the present one included."""
        stale = {"staleness": self._staleness, "versions": self.stash.versions} if self.stash else {}
        return {"in_flight": self._most, **stale}

    def whole(self) -> nn.Module | None:
        return self.stage.whole()
