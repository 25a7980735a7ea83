"""A network whose images lie on several ranks in pieces is the network: the same losses, weights and FLOPs."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from simulations import cluster, run, trained
from torch import nn

import dlpar
from dlpar import Experiment, models
from dlpar.comm import Recorder
from dlpar.config.experiment import BadExperiment
from dlpar.config.split import most_pieces
from dlpar.split.mesh import Mesh
from dlpar.split.spatial import cut_images
from dlpar.theory.counts import closed_form
from dlpar.theory.layers import halo
from dlpar.train import serve, train
from dlpar.worlds.simulated.run import of_experiment, run_program

CNN = dict(
    model={"name": "cnn", "width": 64, "depth": 2}, batch=25, steps=20, evaluate_every=1000, dtype="float64"
)
SPATIAL = {"kind": "spatial", "rows": 2, "columns": 2}


class Losses(Recorder):
    """Keeps each step's loss and the number of its samples."""

    def __init__(self) -> None:
        self.kept = []

    def step(self, step: int, **facts) -> None:
        self.kept.append((None if facts["loss"] is None else float(facts["loss"]), facts["samples"]))


def trained_in_memory(**fields) -> tuple[np.ndarray, list[torch.Tensor]]:
    """Losses of the replicas' steps, and every worker's weights in the end; in the simulated world."""
    experiment = Experiment(**{**CNN, **fields}, cluster={"world": "simulated"})

    def program(comm):
        record = Losses()
        if comm.rank >= experiment.workers:
            return serve(comm, experiment, record)
        model = train(comm, experiment, record)
        return record.kept, nn.utils.parameters_to_vector(model.parameters()).detach().clone()

    ranks = run_program(*of_experiment(experiment), program, patience=60)[: experiment.workers]
    told = [[(loss, n) for loss, n in step if n] for step in zip(*(kept for kept, _ in ranks))]
    assert all(len(step) == experiment.replicas for step in told)  # one rank speaks for each
    losses = [sum(loss * n for loss, n in step) / sum(n for _, n in step) for step in told]
    return np.array(losses), [weights for _, weights in ranks]


@cache
def alone(dtype: str = "float64") -> tuple[np.ndarray, torch.Tensor]:
    losses, (weights,) = trained_in_memory(workers=1, dtype=dtype)
    assert losses[-1] < losses[0]  # it does learn
    return losses, weights


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows, columns, replicas",
    [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (4, 1, 1), (3, 1, 1), (2, 1, 2), (2, 2, 2)],
)
def test_training_in_pieces_is_training_in_one_process(rows, columns, replicas):
    expected, weights = alone()
    split = {"kind": "spatial", "rows": rows, "columns": columns}
    losses, ranks = trained_in_memory(workers=rows * columns * replicas, split=split)
    assert np.max(np.abs(losses - expected) / expected) < 1e-9
    assert max((own - weights).abs().max() for own in ranks) < 1e-8
    assert all(torch.equal(own, ranks[0]) for own in ranks)  # to the last bit


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        dict(split={"order": "columns,data,rows"}),
        dict(sync={"scheme": "ps", "servers": 4}),
        dict(sync={"scheme": "gossip", "topology": "complete"}),
        dict(sync="mapreduce"),
    ],
    ids=lambda fields: str(next(iter(fields.values()))),
)
def test_replicas_in_pieces_agree_by_any_scheme_and_lie_in_any_order(fields):
    expected, weights = alone()
    split = {**SPATIAL, **fields.pop("split", {})}
    losses, ranks = trained_in_memory(workers=8, split=split, **fields)
    assert np.max(np.abs(losses - expected) / expected) < 1e-9
    assert max((own - weights).abs().max() for own in ranks) < 1e-8


def test_a_replica_without_samples_waits_for_nobody_and_adds_nothing():
    sync = {"scheme": "mapreduce", "fraction": 0.1}
    fields = {**CNN, "sync": sync, "cluster": {"world": "simulated"}, "steps": 10}
    weights = []
    for split in ({"split": "data", "workers": 2}, {"split": {"kind": "spatial", "rows": 2}, "workers": 4}):
        experiment = Experiment(**fields, **split)
        program = lambda comm: (
            nn.utils.parameters_to_vector(train(comm, experiment, Recorder()).parameters()).detach().clone()
        )
        weights += run_program(*of_experiment(experiment), program, patience=60)[:1]
    assert (weights[0] - weights[1]).abs().max() < 1e-8


def test_bytes_and_messages_of_a_step_are_the_sum_of_their_closed_forms(tmp_path):
    """Two layers of 4 channels: halos of 1 × 8 × 8 images forward, of 4 × 4 × 4 ones forward and backward."""
    made = trained(
        tmp_path / "run", workers=4, split=SPATIAL, **{**CNN, "model": {"name": "cnn", "width": 32}}
    )
    corner = dict(radius=1, vertical=1, horizontal=1)
    halos = [halo(25, 1, 4, 4, **corner), halo(25, 4, 2, 2, **corner), halo(25, 4, 2, 2, **corner)]
    gathered = closed_form("ring_allgather", 4, 25 * 4 * 4 * 4, 8)
    summed = closed_form("ring", 4, (9 + 1) * 4 + (4 * 9 + 1) * 4, 8)  # weights and biases of both
    elements, messages = (sum(one) for one in zip(*[(h.elements, h.messages) for h in halos]))
    assert (made.steps["bytes"] == 8 * elements + (gathered.bytes + summed.bytes) / 4).all()
    assert (made.steps["messages"] == messages + (gathered.messages + summed.messages) / 4).all()


