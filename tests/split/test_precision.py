"""Mixed precision: products in bfloat16 train as well, and what passes send is half as long."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
import torch
from simulations import run
from simulations import trained as simulated
from trained_ranks import SMALL, apart, trained

from dlpar import BadExperiment, Experiment
from dlpar.cli import main
from dlpar.lab.figures.probes import sent
from dlpar.theory.layers import BOUNDARY, SHARED, boundary_elements, elements_by_layer

CLOSE = 1e-2
"""Relative, of losses: bfloat16 rounds to 8 bits, 0.4 %."""

MIXED = dict(dtype="float32", lr=0.02, precision="bf16")
PIPELINE = {"kind": "pipeline", "microbatches": 3}
SPLITS = {
    "data": dict(workers=4),
    "micro-batches": dict(workers=2, split={"microbatches": 3}),
    "zero 1": dict(workers=2, split={"zero": 1}),
    "tensor": dict(workers=2, split="tensor"),
    "gpipe": dict(workers=2, split={**PIPELINE, "schedule": "gpipe"}),
    "zb-h1": dict(workers=2, split={**PIPELINE, "schedule": "zb-h1"}),
    "recomputed": dict(workers=2, split={**PIPELINE, "recompute": True}),
    "hybrid": dict(workers=4, split={"kind": "hybrid", "microbatches": 3}),
}
SPATIAL = dict(workers=2, split="spatial")
CASES = [
    *(("mlp", name) for name in SPLITS),
    ("cnn", "tensor"),
    ("cnn", "zb-h1"),
    ("cnn", "spatial"),
    ("transformer", "tensor"),
    ("transformer", "zb-h1"),
    ("transformer", "hybrid"),
]


@pytest.fixture(scope="module")
def alone():
    """Losses of one process: in full, and with products in bfloat16."""
    return {
        (model, precision): trained(workers=1, **SMALL[model], **{**MIXED, "precision": precision}).losses
        for model in SMALL
        for precision in ("full", "bf16")
    }


@pytest.mark.slow
@pytest.mark.parametrize("model", SMALL)
def test_losses_are_nearly_those_of_full_precision(alone, model):
    assert 0 < apart(alone[model, "full"], alone[model, "bf16"]) < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize(("model", "name"), CASES)
def test_every_split_gives_the_losses_of_one_process_and_keeps_weights_in_full(alone, model, name):
    found = trained(**SMALL[model], **MIXED, **(SPATIAL if name == "spatial" else SPLITS[name]))
    assert apart(alone[model, "bf16"], found.losses) < CLOSE
    assert found.weights.dtype == torch.float32
    assert (found.weights != found.weights.bfloat16()).any()


def test_synchronised_batch_normalisation_keeps_its_statistics_in_full():
    fields = dict(model={"name": "mlp", "width": 32, "norm": "sync_batch"}, batch=30, **MIXED)
    assert apart(trained(workers=1, **fields).losses, trained(workers=3, **fields).losses) < CLOSE


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("mlp", "tensor"),
        ("mlp", "gpipe"),
        ("cnn", "tensor"),
        ("cnn", "spatial"),
        ("transformer", "tensor"),
        ("transformer", "gpipe"),
        ("transformer", "hybrid"),
    ],
)
def test_passes_send_two_bytes_an_element_and_gradients_of_weights_four(model, name):
    experiment = Experiment(
        **SMALL[model], precision="bf16", **(SPATIAL if name == "spatial" else SPLITS[name])
    )
    ranks = run(lambda comm: sent(comm, experiment), experiment.workers)
    found = defaultdict(int)
    for rank in ranks:
        for (place, _), nbytes in rank.bytes.items():
            found[place] += nbytes
    elements = elements_by_layer(experiment)
    for place in found:
        if place.startswith(BOUNDARY):
            elements[place] = boundary_elements(experiment, place.removeprefix(BOUNDARY))
    assert elements and found == {place: n * (4 if place == SHARED else 2) for place, n in elements.items()}


@pytest.mark.slow
def test_digits_are_learnt_as_well(tmp_path):
    assert simulated(tmp_path / "run", workers=2, batch=64, precision="bf16").summary["accuracy"] >= 0.94


def test_pipelines_without_numbers_send_as_many_bytes(tmp_path):
    fields = dict(
        workers=4,
        model={"depth": 4},
        steps=2,
        precision="bf16",
        split={"kind": "pipeline", "microbatches": 4},
    )
    found = [
        simulated(tmp_path / kind, cluster={"messages": kind}, **fields).steps for kind in ("values", "sizes")
    ]
    values, sizes = (steps.sort_values(["step", "rank"])["bytes"].tolist() for steps in found)
    # Steps, boundaries, ways, samples, width, bytes.
    assert values == sizes and sum(values) == 2 * 3 * 2 * 256 * 256 * 2


@pytest.mark.slow
def test_real_ranks_train_so_from_the_command_line(capsys):
    words = "run --workers 2 --steps 20 --batch 60 --lr 0.02 --width 32 --precision bf16 --json"
    assert main(words.split()) == 0
    said = json.loads(capsys.readouterr().out)
    fields = dict(model={"name": "mlp", "width": 32}, batch=60, **MIXED)
    assert said["final_loss"] == pytest.approx(trained(workers=2, **fields).losses[-1], rel=CLOSE)


REFUSED = [
    (dict(precision="half"), "precision: got 'half', allowed is one of full, tf32, bf16"),
    (dict(dtype="float64"),
     "precision: got 'bf16', allowed with dtype float64 is full: mixed precision is of float32 and bfloat16"),
    (dict(split={"zero": 3}),
     "precision: got 'bf16', allowed with zero 3 is full or tf32: bfloat16 copies would outlive the released weights"),
    (dict(workers=2, split={"kind": "tensor", "redundancy": 0.5}),
     "precision: got 'bf16', allowed with redundancy 0.5 is full or tf32: copies of neurons are sent unchanged"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "sentence"), REFUSED)
def test_what_does_not_go_together_is_one_sentence(fields, sentence):
    with pytest.raises(BadExperiment) as refused:
        Experiment(**{"precision": "bf16", **fields})
    assert str(refused.value) == sentence


def test_it_survives_json():
    experiment = Experiment(precision="bf16")
    assert Experiment.from_json(experiment.to_json()) == experiment
