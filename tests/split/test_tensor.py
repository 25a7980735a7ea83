"""Tensor parallelism: layers cut over ranks compute what one process does, and send what the formulas say."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache, partial

import numpy as np
import pytest
import torch
from simulations import cluster, run
from torch import nn

import dlpar
from dlpar import Experiment, models
from dlpar.config.experiment import BadExperiment
from dlpar.data import load
from dlpar.jobs.record import Recorder
from dlpar.lab.figures.probes import prepared
from dlpar.split.tensor import TensorSplit, cut_layers
from dlpar.split.tensor_ops import TensorGroup
from dlpar.theory import Link, collective_seconds
from dlpar.theory.layers import exchanges, payload, redundant_pieces, transformer_layer_elements
from dlpar.train import serve, train
from dlpar.worlds.platforms import Device
from dlpar.worlds.simulated.run import of_experiment, run_program

STEPS = 20
TEXT = {"name": "docstrings", "context": 8}
MODELS = {
    "mlp, output by inputs": dict(model={"width": 24, "depth": 1}, batch=13),
    "mlp, output by classes": dict(model={"width": 24, "depth": 2}, batch=13),
    "mlp, one target": dict(model={"width": 24, "depth": 2}, data="diabetes", batch=13),
    "cnn, output by classes": dict(model={"name": "cnn", "width": 64, "depth": 2}, batch=9),
    "cnn, output by channels": dict(model={"name": "cnn", "width": 64, "depth": 3}, batch=9),
    "transformer": dict(model={"name": "transformer", "width": 16, "depth": 2}, data=TEXT, batch=6),
}
EVERY = pytest.mark.parametrize("name", MODELS)


class Lines:
    """What ranks would write to their file."""

    def __init__(self) -> None:
        self.all: list[dict] = []

    def add(self, record: dict, soon: bool = False) -> None:
        self.all.append(record)


def simulated(**fields) -> tuple[np.ndarray, list[np.ndarray], list[dict]]:
    """Loss of every step, final weights, and records of steps of a training in the simulated world."""
    world = {"world": "simulated", **fields.pop("cluster", {})}
    experiment = Experiment(
        **{"steps": STEPS, "evaluate_every": 1000, "dtype": "float64", **fields}, cluster=world
    )
    simulator, comms = of_experiment(experiment)
    lines = Lines()

    def program(comm) -> nn.Module:
        return (train if comm.rank < experiment.workers else serve)(
            comm, experiment, Recorder("", comm, lines)
        )

    trained = run_program(simulator, comms, program, patience=20)
    steps = [line for line in lines.all if line["k"] == "step" and "loss" in line]
    loss = np.zeros(experiment.steps)
    for line in steps:
        if line["samples"]:
            loss[line["step"]] += line["loss"] * line["samples"] / experiment.global_batch
    return loss, [parameter.detach().numpy() for parameter in trained[0].parameters()], steps


@cache
def alone(name: str, dtype: str = "float64") -> tuple[np.ndarray, list[np.ndarray]]:
    loss, weights, _ = simulated(workers=1, dtype=dtype, **MODELS[name])
    assert loss[-5:].mean() < loss[:5].mean()  # it does learn
    return loss, weights


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Largest relative difference."""
    return float(np.max(np.abs(a - b) / np.abs(a)))


