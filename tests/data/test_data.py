from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlpar.config.experiment import Data
from dlpar.data import BadData, Dataset, load, split


def load_of(
    name: str, seed: int = 0, model: str = "mlp", dtype: torch.dtype = torch.float32, **fields: object
) -> Dataset:
    return load(Data(name=name, **fields), seed=seed, dtype=dtype, model=model)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=5, max_size=200), st.integers(0, 2**31 - 1))
def test_a_split_holds_out_a_fifth_of_every_label(labels, seed):
    labels = np.array(labels)
    if all(np.sum(labels == label) < 3 for label in range(5)):
        return
    train, test = split(labels, seed)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(labels)))
    for label in range(5):
        assert np.sum(labels[test] == label) == round(0.2 * np.sum(labels == label))


def test_a_split_is_shuffled_and_belongs_to_its_seed():
    labels = np.repeat(np.arange(10), 30)
    first, again, other = split(labels, 0), split(labels, 0), split(labels, 1)
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(np.sort(first[1]), np.sort(other[1]))
    assert all(len(np.unique(labels[part][:20])) > 3 for part in first)


def test_a_split_of_too_few_samples_is_refused():
    with pytest.raises(BadData, match="2 samples are too few"):
        split(np.array([0, 1]), 0)


@pytest.mark.parametrize(("model", "shape"), [("mlp", (64,)), ("logistic", (64,)), ("cnn", (1, 8, 8))])
def test_digits_have_the_shape_a_model_reads(model, shape):
    digits = load_of("digits", model=model)
    assert (digits.name, digits.task, digits.classes, digits.shape) == ("digits", "classification", 10, shape)
    assert len(digits.train_x) + len(digits.test_x) == 1797
    assert len(digits.train_x) == len(digits.train_y)
    assert digits.train_y.dtype == torch.int64
    assert digits.train_y.unique().tolist() == list(range(10))


def test_pixels_of_the_training_part_are_standardised():
    digits = load_of("digits", dtype=torch.float64)
    assert digits.train_x.mean().item() == pytest.approx(0, abs=1e-12)
    assert digits.train_x.std(correction=0).item() == pytest.approx(1)
    assert abs(digits.test_x.mean().item()) > 1e-6


def test_diabetes_is_standardised_by_its_training_part():
    diabetes = load_of("diabetes", dtype=torch.float64)
    assert (diabetes.task, diabetes.classes, diabetes.shape) == ("regression", 1, (10,))
    assert diabetes.train_y.shape == (354, 1)
    assert diabetes.test_y.shape == (88, 1)
    for columns in (diabetes.train_x, diabetes.train_y):
        assert columns.mean(0).abs().max() < 1e-12
        assert torch.allclose(columns.std(0, correction=0), torch.ones(1, dtype=torch.float64))
    assert diabetes.test_x.mean(0).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "model"), [("digits", "cnn"), ("diabetes", "linear"), ("docstrings", "logistic")]
)
def test_types_hold_the_same_samples(name, model):
    narrow = load_of(name, model=model, dtype=torch.float32)
    wide = load_of(name, model=model, dtype=torch.float64)
    assert (narrow.train_x.dtype, wide.train_x.dtype) == (torch.float32, torch.float64)
    assert torch.allclose(narrow.train_x.double(), wide.train_x, rtol=1e-6, atol=1e-6)
    assert torch.equal(narrow.test_y, wide.test_y.to(narrow.test_y.dtype))


def test_batch_and_to_select_and_move_samples():
    digits = load_of("digits")
    x, y = digits.batch(torch.tensor([3, 1]))
    assert torch.equal(x, digits.train_x[[3, 1]])
    assert torch.equal(y, digits.train_y[[3, 1]])
    moved = digits.to("meta")
    parts = moved.train_x, moved.train_y, moved.test_x, moved.test_y
    assert {part.device.type for part in parts} == {"meta"}
    assert digits.to("cpu").train_x is digits.train_x


def test_loading_leaves_the_global_generators_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    sets = ("digits", "mlp"), ("diabetes", "mlp"), ("docstrings", "logistic"), ("docstrings", "transformer")
    for name, model in sets:
        load_of(name, model=model)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
