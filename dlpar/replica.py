"""Replica of a model for data parallelism, with flat vectors of weights and gradients.

All weights are views into one flat vector, and all gradients are views into another. So replicas agree with a
few large messages instead of one for each layer (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.sync.optim import Optimizer


class Replica:
    """One rank's flat copy of the model.

    Each step begins with :meth:`begin`, and ends with :meth:`collect` or :meth:`descend`. An optimizer's
    ``zero_grad()`` would separate the gradients from the flat vector.

    A replica that sends its gradient after the backward pass exposes the whole message:

    >>> replica.begin()
    >>> loss.backward()
    >>> replica.collect()
    >>> ring_allreduce(comm, replica.gradient)

    With buckets, messages overlap the backward pass (:meth:`when_ready`), and only the last one may be
    exposed:

    >>> replica.cut(bucket_bytes=1e6)
    >>> replica.when_ready(lambda bucket: under_way.append(comm.start(ring_allreduce, replica.buckets[bucket])))
    >>> replica.begin()
    >>> loss.backward()
    >>> for request in under_way:
    ...     request.wait()

    Parameters
    ----------
    model : nn.Module
        Its parameters become views into the flat vectors, with the same shapes. At least one is trained, and all that
        are have one floating type. With buckets, each step uses all of them.
    comm : Comm, optional
        Its device holds the vectors; default: the CPU of a single process.
    agree : callable, optional
        Makes the ranks of one replica take the same decision; default: this rank is the whole replica.

    Attributes
    ----------
    weights, gradient : Tensor, shape (parameters,)
        In reverse order of registration: roughly the order in which the
        backward pass finishes gradients.
    buckets : list of Tensor
        Contiguous pieces of `gradient`, in its order. Before :meth:`cut`, there is only one.
    marks : list of (float, callable)
        For :meth:`World.backward`: the share of the backward pass that finishes each bucket, and the call
        that announces it.
    loss, samples : float or Tensor of shape (), int
        Mean loss and number of samples of this step's share of the batch.
    inside : callable
        Makes a call during the backward pass, as :meth:`World.inside` does.
    last : bool
        Whether the next backward pass is the gradient's last.  Only the last one finishes buckets.
    """

    kept = ("weights", "buffers")
    collects: bool | None = None
    """Whether backward passes leave gradients in separate tensors, which one kernel then copies into
    `gradient`.  Default: on a GPU, where every kernel costs a launch."""

    def __init__(
        self, model: nn.Module, comm: Comm | None = None, agree: Callable[[Any], Any] = lambda own: own
    ) -> None:
        self.agree, self.model, self.last = agree, model, True
        self.loss: Any = 0.0
        self.samples: float = 0
        empty, self.inside = (comm.empty, comm.world.inside) if comm else (torch.empty, lambda call: call())
        self._compute = comm.compute if comm else lambda work: work()
        self.marks: list[tuple[float, Callable[[], None]]] = []
        self._parameters = parameters = [p for p in reversed(list(model.parameters())) if p.requires_grad]
        types = {p.dtype for p in parameters}
        if len(types) != 1 or not parameters[0].is_floating_point():
            got = ", ".join(sorted(map(str, types))) or "none"
            raise ValueError(f"model: got trained parameters of {got}, allowed is one floating type")
        (dtype,) = types
        sizes = [p.numel() for p in parameters]
        on_gpu = comm is not None and comm.device.type == "cuda"
        shift = aligned(sizes, dtype.itemsize) if on_gpu else 0
        vector = lambda: empty(shift + sum(sizes), dtype=dtype)[shift:]
        self.weights, self.gradient = vector(), vector().zero_()
        self.collects = on_gpu if self.collects is None else self.collects
        self._compute(self._move_in)
        self.cut(float("inf"))

    @property
    def buffers(self) -> list[torch.Tensor]:
        """Tensors of the model that are not weights, such as statistics of batch normalisation."""
        return list(self.model.buffers())

    def _move_in(self) -> None:
        self._gradients = self._views(self.gradient)
        views = zip(self._parameters, self._views(self.weights), self._gradients)
        for parameter, weight, gradient in views:
            weight.copy_(parameter.detach())
            parameter.data, parameter.grad = weight, gradient

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Cut a flat vector into views that have the parameters' shapes."""
        pieces = flat.split([parameter.numel() for parameter in self._parameters])
        return [piece.view_as(parameter) for piece, parameter in zip(pieces, self._parameters)]

    def cut(self, bucket_bytes: float, apart: Sequence[nn.Module] = ()) -> None:
        """Cut the gradient into buckets of at most `bucket_bytes`.

        A larger parameter has its own bucket. Each layer in `apart` also has its own buckets.
        """
        own = {parameter: n for n, layer in enumerate(apart) for parameter in layer.parameters()}
        self._bucket_of: dict[nn.Parameter, int] = {}
        self.buckets: list[torch.Tensor] = []
        offset = start = 0
        layer = None
        for parameter in self._parameters:
            end, before, layer = offset + parameter.numel(), layer, own.get(parameter)
            is_full = layer is None and (end - start) * parameter.element_size() > bucket_bytes
            if offset > start and (is_full or layer != before):
                self.buckets.append(self.gradient[start:offset])
                start = offset
            self._bucket_of[parameter] = len(self.buckets)
            offset = end
        self.buckets.append(self.gradient[start:offset])

    def bucket_of(self, layer: nn.Module) -> int:
        """Return the number of the bucket that holds a layer's weight."""
        return self._bucket_of[layer.weight]

    def move_to(self, weights: torch.Tensor, copy: bool = True) -> None:
        """Keep the weights in `weights` from now on.

        `weights` is a tensor of the same shape and type, perhaps in shared memory. Without `copy`, it already
        holds the values.
        """
        if copy:
            weights.copy_(self.weights)
        self.weights = weights
        self.look_at(weights)

    def look_at(self, weights: torch.Tensor) -> None:
        """Let the model use these weights, without a copy, until the next call. Shape and type are the same."""
        self._compute(lambda: self._look_at(weights))

    def _look_at(self, weights: torch.Tensor) -> None:
        for parameter, weight in zip(self._parameters, self._views(weights)):
            parameter.data = weight

    def begin(self) -> None:
        """Prepare the gradient for the backward passes of a step. :meth:`collect` or :meth:`descend` ends it."""
        if not self.collects:
            self.gradient.zero_()
            return
        for parameter in self._parameters:
            parameter.grad = None

    def collect(self) -> None:
        """Write the gradients of a step's backward passes to `gradient`, unless they are already there."""
        if self.collects:
            torch.cat([gradient.flatten() for gradient in self._collected()], out=self.gradient)

    def descend(self, optimizer: Optimizer) -> None:
        """Update the weights with the gradients of a step's backward passes, as :meth:`collect` and the rule do.

        Plain SGD takes the gradients of a replica that collects from where they are, which saves their copy.
        """
        if optimizer.rule != "sgd" or not self.collects:
            self.collect()
            optimizer.step(self.gradient)
            return
        # A kernel over many tensors takes long pieces of each, so a small network would use few of a GPU's
        # multiprocessors.  More than 64 pieces take several launches.
        size = max(4096, len(self.weights) // 48 // 1024 * 1024)
        pieces = lambda tensors: [piece for tensor in tensors for piece in tensor.flatten().split(size)]
        torch._foreach_add_(pieces(self._views(self.weights)), pieces(self._collected()), alpha=-optimizer.lr)

    def _collected(self) -> list[torch.Tensor]:
        """Return the gradients of a step's backward passes: zeros for a layer that was not used."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        for view, parameter in zip(self._gradients, self._parameters):
            parameter.grad = view
        return found

    def when_ready(self, call: Callable[[int], None]) -> None:
        """Call a function with each bucket's number as soon as the backward pass has finished the bucket.

        The order of calls is the same on every rank, even if a gradient is finished out of order.
        """
        self.collects = False  # a finished bucket is sent at once
        members = [list(self._bucket_of.values()).count(b) for b in range(len(self.buckets))]
        missing, announced = list(members), [0]
        self.marks = [(share, partial(call, bucket)) for bucket, share in enumerate(self._shares())]

        def finished(parameter: nn.Parameter) -> None:
            if not self.last:
                return
            missing[self._bucket_of[parameter]] -= 1
            while announced[0] < len(members) and missing[announced[0]] == 0:
                self.inside(partial(call, announced[0]))
                announced[0] += 1
            if announced[0] == len(members):
                missing[:], announced[0] = members, 0

        self._compute(lambda: [p.register_post_accumulate_grad_hook(finished) for p in self._bucket_of])

    def _shares(self) -> list[float]:
        """Return the share of the backward pass that finishes each bucket.

        FLOPs of parameters give the shares.
        """
        flops = [0.0] * len(self.buckets)
        for parameter in self._parameters:
            flops[self._bucket_of[parameter]] += getattr(parameter, "flops", 0.0)
        total = sum(flops) or 1.0
        return [done / total for done in accumulate(flops)]


def aligned(sizes: Sequence[int], element_size: int) -> int:
    """Return the offset of a flat vector, in elements, that puts most of its elements in aligned views.

    Views of `sizes` elements follow one another.  Memory begins at a multiple of 256 bytes, the most for which
    cuBLAS has a product of its own.  The products of a weight that does not begin at a multiple of 16 bytes are
    up to three times slower.

    >>> aligned([10, 640, 64, 4096], 4)  # the last layer's bias comes first
    54
    """
    lane = max(1, 256 // element_size)
    starts = [0, *accumulate(sizes)]
    fits = lambda shift: sum(n for n, start in zip(sizes, starts) if (start + shift) % lane == 0)
    return max(range(lane), key=fits)
