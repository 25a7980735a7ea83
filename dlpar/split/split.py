"""Base class for splits.

A split defines how the ranks of one replica compute its gradient together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dlpar import models
from dlpar.comm import Comm, Recorder
from dlpar.config.experiment import Experiment
from dlpar.data import Dataset
from dlpar.data.sampler import Sampler
from dlpar.memory import WATCHED, Memory
from dlpar.replica import Replica
from dlpar.split.mesh import Place


@dataclass
class Task:
    """Task of one rank: an experiment, the rank's place, the model and the samples.

    Attributes
    ----------
    experiment : Experiment
        The settings.
    comm : Comm
        All ranks.
    place : Place
        This rank's place among them.
    model : nn.Sequential
        The whole model. Every rank has built the same model.
    dataset : Dataset
        All samples.
    sampler : Sampler
        Chooses the samples of each replica in each step.
    record : Recorder
        Records spans and steps.
    criterion : callable
        Function from ``(output, target)`` to the mean loss over samples.
    flops : float
        Floating-point operations of a sample's forward and backward pass through the whole model.
    memory : Memory
        Counts what this rank holds.
    activation_dtype : torch.dtype
        The type in which the ranks of a replica send each other activations and their gradients.
    """

    experiment: Experiment
    comm: Comm
    place: Place
    model: nn.Sequential
    dataset: Dataset
    sampler: Sampler
    record: Recorder

    def __post_init__(self) -> None:
        self.global_batch = self.experiment.global_batch
        self.criterion = models.loss(self.dataset.task)
        self.flops = models.flops_per_sample(self.model, self.dataset)
        self.memory = Memory(self.comm.now, counts=self.comm.world.computes)
        is_full = self.experiment.precision != "bf16"
        self.activation_dtype = getattr(torch, self.experiment.dtype) if is_full else torch.bfloat16

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the replica's samples of a step, ``(x, y)``. Steps may be requested in any order."""
        return self.dataset.batch(self.sampler.indices(step, self.place.replica))

    def microbatches(self, step: int, number: int) -> list[tuple[Tensor, Tensor]]:
        """Cut the replica's samples of a step into micro-batches. The first ones may be larger by one."""
        x, y = self.batch(step)
        return [(x, y)] if number == 1 else list(zip(x.tensor_split(number), y.tensor_split(number)))

    def forward_pass(self, casts: bool = True) -> AbstractContextManager:
        """Return the context of a forward pass. Mixed precision computes its products in bfloat16."""
        if self.experiment.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.comm.device.type, torch.bfloat16, enabled=casts)

    def casts_kept(self) -> AbstractContextManager:
        """Return a context whose forward passes share their weights' casts to bfloat16.

        The weights must not change.
        """
        return self.forward_pass(casts=False)  # the outermost context clears the casts

    def share(self, samples: int) -> float:
        """Return the weight of samples in the mean over the global batch: samples / global_batch."""
        return samples / self.global_batch


