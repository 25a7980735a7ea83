"""Ghosts: tensors without data, which can be sliced and sent but use no memory.

If messages carry only sizes, buffers are ghosts. Rank code slices, counts and sends ghosts like tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from dlpar.comm.base import Packet

NO_MEMORY = torch.UntypedStorage(0)


class Ghost:
    """One-dimensional tensor without data. Arithmetic does nothing, and every single number is NaN.

    Parameters
    ----------
    n : int
        Elements.
    dtype : torch.dtype
        Their type.
    head : Tensor, int64, optional
        Actual integers sent with the ghost: the head of a :class:`GhostPacket`.
    """

    __slots__ = ("dtype", "head", "n", "nbytes")
    device = torch.device("cpu")
    requires_grad = False

    def __init__(self, n: int, dtype: torch.dtype = torch.float32, head: torch.Tensor | None = None) -> None:
        self.n, self.dtype, self.nbytes, self.head = n, dtype, n * dtype.itemsize, head

    def __repr__(self) -> str:
        return f"Ghost({self.n}, {self.dtype})"

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: Any) -> Ghost:
        if isinstance(key, slice):
            if key.start is None and key.step is None and key.stop == self.n:
                return self
            return Ghost(len(range(*key.indices(self.n))), self.dtype)
        return NUMBER

    @property
    def shape(self) -> tuple[int]:
        return (self.n,)

    numel = __len__

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def untyped_storage(self) -> torch.UntypedStorage:
        return NO_MEMORY

    def data_ptr(self) -> int:
        return id(self)

    def expand(self, *shape: Any) -> Ghost:
        return Ghost(elements(shape[0] if len(shape) == 1 else shape), self.dtype)

    new_empty = expand

    def view(self, *shape: Any) -> Ghost:
        if len(shape) == 1 and isinstance(shape[0], torch.dtype):
            return Ghost(self.nbytes // shape[0].itemsize, shape[0])
        return self

    def tensor_split(self, parts: int) -> list[Ghost]:
        share, rest = divmod(self.n, parts)
        # Equal pieces are indistinguishable.
        longer, shorter = Ghost(share + 1, self.dtype), Ghost(share, self.dtype)
        return [longer] * rest + [shorter] * (parts - rest)

    def split(self, size: int) -> list[Ghost]:
        return [self[start : start + size] for start in range(0, max(self.n, 1), size)]

    def to(self, *target: Any) -> Ghost:
        return Ghost(self.n, next((t for t in target if isinstance(t, torch.dtype)), self.dtype))

    def clone(self) -> Ghost:
        return Ghost(self.n, self.dtype)

    def tolist(self) -> list[float]:
        return []

    def item(self) -> float:
        return math.nan

    __float__ = item

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Return a ghost of the same length for ``torch.zeros_like(ghost)`` and similar calls."""
        out = (kwargs or {}).get("out")
        return out if out is not None else next(a for a in args if isinstance(a, Ghost)).clone()


def _itself(self: Ghost, *_: Any, **__: Any) -> Ghost:
    return self


for _name in (
    "zero_ copy_ add_ sub_ mul_ div_ fill_ lerp_ detach contiguous flatten reshape backward __setitem__ "
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __neg__ __iadd__ __isub__ __imul__ __itruediv__"
).split():
    setattr(Ghost, _name, _itself)

NUMBER = Ghost(1)
"""A single unknown number: the result of a skipped computation."""


class GhostPacket(Packet):
    """Packet with a real header and a ghost as its body."""

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        self.head = torch.zeros(self.HEAD, dtype=torch.int64)
        self.body: Any = Ghost(length, dtype)
        self.wire: Any = Ghost(8 * self.HEAD + self.body.nbytes, torch.uint8, self.head)


def elements(shape: Any) -> int:
    """Count the elements of a shape, given as a number or a sequence of numbers."""
    return shape if isinstance(shape, int) else math.prod(shape)


DTYPES = {1: torch.float8_e4m3fn, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
"""Types of elements, by size in bytes."""


class Parameter(Ghost):
    """Number of weights of a layer, with the layer's FLOPs and output elements per sample."""

    __slots__ = ("flops", "outputs")
    requires_grad = True

    def __init__(self, n: int, dtype: torch.dtype, flops: float, outputs: int = 0) -> None:
        super().__init__(n, dtype)
        self.flops, self.outputs = flops, outputs


class Outline:
    """Stand-in for a model that is not computed: the layers of a workload.

    An outline has a length, and can be sliced and concatenated like a list of layers.

    Parameters
    ----------
    parameters : list of Parameter
        Weights of each layer, in the order of computation.

    Attributes
    ----------
    flops : float
        FLOPs per sample, forward and backward.
    """

    def __init__(self, parameters: list[Parameter]) -> None:
        self._parameters, self.flops = parameters, sum(parameter.flops for parameter in parameters)

    @classmethod
    def of(cls, workload: Any) -> Outline:
        """Return the outline of a :class:`~dlpar.worlds.platforms.Workload`.

        A workload lists its layers in the order of the backward pass.
        """
        dtype = DTYPES[workload.itemsize]
        layers = reversed(workload.layers)
        return cls([Parameter(layer.parameters, dtype, layer.flops, layer.outputs) for layer in layers])

    def parameters(self) -> Iterator[Parameter]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __getitem__(self, layers: slice) -> Outline:
        return Outline(self._parameters[layers])

    def __add__(self, other: Outline) -> Outline:
        return Outline(self._parameters + other._parameters)

    def __call__(self, x: torch.Tensor) -> Ghost:
        raise TypeError("an outline has no numbers to compute with")