def same_as_alone(name: str, **fields) -> list[dict]:
    """Train and compare with one process, losses and final weights; records of steps."""
    loss, weights, steps = simulated(**{**MODELS[name], **fields})
    assert apart(alone(name)[0], loss) < 1e-9
    for ours, theirs in zip(weights, alone(name)[1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)
    return steps


def sent(steps: list[dict]) -> tuple[int, int]:
    """Messages and elements, of 8 bytes each, of all ranks in a step, which must be the same in all steps."""
    totals = set()
    for step in range(STEPS):
        lines = [line for line in steps if line["step"] == step]
        totals.add((sum(line["messages"] for line in lines), sum(line["bytes"] for line in lines) / 8))
    assert len(totals) == 1
    return totals.pop()


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_cut_model_gives_the_losses_and_weights_of_one_process_and_sends_what_the_formula_says(name, ranks):
    split = {"kind": "tensor"}
    steps = same_as_alone(name, workers=ranks, split=split)
    experiment = Experiment(**MODELS[name], workers=ranks, split=split)
    assert sent(steps) == payload(exchanges(experiment), ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp, output by classes", "cnn, output by channels", "transformer"])
def test_float32_losses_stay_within_1e_4(name):
    loss, _, _ = simulated(workers=2, split="tensor", dtype="float32", **MODELS[name])
    assert apart(alone(name, "float32")[0], loss) < 1e-4


@pytest.mark.slow
def test_one_more_block_costs_each_device_what_megatron_says():
    fields = dict(data=TEXT, batch=6, workers=4, split="tensor", steps=2)
    blocks = {
        depth: simulated(model={"name": "transformer", "width": 16, "depth": depth}, **fields)[2]
        for depth in (1, 2)
    }
    one, two = ({line["rank"]: line for line in steps if line["step"] == 1} for steps in blocks.values())
    for rank in range(4):
        assert two[rank]["bytes"] - one[rank]["bytes"] == 8 * transformer_layer_elements(6, 8, 16, ranks=4)
        assert two[rank]["messages"] - one[rank]["messages"] == 4 * 2 * (4 - 1)


@pytest.mark.slow
def test_characters_that_do_not_divide_among_ranks_are_dealt_out():
    fields = dict(model={"name": "transformer", "width": 20, "depth": 1, "heads": 5}, data=TEXT, batch=6)
    loss, weights, _ = simulated(workers=1, **fields)
    cut_loss, cut_weights, steps = simulated(workers=5, split="tensor", **fields)
    assert apart(loss, cut_loss) < 1e-9
    assert all(np.allclose(a, b, rtol=0, atol=1e-8) for a, b in zip(weights, cut_weights, strict=True))
    assert sent(steps) == payload(exchanges(Experiment(workers=5, split="tensor", **fields)), 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "order, sync",
    [
        ("data,tensor", {"scheme": "ring", "overlap": True, "bucket_mb": 0.002}),
        ("tensor,data", {"scheme": "ps", "servers": 2}),
        ("data,tensor", {"scheme": "mapreduce"}),
    ],
    ids=str,
)
def test_replicas_of_a_cut_model_agree_by_any_scheme(order, sync):
    same_as_alone("transformer", workers=4, split={"kind": "tensor", "tensor": 2, "order": order}, sync=sync)


def copies_after_a_step(comm, experiment: Experiment) -> list[np.ndarray]:
    """What a rank has of the weights all ranks hold copies of, after they were made to differ."""
    part = TensorSplit(prepared(comm, experiment))
    copies = [parameter for parameter in part.replica.model.parameters() if parameter.cut_along is None]
    for copy in copies:
        copy.data += comm.rank
    part.gradient(0)
    return [copy.detach().numpy() for copy in copies]


def test_copies_of_a_weight_are_made_equal_where_servers_add_updates_up_in_any_order():
    for consistency, equal in (("asp", True), ("bsp", False)):
        sync = {"scheme": "ps", "servers": 2, "consistency": consistency}
        experiment = Experiment(workers=2, split="tensor", sync=sync, **MODELS["transformer"])
        first, second = run(lambda comm: copies_after_a_step(comm, experiment), 2)
        assert first and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True)) is equal


@pytest.mark.slow
def test_asynchronous_replicas_of_a_cut_model_learn():
    sync = {"scheme": "ps", "servers": 2, "consistency": "asp"}
    *_, steps = simulated(
        workers=4, split={"kind": "tensor", "tensor": 2}, sync=sync, **MODELS["transformer"]
    )
    losses = [line["loss"] for line in sorted(steps, key=lambda line: line["t"]) if line["samples"]]
    assert np.mean(losses[-10:]) < np.mean(losses[:10])


# ---- sums that travel while the rank computes


@pytest.mark.parametrize("name", ["mlp, output by inputs", "mlp, output by classes", "transformer"])
def test_sums_beside_the_gradients_of_weights_change_neither_losses_nor_bytes(name):
    plain, beside = ({"kind": "tensor", "async_allreduce": is_async} for is_async in (False, True))
    steps = same_as_alone(name, workers=2, split=beside)
    assert sent(steps) == payload(exchanges(Experiment(**MODELS[name], workers=2, split=plain)), 2)


@pytest.mark.parametrize("world", ["real", "paced"])
@pytest.mark.slow
def test_sums_beside_the_gradients_of_weights_in_processes(world):
    fields = dict(MODELS["transformer"], workers=2, steps=4, dtype="float64", evaluate_every=1000)
    split = {"kind": "tensor", "async_allreduce": True}
    alone = dlpar.launch(Experiment(**{**fields, "workers": 1})).wait()
    both = dlpar.launch(Experiment(**fields, split=split, cluster={"world": world})).wait(60)
    assert both.curve["loss"].to_numpy() == pytest.approx(alone.curve["loss"].to_numpy(), rel=1e-12)