class Split:
    """Base class of splits, in which one rank computes a replica. Other splits override some of the methods.

    Parameters
    ----------
    task : Task
        The work of this rank.

    Attributes
    ----------
    replica : Replica
        The weights this rank holds, and their gradient.
    speaks : bool
        Whether this rank reports the replica's loss. One rank of each replica does.
    flops : float
        Floating-point operations of a sample's forward and backward pass, if this rank charges for whole
        passes.
    loss, samples : float, Tensor of shape () or None, int
        Loss and samples of the replica's latest step; None and 0 on ranks that do not report.  A tensor is on
        the rank's device, and reading its value waits for the GPU.
    rest : callable or None
        What the scheme does after the passes, if this rank needs no other for it: :meth:`Scheme.rest`.
    updated : bool
        Whether :meth:`gradient` has also done the rest of the latest step.
    whole_on_all : bool
        Whether the ranks of all replicas must call :meth:`whole`, instead of only the first replica's ranks.
    """

    speaks = True
    whole_on_all = False
    rest: Callable[[], None] | None = None
    updated = False
    kept: tuple[str, ...] = ("replica",)

    def __init__(self, task: Task) -> None:
        self.task, self.comm, self.record, self.flops = task, task.comm, task.record, task.flops
        self.microbatches = getattr(task.experiment.split, "microbatches", 1)
        self.loss: Tensor | float | None = None
        self.samples = 0
        self.replica = Replica(self.cut(task.model), task.comm, task.place.agree)
        e, is_alone = task.experiment, type(self) is Split and task.experiment.model.norm != "sync_batch"
        # A replay repeats kernels of one size, and calls none of the hooks that factors need.
        is_even = self.microbatches == 1 and getattr(e.sync, "fraction", 1.0) == 1.0
        is_static = is_even and not getattr(e.sync, "factors", False)
        self.graphs = StepGraphs(self) if is_alone and is_static and e.cluster.graphs else None

    def cut(self, model: nn.Sequential) -> nn.Module:
        """Return this rank's part of the model, on its device. Collective over the ranks of the replica."""
        return moved(model, self.comm.device)

    def gradient(self, step: int) -> None:
        """Compute ``replica.gradient`` for the replica's samples of a step.

        This is the samples' contribution to the gradient of the global batch's mean loss.  The sum over
        replicas is the whole gradient.
        """
        # Naive form, with the whole share of the batch at once:
        #
        #     x, y = task.batch(step)
        #     loss = criterion(model(x), y)
        #     (loss * task.share(len(y))).backward()
        #
        # Here micro-batches accumulate, and a world may charge for the passes instead of timing them.
        task, replica = self.task, self.replica
        if self.graphs and replica.collects and self.graphs.replay(step):
            return
        pieces = task.microbatches(step, self.microbatches)
        losses, counts = [], [len(y) for _, y in pieces]
        replica.begin()
        with task.casts_kept():
            for micro, ((x, y), samples) in enumerate(zip(pieces, counts)):
                replica.last = micro == len(pieces) - 1  # its backward pass completes the gradient
                with self._pass("forward"):
                    loss = self._forward(x, y)
                with self._pass("backward"):
                    self._backward(loss, samples)
                losses.append(loss.detach())
        replica.collect()
        self._report(mean(losses, counts), sum(counts))

    def _forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the mean loss of a micro-batch."""
        return self.comm.compute(partial(self._loss, x, y), cost=self.flops * len(y) / 3)

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        with self.task.forward_pass():
            return self.task.criterion(self.replica.model(x), y)

    def _backward(self, loss: Tensor, samples: int) -> None:
        """Add the gradient of a micro-batch."""
        work = partial(propagate, loss, self.task.share(samples))
        marks = self.replica.marks if self.replica.last else ()
        self.comm.world.backward(self.comm, work, cost=self.flops * samples * 2 / 3, marks=marks)

    def _report(self, loss: Tensor | float, samples: int) -> None:
        """Store loss and samples of the step.

        The scheme reads them on every rank, and the record on one rank.
        """
        self.replica.loss, self.replica.samples = loss, samples
        if self.speaks:
            self.loss, self.samples = loss, samples

    def _pass(self, name: str, *micro_and_chunk: int) -> AbstractContextManager:
        """Time a pass. :meth:`pause` may interrupt the pass."""
        self._of, self._computing = micro_and_chunk, self.record.span(name, *micro_and_chunk)
        return self._computing

    @contextmanager
    def pause(self, name: str = "communicate") -> Iterator[None]:
        """Interrupt the current pass for messages between the ranks of a layer."""
        self._computing.__exit__(None, None, None)
        with self.record.span(name, *self._of):
            yield
        self._computing.__enter__()

    def resume(self, step: int) -> None:
        """Prepare for step `step` of a resumed run, after the saved state has been restored."""

    def facts(self) -> dict[str, Any]:
        """Return further facts about the latest step for its record."""
        return {}

    def whole(self) -> nn.Module | None:
        """Assemble the model with its current weights. Collective over the replica's ranks.

        Returns
        -------
        nn.Module or None
            The model on the replica's first rank, None on the others.
        """
        return self.task.model

    def release(self) -> None:
        """Free the memory that only :meth:`whole` needed."""


class StepGraphs:
    """CUDA graphs of a replica's steps: one launch replays the kernels of a pass, or of the whole step.

    The host's launches take longer than the kernels of a small model.  A worker that needs no other has one
    graph for the passes and the update (:meth:`Scheme.rest`), others have one for each pass.  All tensors stay
    in place, so the loss of a step is overwritten by the next.  Source: NVIDIA, CUDA C++ Programming Guide,
    section CUDA Graphs.
    """

    def __init__(self, split: Split) -> None:
        # Graphs by the span that times their replay.
        self.split, self.steps, self.graphs = split, 0, dict[str, torch.cuda.CUDAGraph]()

    def replay(self, step: int) -> bool:
        """Replay a step. Return False for the first steps."""
        split, task = self.split, self.split.task
        samples = task.sampler.indices(step, task.place.replica)
        if self.steps == WATCHED:
            self.capture(samples)
        self.steps += 1
        if self.steps <= WATCHED:
            return False
        self.samples.copy_(samples)
        for name, graph in self.graphs.items():
            with split._pass(name):
                graph.replay()
        split.updated = split.rest is not None
        split._report(self.loss, len(samples))
        return True

    def capture(self, samples: Tensor) -> None:
        """Write down the kernels of a step, without computing them."""
        split, task, replica = self.split, self.split.task, self.split.replica
        pool, self.samples = torch.cuda.graph_pool_handle(), samples.clone()
        self.share = torch.full_like(split.loss, task.share(len(samples)))  # type: ignore[arg-type]

        def kernels(name: str) -> AbstractContextManager:
            self.graphs[name] = torch.cuda.CUDAGraph()
            # A strict capture would fail if NCCL's thread made a call, or if Python deleted the graphs of an
            # earlier training.
            return torch.cuda.graph(self.graphs[name], pool=pool, capture_error_mode="relaxed")

        replica.begin()
        with task.casts_kept(), ExitStack() as capture:
            capture.enter_context(kernels("whole step" if split.rest else "forward"))
            loss = split._loss(*task.dataset.batch(self.samples))
            if not split.rest:
                capture.close()
                capture.enter_context(kernels("backward"))
            backward(loss, self.share)
            (split.rest or replica.collect)()
        self.loss = loss.detach()


def moved(model: Any, device: torch.device) -> Any:
    """Move a model to a device in place. An outline has nothing to move."""
    return model.to(device) if isinstance(model, nn.Module) else model


def release(model: nn.Module, part: nn.Module | None = None) -> None:
    """Free the memory of a model's weights, except those that this rank's part shares with it."""
    kept = set() if part is None else {id(parameter) for parameter in part.parameters()}
    for parameter in model.parameters() if isinstance(model, nn.Module) else ():
        if id(parameter) not in kept:
            parameter.data = parameter.new_empty(0)


class LayerwiseSplit(Split):
    """Base class of splits that cut layers. The layers send messages within a pass and charge for their computation."""

    def _forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self._loss(x, y)

    def _backward(self, loss: Tensor, samples: int) -> None:
        propagate(loss, self.task.share(samples))


def mean(losses: list[Tensor], counts: list[int]) -> Any:
    """Return the mean loss over all samples, from each micro-batch's loss and number of samples."""
    total = sum(counts)
    if len(losses) == 1 or not total:
        return losses[0]
    return sum(loss * (count / total) for loss, count in zip(losses, counts))


