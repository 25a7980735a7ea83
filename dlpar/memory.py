"""Memory of a rank: bytes of live tensors by kind, their peak within a step, and a model's needs.

Each storage is counted once, however many tensors are views of it. Activations are the tensors
that autograd keeps from the forward pass for the backward pass, until it frees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from dlpar.replica import Replica

KINDS = ("weights", "gradients", "optimizer", "activations", "gathered")
"""Kinds of tensors: ``optimizer`` is the update rule's state, ``gathered`` are weights that other ranks own."""

WATCHED = 3
"""Number of first steps that are watched. Later steps hold as many bytes, and watching costs time."""


class Memory:
    """Counter of the bytes that one rank holds, and of their peak.

    Parameters
    ----------
    now : callable, optional
        The rank's clock, in seconds.
    counts : bool, default True
        Whether to count. Ranks that compute no numbers hold no memory.

    Attributes
    ----------
    held : dict of str to int
        Current bytes of each kind.
    peak : dict of str to int
        Bytes of each kind at the current step's peak.
    over_time : list of [float, int]
        Times and sums in bytes at each change in the last watched step.

    Notes
    -----
    This class does not count scratch buffers within a call, the data set, or a scheme's memory besides its
    optimizer.

    Examples
    --------
    >>> with memory.watch(step, replica, sync.state_bytes):
    ...     loss = criterion(model(x), y)
    >>> memory.facts()
    {'memory': {'weights': 37928, 'gradients': 37928, 'optimizer': 0, 'activations': 103432, 'gathered': 0}}
    """

    def __init__(self, now: Callable[[], float] = lambda: 0.0, counts: bool = True) -> None:
        self.held = dict.fromkeys(KINDS, 0)
        self.peak: dict[str, int] = {}
        self.over_time: list[list[float]] = []
        self._now, self._watched, self._tracing = now, WATCHED if counts else 0, False
        self._counted: dict[int, _Counted] = {}  # keyed by the address of the storage
        self._watching = False

    def hold(self, kind: str, tensor: Tensor) -> None:
        """Count a tensor's storage from now on. A storage already counted keeps its kind."""
        storage = tensor.untyped_storage()
        counted = self._counted.get(storage._cdata)
        if counted is None:
            counted = self._counted[storage._cdata] = _Counted(kind)
            self._count(counted, storage.nbytes())
        counted.users += 1

    def drop(self, tensor: Tensor) -> None:
        """Release a tensor. Its storage counts until it has been dropped as often as held."""
        key = tensor.untyped_storage()._cdata
        counted = self._counted[key]
        counted.users -= 1
        if counted.users == 0:
            self._count(counted, 0)
            del self._counted[key]

    def resized(self, tensor: Tensor) -> None:
        """Update the size of a held tensor's storage."""
        storage = tensor.untyped_storage()
        self._count(self._counted[storage._cdata], storage.nbytes())

    def _count(self, counted: _Counted, nbytes: int) -> None:
        self.held[counted.kind] += nbytes - counted.nbytes
        counted.nbytes = nbytes
        total = sum(self.held.values())
        if total > sum(self.peak.values()):
            self.peak = dict(self.held)
        if self._tracing:
            now = self._now()
            if self.over_time and self.over_time[-1][0] == now:
                self.over_time.pop()
            self.over_time.append([now, total])

    def watch(self, step: int, replica: Replica, optimizer: Callable[[], int]) -> AbstractContextManager:
        """Return a context that counts bytes while a step's gradient is computed, only in the first steps.

        Parameters
        ----------
        step : int
            0-based.
        replica : Replica
            The owner of this rank's weights and gradient.
        optimizer : callable
            Returns the bytes of the update rule's state.
        """
        self._watching = step < self._watched
        if not self._watching:
            return nullcontext()
        from torch.autograd.graph import saved_tensors_hooks  # here: a launcher needs only the numbers below

        for kind, tensor in {"weights": replica.weights, "gradients": replica.gradient}.items():
            if tensor.untyped_storage()._cdata not in self._counted:
                self.hold(kind, tensor)
        self.held["optimizer"] = optimizer()
        self.peak, self._tracing = dict(self.held), step == WATCHED - 1
        return saved_tensors_hooks(lambda tensor: _Saved(self, tensor), lambda saved: saved.tensor)

    def facts(self) -> dict[str, Any]:
        """Return the memory facts of a watched step for the step's record.

        ``memory`` has the bytes of each kind at the peak.  ``memory_over_time`` has the attribute
        `over_time`, and is returned once.
        """
        if not self._watching:
            return {}
        over_time = {"memory_over_time": self.over_time} if self._tracing else {}
        self._tracing = False
        return {"memory": self.peak, **over_time}


