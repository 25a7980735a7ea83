"""PipeDream's stages compute with weights of different steps, exactly as its authors define it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from trained_ranks import SMALL, apart, trained

from dlpar import Experiment


def by_definition(experiment: Experiment, layers: list[int]) -> tuple[np.ndarray, torch.Tensor]:
    """Losses and last weights of Harlap et al. (arXiv 1806.03377, section 3.4), in one process that remembers all.

    ``w(t+1) = w(t) - lr * gradient(w_0(t - n + 1), …, w_n-1(t))``: stage s of n computes step t with its weights of
    n - 1 - s updates before.  `layers`: how many Linear layers each stage has.
    """
    from dlpar import models
    from dlpar.data import load
    from dlpar.data.sampler import Sampler

    dataset = load(experiment.data, experiment.seed, torch.float64, experiment.model.name)
    sampler = Sampler(experiment.of_replicas(), dataset.train_y, len(dataset.train_x))
    model = models.build(experiment, dataset)
    stage_of = [stage for stage, number in enumerate(layers) for _ in range(2 * number)]  # weight and bias
    delays = [len(layers) - 1 - stage for stage in stage_of]
    parameters = list(model.parameters())
    versions, losses = [[p.detach().clone() for p in parameters]], []
    for step in range(experiment.steps):
        for number, (parameter, delay) in enumerate(zip(parameters, delays, strict=True)):
            parameter.data, parameter.grad = versions[max(0, step - delay)][number].clone(), None
        batches = [dataset.batch(sampler.indices(step, replica)) for replica in range(experiment.replicas)]
        x, y = (torch.cat(part) for part in zip(*batches))
        loss = models.loss(dataset.task)(model(x), y)
        loss.backward()
        losses.append(loss.item())
        versions.append([w - experiment.lr * p.grad for w, p in zip(versions[-1], parameters)])
    return np.array(losses), torch.cat([w.flatten() for w in versions[-1]])


@pytest.mark.parametrize("stages, replicas, recompute", [(2, 1, False), (4, 1, True), (2, 2, False)])
def test_pipedream_is_its_definition(stages, replicas, recompute):
    layers = {2: [2, 2], 4: [1, 1, 1, 1]}[stages]
    split = {
        "kind": "pipeline",
        "stages": stages,
        "schedule": "pipedream",
        "microbatches": 1,
        "recompute": recompute,
        "partition": ",".join(map(str, layers)),
    }
    fields = dict(workers=stages * replicas, steps=20, dtype="float64", split=split, **SMALL["mlp"])
    losses, weights = by_definition(Experiment(**fields), layers)
    found = trained(**{**fields, "evaluate_every": 7})
    assert apart(losses, found.losses) < 1e-9
    assert (weights - found.weights).abs().max() < 1e-8
    one = trained(**{**fields, "workers": 1, "split": "data"})
    assert apart(losses, one.losses) > 1e-3  # staleness is not nothing
    for rank, facts in enumerate(found.facts):
        lead = stages - 1 - rank % stages
        assert [step["staleness"] for step in facts] == [min(step, lead) for step in range(20)]
        # The present weights, and each version between the forward and the backward pass of a batch in flight.
        assert [step["versions"] for step in facts] == [
            1 + min(step + 1, lead, 19 - step) for step in range(20)
        ]
