"""Sizes of models from the fields of an experiment: those of the model that is built."""

from __future__ import annotations

import pytest
import torch

from dlpar import Experiment, models
from dlpar.data import load
from dlpar.theory.layers import layers, sizes


@pytest.mark.parametrize(
    "model, data",
    [
        ("logistic", "digits"),
        ("linear", "diabetes"),
        ("mlp", "diabetes"),
        ("logistic", "docstrings"),
        ({"name": "mlp", "depth": 3, "norm": "batch"}, "digits"),
        ({"name": "cnn", "width": 64, "depth": 3}, "digits"),
        ({"name": "cnn", "norm": "batch"}, "digits"),
        ({"name": "transformer", "width": 32, "heads": 2}, {"name": "docstrings", "context": 16}),
    ],
)
def test_layers_and_sizes_are_those_of_the_model_that_is_built(model, data):
    ours = Experiment(model=model, data=data, workers=1)
    dataset = load(ours.data, 0, torch.float32, ours.model.name)
    built = models.build(ours, dataset)
    counted, found = models.flops_per_sample(built, dataset), sizes(ours)
    weights = list(reversed(list(built.parameters())))
    assert found.flops == counted
    assert found.nbytes == sum(weight.nbytes for weight in weights)
    assert [tensor.parameters for tensor in found.layers] == [weight.numel() for weight in weights]
    assert [tensor.flops for tensor in found.layers] == [getattr(weight, "flops", 0) for weight in weights]
    x, outputs = dataset.train_x[:2], {}
    for name, layer in built.named_children():
        x = layer(x)
        outputs[name] = tuple(x.shape[1:])
    assert {layer.name: layer.output for layer in layers(ours)} == outputs
