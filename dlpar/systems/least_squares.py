"""Least squares on diabetes: in portions for Sandblaster, and as a whole for torch's L-BFGS."""

from __future__ import annotations

import torch
from torch import Tensor

from dlpar.comm import Comm
from dlpar.config.parts import Data
from dlpar.data import load
from dlpar.sync.sandblaster import Outcome, sandblaster


class LeastSquares:
    """Mean squared error of a linear model with a constant.

    See :class:`dlpar.sync.sandblaster.Problem`.
    """

    def __init__(self) -> None:
        data = load(Data(name="diabetes"), 0, torch.float64)
        self.x = torch.cat([data.train_x, torch.ones(len(data.train_x), 1, dtype=torch.float64)], dim=1)
        self.y, self.start = data.train_y.view(-1), torch.zeros(self.x.shape[1], dtype=torch.float64)

    def portion(self, number: int, of: int, weights: Tensor) -> tuple[float, Tensor]:
        """Return a portion's contribution to the loss and to its gradient."""
        x, y = self.x.tensor_split(of)[number], self.y.tensor_split(of)[number]
        errors = x @ weights - y
        return (errors @ errors / len(self.x)).item(), 2 * x.T @ errors / len(self.x)

    def cost(self, of: int) -> float:
        """Return a cost of 1 GFLOP per sample. A large model has such a cost."""
        return 1e9 * len(self.x) / of


def by_torch(problem: LeastSquares, iterations: int, history: int = 10) -> Tensor:
    """Return the weights that torch's LBFGS finds in one process."""
    weights = problem.start.clone().requires_grad_()
    limits = {"max_iter": iterations, "max_eval": 10**6, "history_size": history}
    rule = torch.optim.LBFGS([weights], lr=1.0, tolerance_grad=0, tolerance_change=0, **limits)

    def closure() -> Tensor:
        rule.zero_grad()
        loss = ((problem.x @ weights - problem.y) ** 2).mean()
        loss.backward()
        return loss

    rule.step(closure)
    return weights.detach()


def minimise(comm: Comm, portions: int, backup: bool, slow: float) -> Outcome:
    """Run Sandblaster for eight iterations with two shards. The last worker may be slow."""
    return sandblaster(comm, LeastSquares(), 2, 8, portions, backup=backup, slow=slow)


def error(found: list[Outcome]) -> float:
    """Return the largest difference between the shards' and torch's weights, divided by torch's norm."""
    right = by_torch(LeastSquares(), 8)
    weights = torch.cat([each.weights for each in found if each.weights is not None])
    return ((weights - right).abs().max() / right.norm()).item()
