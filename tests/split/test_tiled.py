"""Tiled convolutions: no halo and no sum of weights' gradients, the network of a definition in one process."""

from __future__ import annotations

import pytest
import torch
from simulations import trained

from dlpar import Experiment, launch
from dlpar.config.experiment import BadExperiment
from dlpar.data import load
from dlpar.data.sampler import Sampler
from dlpar.models import build
from dlpar.split.spatial import Tiled

CNN = dict(
    model={"name": "cnn", "width": 64, "depth": 2}, batch=24, steps=8, evaluate_every=1000, dtype="float64"
)
TILES = {"kind": "spatial", "rows": 2, "columns": 2, "tiled": True}


def by_hand(sizes: dict[str, int], **fields) -> tuple[list[float], Tiled]:
    """Losses and network of one process that trains a convolution for each tile, and one classifier for all."""
    experiment = Experiment(workers=1, **{**CNN, **fields})
    data = load(experiment.data, experiment.seed, torch.float64, "cnn")
    sampler = Sampler(experiment, data.train_y, len(data.train_x))
    nets = [build(experiment, data) for _ in range(sizes["rows"] * sizes["columns"])]
    network = Tiled(nets, sizes)
    for tile in nets[1:]:
        tile[-1] = nets[0][-1]
    rule, losses = torch.optim.SGD(network.parameters(), experiment.lr), []
    for step in range(experiment.steps):
        x, y = data.batch(sampler.indices(step, 0))
        loss = torch.nn.functional.cross_entropy(network(x), y)
        rule.zero_grad()
        loss.backward()
        rule.step()
        losses.append(loss.item())
    return losses, network


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (4, 1), (1, 2)])
def test_tiles_on_ranks_train_as_one_process_trains_them(rows, columns, tmp_path):
    losses, network = by_hand({"rows": rows, "columns": columns})
    split = {**TILES, "rows": rows, "columns": columns}
    run = trained(tmp_path / "run", workers=rows * columns, split=split, **CNN)
    assert run.curve["loss"].to_numpy() == pytest.approx(losses, rel=1e-9)
    data = load(run.experiment.data, 0, torch.float64, "cnn")
    right = (network(data.test_x).argmax(1) == data.test_y).double().mean().item()
    assert run.summary["accuracy"] == pytest.approx(right)


def test_replicas_of_tiles_train_as_one_set_of_tiles(tmp_path):
    losses, _ = by_hand({"rows": 2, "columns": 1})
    run = trained(tmp_path / "run", workers=4, split={**TILES, "columns": 1}, **CNN)
    assert run.curve["loss"].to_numpy() == pytest.approx(losses, rel=1e-9)


def test_bytes_fall_to_those_that_put_images_together_and_parameters_grow(tmp_path):
    spatial, tiled = (
        trained(tmp_path / str(way), workers=4, split={**TILES, "tiled": way}, **CNN) for way in (False, True)
    )
    # What is left: a ring passes each rank's 8 channels of 2 x 2 positions on, three times.
    left = CNN["steps"] * 4 * 3 * CNN["batch"] * 8 * 2 * 2 * 8
    assert tiled.steps["bytes"].sum() == left < 0.7 * spatial.steps["bytes"].sum()
    assert "halo" in set(spatial.spans["name"]) and "halo" not in set(tiled.spans["name"])
    _, network = by_hand({"rows": 2, "columns": 2}, steps=1)
    one = build(Experiment(workers=1, **CNN), load(tiled.experiment.data, 0, torch.float64, "cnn"))
    convolutions = sum(p.numel() for p in one[:-1].parameters())
    assert (
        sum(p.numel() for p in network.parameters())
        == sum(p.numel() for p in one.parameters()) + 3 * convolutions
    )


@pytest.mark.slow
def test_tiles_train_on_real_processes_and_learn():
    fields = {**CNN, "steps": 150, "dtype": "float32", "batch": 64}
    run = launch(Experiment(workers=4, split=TILES, **fields)).wait(60)
    assert run.summary["accuracy"] > 0.85


@pytest.mark.parametrize(
    "fields",
    [{"split": {**TILES, "rows": 3, "columns": 1}, "workers": 3}, {"split": TILES, "data": "mnist"}],
    ids=str,
)
def test_tiles_that_are_not_equal_are_refused_in_a_sentence(fields):
    with pytest.raises(BadExperiment, match="^[^\n]*(tiled|power of two)[^\n]*$"):
        Experiment(**{**CNN, "workers": 4, **fields})