def test_what_is_hidden_is_the_shorter_of_sum_and_product():
    """A pair of equal layers behind another pair: one sum of 512 x 1024 floats beside one product."""
    near, far = Link(3e-6, 1e11), Link(3e-6, 1e9)
    for link in (near, far):
        simulator = cluster(4, link, device=Device(name="10 TFLOP/s", flops=1e13))

        def step(comm, is_async):
            torch.manual_seed(0)
            model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4)))
            part = cut_layers(model, TensorGroup(comm, async_allreduce=is_async))
            part(torch.ones(512, 1024)).sum().backward()
            return comm.now()

        waits, beside = (
            max(run(partial(step, is_async=is_async), 4, simulator)) for is_async in (False, True)
        )
        product, sums = 2 * 512 * 1024 * 256 / 1e13, collective_seconds("ring", 4, 4 * 512 * 1024, link)
        # The first layer's input needs no gradient: the first pair has one product less to compute.
        assert waits - beside == pytest.approx(min(product, sums) + product, rel=0.02)


# ---- overlapping neurons


@pytest.mark.parametrize("ranks, redundancy", [(2, 0.5), (4, 0.01), (4, 0.5), (4, 1.0)])
def test_overlapping_neurons_change_the_bytes_and_nothing_else(ranks, redundancy):
    split = {"kind": "tensor", "redundancy": redundancy}
    name = "mlp, output by classes"
    steps = same_as_alone(name, workers=ranks, split=split)
    assert sent(steps) == payload(exchanges(Experiment(**MODELS[name], workers=ranks, split=split)), ranks)


def test_a_batch_without_samples_leaves_overlapping_neurons_as_they_are():
    fields = {
        "steps": 20,
        "batch": 16,
        "model": {"width": 24},
        "dtype": "float64",
        "cluster": {"world": "simulated"},
    }
    sampled = Experiment(workers=1, sync={"scheme": "mapreduce", "fraction": 0.05}, **fields)
    cut = sampled.replace(workers=4, split={"kind": "tensor", "redundancy": 0.25})
    alone, four = (dlpar.launch(each).wait(60) for each in (sampled, cut))
    assert (alone.steps["samples"] == 0).any()
    assert four.curve["loss"].to_numpy() == pytest.approx(
        alone.curve["loss"].to_numpy(), rel=1e-12, nan_ok=True
    )


def test_redundancy_pays_where_a_batch_has_more_samples_than_a_neuron_has_weights():
    def pieces(batch: int, redundancy: float) -> tuple[int, int, int]:
        return redundant_pieces(batch, inputs=63, neurons=80, ranks=4, redundancy=redundancy)

    for batch, sign in ((32, 1), (64, 0), (128, -1)):
        assert np.sign(sum(pieces(batch, 0.5)) - sum(pieces(batch, 0))) == sign
    assert pieces(128, 0.5)[0] == pieces(128, 0)[0] / 2
    assert pieces(128, 1)[0] == 0


def computed(name: str, span: str, ranks: int, **split) -> float:
    """FLOPs of all ranks within a span of one step, as the simulated clock was charged."""
    fields = {**MODELS[name], "steps": 2}
    cluster = {"platform": "p100-25gbe"}
    *_, steps = simulated(workers=ranks, split={"kind": "tensor", **split}, cluster=cluster, **fields)
    experiment = Experiment(
        **fields, workers=ranks, split="tensor", cluster={"world": "simulated", **cluster}
    )
    per_flop = of_experiment(experiment)[1][0].pace.per_flop
    spans = [s for line in steps if line["step"] == 1 for s in line["spans"]]
    return sum(end - start for name, start, end, *_ in spans if name == span) / per_flop


def per_step(name: str) -> float:
    """FLOPs of the whole model for a batch, forward and backward."""
    experiment = Experiment(**MODELS[name])
    dataset = load(experiment.data, 0, torch.float32, experiment.model.name)
    return models.flops_per_sample(models.build(experiment, dataset), dataset) * experiment.batch


@pytest.mark.slow
@EVERY
def test_ranks_share_the_operations_of_the_model_and_do_none_twice(name):
    assert computed(name, "forward", 2) == pytest.approx(per_step(name) / 3, rel=1e-6)
    assert computed(name, "backward", 2) == pytest.approx(per_step(name) * 2 / 3, rel=1e-6)


def test_redundant_operations_are_charged():
    name = "mlp, output by classes"
    neurons = 12 + 6  # a rank's own, and half of the other's
    hidden, output = sum(2 * 13 * inputs * neurons for inputs in (64, 24)), 2 * 13 * 24 * 10
    forward = 2 * hidden + output
    assert computed(name, "forward", 2, redundancy=0.5) == pytest.approx(forward)
    assert computed(name, "backward", 2, redundancy=0.5) == pytest.approx(per_step(name) * 2 / 3)


# ---- a part of a model


