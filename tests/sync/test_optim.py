"""Update rules on a flat vector: torch's own results, with state that is allocated once."""

from __future__ import annotations

import pytest
import torch

from dlpar.sync import optim
from dlpar.sync.optim import RULES, Optimizer

STEPS, LR = 20, 0.05
TORCH = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
}
gradients = torch.randn(STEPS, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def updated(rule: str) -> torch.Tensor:
    weights = torch.ones(33, dtype=torch.float64)
    optimizer = Optimizer(rule, weights, LR)
    for gradient in gradients:
        optimizer.step(gradient)
    return weights


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_updates_as_the_optimizer_of_torch(rule):
    weights = torch.nn.Parameter(torch.ones(33, dtype=torch.float64))
    theirs = TORCH[rule]([weights], LR)
    for gradient in gradients:
        weights.grad = gradient.clone()
        theirs.step()
    torch.testing.assert_close(updated(rule), weights.detach(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_the_fused_rule_of_a_gpu_gives_the_same(monkeypatch, rule):
    plain, calls = updated(rule), []

    def fused(update):
        def call(*tensors, **settings):
            calls.append(settings["fused"])
            return update(*tensors, **{**settings, "fused": True})

        return call

    for name in ("sgd", "adam"):
        monkeypatch.setattr(optim, name, fused(getattr(optim, name)))
    torch.testing.assert_close(updated(rule), plain, rtol=1e-12, atol=0)
    assert calls == [False] * STEPS  # the host's vectors are not updated so by themselves


@pytest.mark.parametrize("rule", ["momentum", "adagrad", "adam"])
def test_the_state_is_allocated_in_the_first_step_and_stays_in_its_memory(rule):
    optimizer = Optimizer(rule, weights := torch.ones(33, dtype=torch.float64), LR)
    assert optimizer.nbytes == 0

    def kept() -> dict[str, int]:
        optimizer.step(torch.ones_like(weights))
        return {k: v.data_ptr() for k, v in optimizer.state.items() if isinstance(v, torch.Tensor)}

    first, held = kept(), optimizer.nbytes
    assert held >= {"momentum": 1, "adagrad": 1, "adam": 2}[rule] * weights.nbytes
    assert all(kept() == first and optimizer.nbytes == held for _ in range(20))
