"""Closed forms of what a rank holds under data parallelism: weights, gradients and the optimizer's state.

Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory optimizations toward training
trillion parameter models" (arXiv 1910.02054), sections 3.1 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STATE = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2}
"""Numbers an update rule keeps for each parameter."""

LEAST_STAGE = {"optimizer": 1, "gradients": 2, "weights": 3}
"""From which stage of ZeRO on each of them is shared out."""


class ModelState(NamedTuple):
    """Bytes one rank holds from step to step."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Of all three."""
        return sum(self)


def model_state(
    parameters: float, ranks: int = 1, zero: int = 0, bytes_each: Sequence[float] = (2, 2, 12)
) -> ModelState:
    """What one of N data-parallel ranks holds of a model of n parameters.

    =====  ==========================  =============================================
    stage  shared out among N ranks    bytes of a rank, of w, g and k a parameter
    =====  ==========================  =============================================
    0      nothing                     (w + g + k) n
    1      optimizer state             (w + g) n + k n / N
    2      and gradients               w n + (g + k) n / N
    3      and weights                 (w + g + k) n / N
    =====  ==========================  =============================================

    Parameters
    ----------
    parameters : float
        n, from 0.
    ranks : int
        N, from 1.
    zero : int
        0, 1, 2 or 3.
    bytes_each : sequence of 3 floats
        Of a weight, of its gradient, and of what the optimizer keeps for it; by default those of
        Adam in mixed precision (section 3.1): 16-bit weights and gradients, and in 32 bits a copy
        of the weights and two moments.  Ours: :func:`bytes_of`.

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
    """Bytes of a weight, of its gradient and of what an update rule of :mod:`dlpar.optim` keeps for it.

    Parameters
    ----------
    optimizer : str
        One of :data:`STATE`.
    itemsize : int
        Bytes of a number: 4 or 8.
    """
    if optimizer not in STATE:
        raise ValueError(f"optimizer: got {optimizer!r}, allowed is one of {', '.join(STATE)}")
    return itemsize, itemsize, STATE[optimizer] * itemsize


def gathered(layers: Sequence[int], itemsize: int) -> int:
    """Most bytes stage 3 borrows at a time: the largest layer's weights and, before it is shared out, its gradient.

    Parameters
    ----------
    layers : sequence of int
        Parameters of each; none belongs to two.
    itemsize : int
        Bytes of a number.
    """
    return 2 * max(layers) * itemsize


def zero_bytes(parameters: float, ranks: int, zero: int, itemsize: int, microbatches: int = 1) -> float:
    """Bytes all ranks together send a step (section 7.2).

    A reduce-scatter and an all-gather take (N-1) n numbers each; stages up to 2 need one of both,
    once a step.  Stage 3 gathers weights for every forward and every backward pass, and adds
    gradients up after it: one and a half times as much, for each micro-batch.
    """
    halves = 3 * microbatches if zero == 3 else 2
    return halves * (ranks - 1) * parameters * itemsize