def test_the_flops_of_a_step_are_shared_out_but_for_those_of_the_last_layer(tmp_path):
    def computing(name: str, **fields) -> float:
        spans = trained(tmp_path / name, **{**CNN, "steps": 1, **fields}).spans
        mine = spans[spans["name"].isin(["forward", "backward"]) & (spans["rank"] == 0)]
        return (mine["end"] - mine["start"]).sum()

    # A sample's; the last sees whole images.
    in_pieces, last = (6 * 64 * 9 * 8 + 6 * 16 * 8 * 9 * 8, 6 * 10 * 8 * 16)
    share = computing("shared", workers=4, split=SPATIAL) / computing("whole", workers=1)
    assert share == pytest.approx((in_pieces / 4 + last) / (in_pieces + last), rel=1e-6)


def test_the_timeline_shows_exchanges_beside_computing_and_no_two_things_at_a_time(tmp_path):
    spans = trained(tmp_path / "run", workers=4, split=SPATIAL, **CNN).spans
    for _, own in spans[spans["name"] != "evaluate"].groupby("rank"):
        assert {"forward", "halo", "gather", "backward", "reduce", "update"} <= set(own["name"])
        own = own.sort_values("start")
        assert (own["start"].to_numpy()[1:] >= own["end"].to_numpy()[:-1] - 1e-12).all()


@pytest.mark.slow
@pytest.mark.parametrize("world, dtype, bound", [("real", "float64", 1e-9), ("paced", "float32", 1e-4)])
def test_processes_train_in_pieces_as_one_does(world, dtype, bound):
    fields = {**CNN, "dtype": dtype, "cluster": {"world": world}}
    made = dlpar.launch(Experiment(workers=4, split=SPATIAL, **fields)).wait(60)
    expected, _ = alone(dtype)
    assert np.max(np.abs(made.curve["loss"].to_numpy() - expected) / expected) < bound
    assert set(made.steps["messages"]) == {3 + 3 + 3 + 3 + 6}


@pytest.mark.parametrize(
    "fields, sentence",
    [
        (dict(model="mlp"), "model.name: got 'mlp', allowed with split spatial is cnn: it cuts images"),
        (
            dict(model={"name": "cnn", "norm": "batch"}),
            "model.norm: got 'batch', allowed with split spatial is none",
        ),
        (
            dict(split={"kind": "spatial", "rows": 8}, workers=8),
            "split.rows: got 8, allowed with a cnn of depth 2 on digits is at most 4",
        ),
        (
            dict(split={"kind": "spatial", "columns": 8}, workers=8),
            "split.columns: got 8, allowed with a cnn of depth 2 on digits is at most 4",
        ),
        (dict(sync={"overlap": True}), "sync.overlap: got True, allowed with split spatial is False"),
        (
            dict(workers=8, split=SPATIAL, sync={"scheme": "ps", "servers": 4, "consistency": "asp"}),
            "sync.consistency: got 'asp', allowed with split spatial is bsp: its ranks hold the same weights",
        ),
        (
            dict(workers=8, split=SPATIAL, sync={"scheme": "gossip", "exchange": "pairwise"}),
            "sync.exchange: got 'pairwise', allowed with split spatial is neighbours",
        ),
        (
            dict(cluster={"world": "simulated", "messages": "sizes"}),
            "cluster.messages: got 'sizes', allowed with split spatial is values",
        ),
        (
            dict(cluster={"world": "simulated", "stand_in_for": "resnet101"}),
            "cluster.stand_in_for: got 'resnet101', allowed with split spatial is nothing",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_sentence(fields, sentence):
    with pytest.raises(BadExperiment) as refused:
        Experiment(**{"model": "cnn", "workers": 2, "split": "spatial", **fields})
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("data, size, channels", [("digits", 8, 1), ("mnist", 28, 1), ("cifar10", 32, 3)])
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_an_experiment_allows_as_many_pieces_as_the_network_it_builds(data, size, channels, depth):
    dataset = SimpleNamespace(shape=(channels, size, size), classes=10, task="classification")
    model = models.build(Experiment(model={"name": "cnn", "width": 32, "depth": depth}), dataset)
    largest = most_pieces(data, depth)

    def works(pieces: int) -> bool:
        try:
            layers = lambda comm: cut_images(model, Mesh(comm, {"rows": pieces, "columns": 1}), size, size)
            return all(run(layers, pieces, cluster(), computes=False))
        except ValueError:
            return False

    assert works(largest) and not works(largest + 1)


@pytest.mark.parametrize("after", [[nn.Dropout(0.0), nn.Linear(256, 3)], [nn.Linear(256, 3), nn.Softmax(1)]])
def test_whole_images_may_be_followed_by_any_layers(after):
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Flatten(), *after)
    x = torch.randn(2, 1, 8, 8)

    def program(comm) -> torch.Tensor:
        rows = slice(4 * comm.rank, 4 * comm.rank + 4)
        return cut_images(model, Mesh(comm, {"rows": 2, "columns": 1}), 8, 8)(x[:, :, rows])

    for found in run(program, 2):
        torch.testing.assert_close(found, model(x))


def test_images_that_never_become_whole_are_refused():
    with pytest.raises(ValueError, match="^model: got no Flatten, allowed is one after"):
        run(lambda comm: cut_images(nn.Sequential(nn.ReLU()), Mesh(comm, {"rows": 2, "columns": 1}), 8, 8), 2)