def outputs_and_gradients(comm, experiment: Experiment) -> float:
    """The largest difference between a model and itself cut in two stages, each over all ranks, for every place."""
    dataset = load(experiment.data, 0, torch.float64, experiment.model.name)
    model = models.build(experiment, dataset)
    layers, x, worst = list(model.named_children()), dataset.train_x[:3], 0.0
    for place in range(1, len(layers)):
        whole, pieces = [nn.Sequential(OrderedDict(part)) for part in (layers[:place], layers[place:])], []
        between = whole[0](x).detach()
        for stage, given in zip(whole, (x, between)):
            ends = []
            for one in (stage, cut_layers(stage, TensorGroup(comm))):
                into = given.clone().requires_grad_(given.is_floating_point())
                output = one(into)
                (output * torch.linspace(0, 1, output.shape[-1])).sum().backward()
                ends.append((output, into.grad))
            pieces += [(a - b).abs().max().item() for a, b in zip(*ends) if a is not None]
        worst = max(worst, *pieces)
    return worst


@pytest.mark.parametrize("name", ["mlp, output by classes", "cnn, output by channels", "transformer"])
def test_any_row_of_layers_can_be_cut_by_itself(name):
    experiment = Experiment(**MODELS[name], dtype="float64")
    assert max(run(lambda comm: outputs_and_gradients(comm, experiment), 2)) < 1e-9


# ---- other worlds


@pytest.mark.slow
@pytest.mark.parametrize("world", ["real", "paced"])
def test_real_processes_train_a_cut_model_and_count_the_same_bytes(world):
    fields = dict(
        MODELS["transformer"], dtype="float64", steps=STEPS, workers=4, split={"kind": "tensor", "tensor": 2}
    )
    run = dlpar.launch(Experiment(**fields, evaluate_every=10, cluster={"world": world})).wait(60)
    assert apart(alone("transformer")[0], run.curve["loss"].to_numpy()) < 1e-9
    *_, steps = simulated(**fields)
    by_rank = run.steps[run.steps["step"] == 5].set_index("rank").sort_index()
    expected = {line["rank"]: line for line in steps if line["step"] == 5}
    assert by_rank["bytes"].tolist() == [expected[rank]["bytes"] for rank in range(4)]
    assert by_rank["messages"].tolist() == [expected[rank]["messages"] for rank in range(4)]
    assert (by_rank["comm"] + by_rank["wait"] > 0).all()  # messages within a pass are no computing


# ---- what is refused


@pytest.mark.parametrize(
    "fields, sentence",
    [
        (
            dict(workers=3, model={"width": 256}),
            "split.tensor: got 3, allowed is a divisor of the model's width, 256",
        ),
        (
            dict(workers=8, model="transformer", data="docstrings"),
            "split.tensor: got 8, allowed is a divisor of the model's heads, 4",
        ),
        (
            dict(workers=3, model={"name": "cnn", "width": 64}),
            "split.tensor: got 3, allowed is a divisor of the model's channels, 8",
        ),
        (
            dict(workers=2, model="logistic"),
            "model.name: got 'logistic', allowed with split tensor is mlp, cnn or transformer: "
            "others are a single layer",
        ),
        (
            dict(workers=2, model="cnn", split={"kind": "tensor", "redundancy": 0.5}),
            "model.name: got 'cnn', allowed with redundancy 0.5 is mlp: neurons of an mlp overlap",
        ),
        (
            dict(workers=2, compression="topk"),
            "compression.codec: got 'topk', allowed with split tensor is none: a codec would "
            "round copies of a weight differently",
        ),
        (
            dict(workers=2, cluster={"world": "simulated", "messages": "sizes"}),
            "cluster.messages: got 'sizes', allowed with split tensor is values: layers send what they compute",
        ),
        (
            dict(workers=2, cluster={"world": "simulated", "stand_in_for": "gpt2"}),
            "cluster.stand_in_for: got 'gpt2', allowed with split tensor is nothing: it sends activations, and a "
            "workload lists parameters",
        ),
    ],
)
def test_what_a_tensor_split_cannot_do_is_refused_in_one_sentence(fields, sentence):
    with pytest.raises(BadExperiment) as refused:
        Experiment(**{"split": "tensor", **fields})
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)],
        [nn.Linear(8, 6), nn.PReLU(6), nn.Linear(6, 4)],
        [nn.Linear(8, 6), nn.Softmax(1), nn.Linear(6, 4)],
        [nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4), nn.Dropout(0.5)],
        [nn.Conv2d(4, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 4, 3)],
    ],
    ids=lambda layers: type(layers[1]).__name__,
)
def test_layers_that_would_be_wrong_in_pieces_are_refused(layers):
    with pytest.raises(
        ValueError, match=r"^model: got .*\), allowed here is a layer that can be cut, or copied$"
    ):
        run(lambda comm: cut_layers(nn.Sequential(*layers), TensorGroup(comm)), 2)


def test_one_rank_has_nothing_to_cut():
    same_as_alone("transformer", workers=2, split={"kind": "tensor", "tensor": 1})
