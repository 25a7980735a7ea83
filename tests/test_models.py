from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from image_files import write_cifar10, write_mnist
from torch import nn

from dlpar import models
from dlpar.config.experiment import Experiment
from dlpar.config.rules import RULES
from dlpar.data import Dataset, load
from dlpar.data.sampler import Sampler


def dataset_of(experiment: Experiment) -> Dataset:
    return load(experiment.data, experiment.seed, getattr(torch, experiment.dtype), experiment.model.name)


def train(experiment: Experiment, dataset: Dataset) -> tuple[nn.Module, list[float]]:
    """Plain SGD in one process; the model and the loss of every step."""
    model, criterion, losses = models.build(experiment, dataset), models.loss(dataset.task), []
    sampler = Sampler(experiment, dataset.train_y, len(dataset.train_x))
    for step in range(experiment.steps):
        x, y = dataset.batch(torch.cat([sampler.indices(step, w) for w in range(experiment.workers)]))
        loss = criterion(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= experiment.lr * weight.grad
        losses.append(loss.item())
    return model, losses


@torch.no_grad()
def accuracy(model: nn.Module, dataset: Dataset) -> float:
    model.eval()
    return models.score(dataset.task)(model(dataset.test_x), dataset.test_y).mean().item()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of the sets that are read from files."""
    found = {name: tmp_path_factory.mktemp(name) for name in ("mnist", "cifar10")}
    write_mnist(found["mnist"], train=200, test=50)
    write_cifar10(found["cifar10"], size=20)
    return found


FITS = {values[0]: allowed for _, values, path, allowed, _ in RULES if path == "data.name"}
"""Data sets each model can read."""
PAIRS = [(model, name) for model, names in FITS.items() for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("model", "name"), PAIRS)
def test_every_model_learns_from_every_set_it_fits(model, name, dtype, folders):
    experiment = Experiment(
        model={"name": model, "width": 32},
        data={"name": name, "context": 16, "folder": str(folders[name]) if name in folders else None},
        batch=64,
        steps=30,
        dtype=dtype,
    )
    dataset = dataset_of(experiment)
    trained, losses = train(experiment, dataset)
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < 0.9 * losses[0]
    output = trained(dataset.test_x[:3])
    assert output.dtype == getattr(torch, dtype)
    assert output.shape == (3, *((16,) if model == "transformer" else ()), dataset.classes)
    assert all(weight.grad is not None for weight in trained.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_default_experiment_reads_digits(seed):
    experiment = Experiment(seed=seed)
    dataset = dataset_of(experiment)
    trained, losses = train(experiment, dataset)
    assert losses[0] > 2
    assert accuracy(trained, dataset) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "name", "least"), [("cnn", "digits", 0.93), ("logistic", "docstrings", 0.75)]
)
def test_other_models_reach_their_usual_accuracy(model, name, least):
    experiment = Experiment(model={"name": model, "width": 64}, data=name)
    dataset = dataset_of(experiment)
    assert accuracy(train(experiment, dataset)[0], dataset) >= least


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 256, 1024])
def test_regression_is_stable_at_the_default_rate_whatever_the_width(width):
    experiment = Experiment(data="diabetes", model={"width": width}, steps=60)
    losses = train(experiment, dataset_of(experiment))[1]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-10:]) < 0.95


@pytest.mark.parametrize(
    ("model", "name"), [("mlp", "digits"), ("cnn", "digits"), ("transformer", "docstrings")]
)
def test_types_start_from_the_same_weights(model, name):
    built = []
    for dtype in ("float32", "float64"):
        experiment = Experiment(model={"name": model, "width": 32}, data=name, dtype=dtype)
        built.append(models.build(experiment, dataset_of(experiment)).state_dict())
    narrow, wide = built
    assert narrow.keys() == wide.keys()
    assert all(torch.equal(narrow[key], wide[key].to(narrow[key].dtype)) for key in narrow)


def test_weights_belong_to_the_seed_and_differ_between_layers():
    dataset = dataset_of(Experiment())
    first, again, other = (models.build(Experiment(seed=s, model={"depth": 3}), dataset) for s in (0, 0, 1))
    assert all(map(torch.equal, first.parameters(), again.parameters()))
    assert not torch.equal(first.linear1.weight, other.linear1.weight)
    assert not torch.equal(first.linear2.weight, first.linear3.weight)


def test_a_layer_starts_alike_in_a_deeper_model():
    dataset = dataset_of(Experiment())
    shallow, deep = (models.build(Experiment(model={"depth": depth}), dataset) for depth in (2, 5))
    assert torch.equal(shallow.linear2.weight, deep.linear2.weight)


def test_building_leaves_the_global_generators_alone():
    dataset = dataset_of(Experiment())
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    models.build(Experiment(), dataset)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])


@pytest.mark.slow
def test_signals_keep_their_size_through_many_layers():
    experiment = Experiment(model={"depth": 20, "width": 512})
    dataset = dataset_of(experiment)
    hidden = models.build(experiment, dataset)[:-1](dataset.train_x)
    assert 0.3 < hidden.square().mean() / dataset.train_x.square().mean() < 3


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ({"name": "linear"}, "output"),
        ({"depth": 2}, "linear1 relu1 linear2 relu2 output"),
        ({"depth": 1, "norm": "batch"}, "linear1 norm1 relu1 output"),
        ({"name": "cnn", "depth": 3}, "conv1 relu1 pool1 conv2 relu2 conv3 relu3 flatten output"),
        ({"name": "cnn", "depth": 1, "norm": "sync_batch"}, "conv1 norm1 relu1 pool1 flatten output"),
        ({"name": "transformer", "depth": 2}, "embed block1 block2 norm output"),
    ],
)
def test_a_model_is_a_flat_row_of_named_layers_that_can_be_cut(model, names):
    data = {"linear": "diabetes", "transformer": "docstrings"}.get(model.get("name"), "digits")
    experiment = Experiment(model={"width": 32, **model}, data=data)
    dataset = dataset_of(experiment)
    built = models.build(experiment, dataset)
    assert [name for name, _ in built.named_children()] == names.split()
    x = dataset.train_x[:8]
    assert torch.equal(built(x), built[1:](built[:1](x)))


@pytest.mark.parametrize("norm", ["batch", "sync_batch"])
@pytest.mark.parametrize(("model", "kind"), [("mlp", nn.BatchNorm1d), ("cnn", nn.BatchNorm2d)])
def test_batch_normalisation_follows_every_hidden_layer(model, kind, norm):
    experiment = Experiment(model={"name": model, "norm": norm, "depth": 3, "width": 32})
    dataset = dataset_of(experiment)
    built = models.build(experiment, dataset)
    norms = [layer for layer in built if isinstance(layer, kind)]
    assert len(norms) == 3
    normalised = built[: list(built).index(norms[0]) + 1](dataset.train_x[:200])
    axes = [axis for axis in range(normalised.dim()) if axis != 1]
    assert normalised.mean(axes).abs().max() < 1e-5


@pytest.mark.parametrize(("width", "channels"), [(256, 32), (8, 4), (1, 4)])
def test_a_cnn_has_an_eighth_of_the_width_in_channels(width, channels):
    experiment = Experiment(model={"name": "cnn", "width": width})
    assert models.build(experiment, dataset_of(experiment)).conv2.weight.shape == (channels, channels, 3, 3)


def transformer(**fields: object) -> tuple[nn.Module, Dataset]:
    experiment = Experiment(
        model={"name": "transformer", "width": 32, "heads": 4},
        data={"name": "docstrings", "context": 12},
        dtype="float64",
        **fields,
    )
    dataset = dataset_of(experiment)
    return models.build(experiment, dataset), dataset


def test_a_transformer_does_not_read_ahead():
    model, dataset = transformer()
    x = dataset.train_x[:4]
    changed = x.clone()
    changed[:, 7] = (changed[:, 7] + 1) % dataset.classes
    moved = (model(x) - model(changed)).abs().amax((0, 2))
    assert moved[:7].max() == 0
    assert moved[7:].min() > 0


def test_attention_is_torchs_own():
    torch_attention = nn.functional.scaled_dot_product_attention
    model, dataset = transformer()
    attention = model.block1.attention
    x = model.embed(dataset.train_x[:4])
    q, k, v = (attention._by_head(part(x)) for part in (attention.query, attention.key, attention.value))
    expected = attention.merge(torch_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
    assert torch.allclose(attention(x), expected, atol=1e-12)


def test_a_transformer_embeds_and_reads_out_with_one_weight():
    model, dataset = transformer()
    for held in (model, copy.deepcopy(model), model.to("cpu", torch.float32)):
        assert held.output.weight is held.embed.token.weight
    # It starts out nearly undecided between the characters.
    start = models.loss("characters")(model(dataset.train_x[:100]), dataset.train_y[:100]).item()
    assert abs(start - np.log(96)) < 0.3


def test_losses_are_means():
    output, target = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [1.0]])
    assert models.loss("regression")(output, target).item() == pytest.approx((1 + 4) / 2)
    scores, labels = torch.zeros(3, 10), torch.tensor([1, 2, 3])
    assert models.loss("classification")(scores, labels).item() == pytest.approx(np.log(10))
    scores, following = torch.zeros(3, 5, 96), torch.ones(3, 5, dtype=torch.int64)
    assert models.loss("characters")(scores, following).item() == pytest.approx(np.log(96))


def test_scores_are_one_a_sample():
    output = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    assert models.score("classification")(output, torch.tensor([1, 1])).tolist() == [1, 0]
    windows = torch.stack([output, output])
    assert models.score("characters")(windows, torch.tensor([[1, 0], [1, 1]])).tolist() == [1, 0.5]
    assert models.score("regression") is None


def test_flops_are_three_forward_passes_of_products():
    experiment = Experiment()
    dataset = dataset_of(experiment)
    model = models.build(experiment, dataset)
    assert models.flops_per_sample(model, dataset) == 3 * 2 * (64 * 256 + 256 * 256 + 256 * 10)
    assert model.training
    assert not any(layer._forward_hooks for layer in model.modules())


def test_flops_of_convolution_and_attention():
    experiment = Experiment(model={"name": "cnn", "width": 32, "norm": "batch"})
    dataset = dataset_of(experiment)
    products = 8 * 8 * 4 * 9 * 1 + 4 * 4 * 4 * 9 * 4 + 4 * 4 * 4 * 10
    assert models.flops_per_sample(models.build(experiment, dataset), dataset) == 3 * 2 * products
    model, text = transformer()
    block = 4 * 32 * 32 + 2 * 4 * 32 * 32 + 2 * 12 * 32
    assert models.flops_per_sample(model, text) == 3 * 2 * 12 * (2 * block + 96 * 32)
