"""Sandblaster: torch's L-BFGS on shards, a coordinator that sends scalars, portions that even out workers' speeds."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from simulations import LINK, cluster
from simulations import run as on_ranks

from dlpar import spmd
from dlpar.sync.sandblaster import sandblaster
from dlpar.systems.least_squares import LeastSquares, by_torch
from dlpar.worlds.platforms import Device


def torchs_own(iterations: int, history: int = 10) -> torch.Tensor:
    return by_torch(LeastSquares(), iterations, history)


def of_shards(found, shards: int) -> torch.Tensor:
    return torch.cat([each.weights for each in found[1 : shards + 1]])


@pytest.mark.parametrize(("workers", "shards", "portions"), [(1, 1, 1), (2, 1, 4), (3, 2, 12), (4, 3, 50)])
def test_the_weights_are_those_of_torchs_lbfgs(workers, shards, portions):
    program = partial(
        sandblaster, problem=LeastSquares(), shards=shards, iterations=12, portions=portions, history=4
    )
    found = on_ranks(program, 1 + shards + workers)
    assert torch.allclose(of_shards(found, shards), torchs_own(12, history=4), rtol=1e-7, atol=1e-9)
    losses = found[0].losses
    assert len(losses) == 12 and losses[-1] < 0.6 * losses[0]


def test_the_coordinator_sends_a_few_numbers_whatever_the_length_of_the_weights():
    class Long(LeastSquares):
        def __init__(self) -> None:
            super().__init__()
            self.x, self.start = self.x.repeat(1, 50), self.start.repeat(50)

    def sent(comm, problem):
        sandblaster(comm, problem, 2, 3, 4)
        return comm.traffic.take()["bytes"]

    short, long = (on_ranks(partial(sent, problem=problem()), 5) for problem in (LeastSquares, Long))
    assert short[0] == long[0] and long[1] > 20 * short[1]


def seconds(portions: int, backup: bool, slow: float = 10.0) -> float:
    quick = LINK.model_copy(update={"latency": 1e-6, "bandwidth": 1e9})
    program = partial(
        sandblaster,
        problem=LeastSquares(),
        shards=1,
        iterations=4,
        portions=portions,
        backup=backup,
        slow=slow,
    )
    return on_ranks(program, 2 + 4, cluster(link=quick, device=Device(name="one", flops=1e12)))[0].seconds


def test_small_portions_with_backups_hide_a_slow_worker_that_equal_shares_wait_for():
    even = seconds(4, backup=False, slow=1.0)
    assert seconds(4, backup=False) == pytest.approx(10 * even, rel=0.02)
    assert seconds(32, backup=False) < 0.3 * seconds(4, backup=False)
    assert seconds(32, backup=True) < 0.75 * seconds(32, backup=False)


def test_each_portion_counts_once_though_backups_compute_some_twice():
    program = partial(sandblaster, problem=LeastSquares(), shards=2, iterations=5, portions=7, slow=3.0)
    found = on_ranks(program, 1 + 2 + 3)
    assert sum(each.portions for each in found[3:]) > 5 * 7
    assert torch.allclose(of_shards(found, 2), torchs_own(5), rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_it_runs_on_real_processes():
    found = spmd(sandblaster, LeastSquares(), 2, 8, 10, workers=5)
    assert torch.allclose(of_shards(found, 2), torchs_own(8), rtol=1e-6, atol=1e-8)


def test_too_few_ranks_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="^comm: got 3 ranks, allowed with 2 shards is at least 4$"):
        on_ranks(partial(sandblaster, problem=LeastSquares(), shards=2, iterations=1, portions=1), 3)


class Waves:
    """A problem that is not convex, whose steps often fail the condition of curvature."""

    start = torch.linspace(0.3, 2.9, 6, dtype=torch.float64)

    def loss(self, w: torch.Tensor) -> torch.Tensor:
        return (torch.sin(2 * w) + 0.05 * w * w).sum() + 0.3 * torch.cos(w[:-1] * w[1:]).sum()

    def portion(self, number: int, of: int, weights: torch.Tensor) -> tuple[float, torch.Tensor]:
        weights = weights.clone().requires_grad_()
        loss = self.loss(weights) / of
        return loss.item(), torch.autograd.grad(loss, weights)[0]

    def cost(self, of: int) -> float:
        return 1.0


@pytest.mark.parametrize("history", [3, 4, 10])
def test_pairs_that_are_left_out_overwrite_none_in_use(history):
    problem, weights = Waves(), Waves.start.clone().requires_grad_()
    limits = {"max_iter": 14, "max_eval": 10**6, "history_size": history}
    rule = torch.optim.LBFGS([weights], lr=0.3, tolerance_grad=0, tolerance_change=0, **limits)

    def closure() -> torch.Tensor:
        rule.zero_grad()
        loss = problem.loss(weights)
        loss.backward()
        return loss

    rule.step(closure)
    program = partial(
        sandblaster, problem=problem, shards=2, iterations=14, portions=4, lr=0.3, history=history
    )
    found = of_shards(on_ranks(program, 4), 2)
    assert torch.allclose(found, weights.detach(), rtol=0, atol=1e-8)


def test_a_start_at_the_minimum_stays_there():
    class Bowl(LeastSquares):
        def __init__(self) -> None:
            super().__init__()
            self.y = torch.zeros_like(self.y)

    program = partial(sandblaster, problem=Bowl(), shards=1, iterations=3, portions=2)
    found = on_ranks(program, 3)
    assert found[0].losses == [0.0] * 3 and of_shards(found, 1).abs().max() == 0


def test_without_a_pair_there_is_nothing_to_keep():
    program = partial(sandblaster, problem=LeastSquares(), shards=1, iterations=3, portions=2, history=0)
    with pytest.raises(ValueError, match="portions: got 2, 1 shards, history 0; allowed is from 1"):
        on_ranks(program, 3)
