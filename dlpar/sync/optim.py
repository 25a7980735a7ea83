"""Update rules on a flat weight vector, on a replica or on a server's shard.

The arithmetic is torch's own.  Its functional form is used, because a ``torch.optim`` object imports torch's
compiler, which takes seconds in a fresh rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.sgd import sgd

BETAS = (0.9, 0.999)


class Optimizer:
    """Update rule ``sgd``, ``momentum``, ``adagrad`` or ``adam`` (betas 0.9, 0.999), with torch's defaults.

    Parameters
    ----------
    rule : str
        Name of the update rule.
    weights : Tensor, shape (n,)
        Updated in place by :meth:`step`.
    lr : float
        Learning rate. It may be changed between steps.
    momentum : float
        Share of the last update that ``momentum`` keeps.
    """

    kept = ("state",)

    def __init__(self, rule: str, weights: torch.Tensor, lr: float, momentum: float = 0.9) -> None:
        if rule not in RULES:
            raise ValueError(f"optimizer: got {rule!r}, allowed is one of {', '.join(RULES)}")
        self.rule, self.weights, self.lr = rule, weights, lr
        self._update = RULES[rule]
        self.state: dict[str, Any] = {"mu": momentum}

    @property
    def nbytes(self) -> int:
        """Return the bytes that the rule keeps between steps. They are allocated in the first step."""
        return sum(getattr(value, "nbytes", 0) for value in self.state.values())

    def step(self, gradient: torch.Tensor) -> None:
        """Apply one gradient of the weights' shape. Autograd tracks neither tensor."""
        self._update(self.weights, gradient, self.lr, self.state)


PLAIN: dict[str, Any] = {"foreach": False, "weight_decay": 0.0, "maximize": False}
"""Settings that make torch's rules equal to those of their papers."""


def _sgd(weights: torch.Tensor, gradient: torch.Tensor, lr: float, state: dict) -> None:
    weights.add_(gradient, alpha=-lr)


def _momentum(weights: torch.Tensor, gradient: torch.Tensor, lr: float, state: dict) -> None:
    buffers = [state.get("momentum")]
    rule: dict[str, Any] = {"momentum": state["mu"], "dampening": 0.0, "nesterov": False}
    sgd([weights], [gradient], buffers, lr=lr, fused=weights.is_cuda, **rule, **PLAIN)
    state["momentum"] = buffers[0]


def _adagrad(weights: torch.Tensor, gradient: torch.Tensor, lr: float, state: dict) -> None:
    sums, count = _kept(state, weights, "sum")
    adagrad([weights], [gradient], [sums], [count], lr=lr, lr_decay=0.0, eps=1e-10, **PLAIN)


def _adam(weights: torch.Tensor, gradient: torch.Tensor, lr: float, state: dict) -> None:
    mean, square, count = _kept(state, weights, "mean", "square", fused=weights.is_cuda)
    rule: dict[str, Any] = {"beta1": BETAS[0], "beta2": BETAS[1], "eps": 1e-8, "amsgrad": False}
    adam([weights], [gradient], [mean], [square], [], [count], lr=lr, fused=weights.is_cuda, **rule, **PLAIN)


def _kept(state: dict, weights: torch.Tensor, *names: str, fused: bool = False) -> list[torch.Tensor]:
    """Return the rule's vectors with these names and its count of steps.

    The vectors are allocated in the first step.
    """
    if "step" not in state:
        state |= {name: torch.zeros_like(weights) for name in names} | {"step": torch.zeros(())}
    if fused:
        state["step"] = state["step"].to(weights.device)
    return [state[name] for name in (*names, "step")]


RULES: dict[str, Callable[[torch.Tensor, torch.Tensor, float, dict], None]] = {
    "sgd": _sgd, "momentum": _momentum, "adagrad": _adagrad, "adam": _adam,
}  # fmt: skip
