"""The models a small one may stand in for: their tables are those of the papers."""

from __future__ import annotations

import json

import pytest

from dlpar.config.schema import BadExperiment
from dlpar.worlds.platforms import WORKLOADS, Layer, Workload, workload

from .architectures import ARCHITECTURES

RELEASED = {
    "alexnet": 60_965_224, "vgg16": 138_357_544, "googlenet": 6_998_552, "inception3": 23_834_568,
    "resnet50": 25_557_032, "resnet101": 44_549_160, "resnet152": 60_192_808, "bert-large": 335_141_888,
    "gpt2": 124_439_808, "gpt2-xl": 1_557_611_200,
}  # fmt: skip
"""Parameters of the reference implementations, counted there."""

PAPERS = {
    "alexnet": 60e6, "vgg16": 138e6, "resnet50": 25.5e6, "resnet101": 44.5e6, "resnet152": 60.2e6, "bert-large": 340e6,
    "gpt2-xl": 1542e6,
}  # fmt: skip
"""Parameters as the papers and their tables round them."""

MULTIPLY_ADDS = {
    "resnet50": 3.8e9, "resnet101": 7.6e9, "resnet152": 11.3e9, "inception3": 5.72e9, "vgg16": 15.5e9,
    "alexnet": 0.724e9,
}  # fmt: skip
"""Forward, of one image: He et al. 2015, table 1; Szegedy et al. 2016 and Canziani et al. 2016 for the others."""


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_table_follows_from_the_architecture(name):
    """The backward pass computes two products for each of the forward one, and a multiply-add is two operations."""
    source, walk = ARCHITECTURES[name]
    derived = [
        Layer(name=layer, parameters=parameters, flops=6 * multiply_adds, outputs=sum(outputs))
        for layer, parameters, multiply_adds, *outputs in reversed(walk())
    ]
    assert (workload(name).source, list(workload(name).layers)) == (source, derived)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_the_parameters_of_its_reference_implementation(name):
    assert workload(name).parameters == RELEASED[name]


@pytest.mark.parametrize("name", PAPERS)
def test_the_parameters_are_those_the_paper_speaks_of(name):
    assert workload(name).parameters == pytest.approx(PAPERS[name], rel=0.02)


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_the_operations_of_a_sample_are_those_of_the_paper(name):
    """Forward and backward are three times the forward pass, and a multiply-add is two operations."""
    assert workload(name).flops / 6 == pytest.approx(MULTIPLY_ADDS[name], rel=0.02)


@pytest.mark.parametrize("name", ["bert-large", "gpt2", "gpt2-xl"])
def test_a_transformer_costs_six_operations_a_parameter_and_token_and_its_attention(name):
    """Kaplan et al. 2020 (arXiv 2001.08361), table 1: 6 N a token, N without embeddings, plus attention's 12 l n d."""
    tokens, depth, width, embedded = {
        "bert-large": (512, 24, 1024, 0),
        "gpt2": (1024, 12, 768, 50257 * 768),
        "gpt2-xl": (1024, 48, 1600, 50257 * 1600),
    }[name]
    weights = 12 * depth * width**2 + embedded  # GPT-2's output multiplies by the embedding
    assert workload(name).flops == pytest.approx(
        tokens * (6 * weights + 12 * depth * tokens * width), rel=1e-3
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_layers_add_up_and_carry_names_of_their_own(name):
    whole = workload(name)
    assert sum(layer.parameters for layer in whole.layers) == whole.parameters
    assert sum(layer.flops for layer in whole.layers) == whole.flops
    assert len({layer.name for layer in whole.layers}) == len(whole.layers)
    assert whole.nbytes == 4 * whole.parameters
    assert whole.source


def test_layers_come_in_the_order_of_the_backward_pass():
    assert [layer.name for layer in workload("alexnet").layers] == [
        "fc8",
        "fc7",
        "fc6",
        "conv5",
        "conv4",
        "conv3",
        "conv2",
        "conv1",
    ]
    vgg = workload("vgg16").layers
    assert (vgg[0].name, vgg[-1].name) == ("fc8", "conv1_1")


def test_nine_tenths_of_vggs_bytes_are_ready_before_a_tenth_of_its_work_is_done():
    """Its fully connected layers: why it overlaps well, and why it is the hardest to scale all the same."""
    first = workload("vgg16").layers[:3]
    whole = workload("vgg16")
    assert sum(layer.parameters for layer in first) > 0.88 * whole.parameters
    assert sum(layer.flops for layer in first) < 0.1 * whole.flops


def test_gpt2s_shared_embedding_is_ready_last_and_counted_once():
    layers = workload("gpt2").layers
    assert (layers[0].name, layers[0].parameters, layers[-1].name) == ("output", 0, "embed")
    assert layers[0].flops > 0 == layers[-1].flops


def test_a_file_describes_a_workload_by_its_layers_or_its_totals(tmp_path):
    by_layers, by_totals = tmp_path / "mine.json", tmp_path / "payload.toml"
    layers = [
        {"name": "top", "parameters": 5, "flops": 100},
        {"name": "bottom", "parameters": 7, "flops": 1e3},
    ]
    by_layers.write_text(json.dumps({"layers": layers, "itemsize": 2}))
    by_totals.write_text("parameters = 100_000_000\nflops = 0")
    mine, payload = workload(str(by_layers)), workload(str(by_totals))
    assert (mine.name, mine.parameters, mine.flops, mine.nbytes) == ("mine", 12, 1100, 24)
    assert mine.layers[0] == Layer(name="top", parameters=5, flops=100)
    assert (payload.name, payload.nbytes, len(payload.layers)) == ("payload", 400_000_000, 1)


@pytest.mark.parametrize(
    "fields, complaint",
    [
        ({}, "layers: got None, allowed is a list of layers, or parameters and flops instead"),
        ({"parameters": 3}, "layers: got None, allowed is a list"),
        ({"parameters": -3, "flops": 1}, r"parameters: got -3, allowed is a whole number at least 0"),
        ({"layers": [3]}, "layers.0: got 3, allowed is a mapping of name, parameters, flops"),
        ({"layers": [{"name": "a", "parameters": 1}]}, r"layers.0.flops: missing"),
        ({"parameters": 3, "flops": 1, "itemsize": 0}, "itemsize: got 0, allowed is one of 1, 2, 4, 8"),
        ({"parameters": 3, "flops": 1, "colour": 0}, "colour: got 0, but there is no such field"),
    ],
)
def test_a_bad_workload_is_refused_in_one_sentence(fields, complaint, tmp_path):
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(fields))
    with pytest.raises(BadExperiment, match=r"^cluster.stand_in_for: got 'bad.json', where " + complaint):
        workload(str(file))
    with pytest.raises(BadExperiment, match="^" + complaint):
        Workload(name="bad", **fields)


def test_an_unknown_workload_is_refused_with_those_there_are():
    with pytest.raises(
        BadExperiment, match="^cluster.stand_in_for: got 'resnet51', allowed is one of alexnet, vgg16"
    ):
        workload("resnet51")