# The engine is called directly. Torch's own calls check their gradient with a library for symbolic
# mathematics, which takes seconds to load in a rank's first step.
_run = torch.autograd.Variable._execution_engine.run_backward


def backward(output: Tensor, gradient: Tensor, inputs: tuple[Tensor, ...] = ()) -> None:
    """Add derivatives to ``grad`` of `inputs`, or of all leaves, like ``output.backward(gradient)``."""
    _run((output,), (gradient,), False, False, inputs, allow_unreachable=True, accumulate_grad=True)


def derivative(output: Tensor, x: Tensor, gradient: Tensor) -> Tensor:
    """Return only the gradient of `x` and keep the graph, like ``torch.autograd.grad(output, x, gradient)``."""
    return _run((output,), (gradient,), True, False, (x,), allow_unreachable=True, accumulate_grad=False)[0]


def propagate(loss: Tensor, share: float) -> None:
    """Add the gradient of `share` times a loss to the weights' gradients, like ``(loss * share).backward()``."""
    backward(loss, torch.full_like(loss, share))


def narrowed(x: Tensor) -> Tensor:
    """Convert floats to the input type of products: bfloat16 in mixed-precision forward passes."""
    kind = x.device.type  # a device that holds no values has no autocast
    casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return x.to(torch.get_autocast_dtype(kind)) if casts and x.is_floating_point() else x