class _Counted:
    """Counted storage: its kind, its bytes, and the number of its holders."""

    __slots__ = ("kind", "nbytes", "users")

    def __init__(self, kind: str) -> None:
        self.kind, self.nbytes, self.users = kind, 0, 0


class _Saved:
    """Tensor that autograd keeps until this object is dropped."""

    __slots__ = ("memory", "tensor")

    def __init__(self, memory: Memory, tensor: Tensor) -> None:
        self.memory, self.tensor = memory, tensor.detach()
        memory.hold("activations", self.tensor)

    def __del__(self) -> None:
        self.memory.drop(self.tensor)


# ---- in numbers ----------------------------------------------------------------------


STATE = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2}
"""Numbers that an update rule keeps for each parameter."""

LEAST_STAGE = {"optimizer": 1, "gradients": 2, "weights": 3}
"""Lowest stage of ZeRO that shards each kind of state."""


class ModelState(NamedTuple):
    """Bytes that one rank holds between steps."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Return the sum of the bytes of weights, gradients and optimizer state."""
        return sum(self)


def model_state(
    parameters: float, ranks: int = 1, zero: int = 0, bytes_each: Sequence[float] = (2, 2, 12)
) -> ModelState:
    """Return the bytes that one of N data-parallel ranks holds for a model of n parameters.

    =====  ==========================  =============================================
    stage  divided among N ranks       bytes of a rank (w, g, k per parameter)
    =====  ==========================  =============================================
    0      nothing                     (w + g + k) n
    1      optimizer state             (w + g) n + k n / N
    2      and gradients               w n + (g + k) n / N
    3      and weights                 (w + g + k) n / N
    =====  ==========================  =============================================

    Parameters
    ----------
    parameters : float
        n, at least 0.
    ranks : int
        N, at least 1.
    zero : int
        0, 1, 2 or 3.
    bytes_each : sequence of 3 floats
        Bytes of a weight, of its gradient, and of its optimizer state.  The default is Adam in mixed
        precision (section 3.1): 16-bit weights and gradients, and a 32-bit copy of the weights with two
        moments. :func:`bytes_of` gives those of this library.

    Raises
    ------
    ValueError
        If a number is not allowed.

    Examples
    --------
    >>> round(model_state(7.5e9, ranks=64, zero=3).total / 1e9, 1)
    1.9
    """
    if zero not in (0, 1, 2, 3):
        raise ValueError(f"zero: got {zero!r}, allowed is 0, 1, 2 or 3")
    if ranks < 1:
        raise ValueError(f"ranks: got {ranks}, allowed is a whole number from 1")
    shares = (parameters / (ranks if zero >= LEAST_STAGE[kind] else 1) for kind in ModelState._fields)
    return ModelState(*(share * size for share, size in zip(shares, bytes_each)))


def bytes_of(optimizer: str, itemsize: int) -> tuple[int, int, int]:
    """Return the bytes of a weight, its gradient and its optimizer state.

    :mod:`dlpar.sync.optim` implements the update rules.

    Parameters
    ----------
    optimizer : str
        One of :data:`STATE`.
    itemsize : int
        Bytes of a number: 4 or 8.
    """
    return itemsize, itemsize, STATE[optimizer] * itemsize
