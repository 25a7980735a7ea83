"""ZeRO: the same training with an N-th of the state, or of all, on each rank; and gradient accumulation."""

from __future__ import annotations

import sys
from functools import cache

import pytest
import torch
from simulations import cluster
from simulations import trained as run_of
from trained_ranks import Trained, apart, trained

import dlpar
from dlpar import BadExperiment, Experiment
from dlpar.cli import flags
from dlpar.split.split import backward, propagate
from dlpar.theory import Link, predict, zero_bytes
from dlpar.worlds.platforms import Device

SMALL = {
    "mlp": dict(model={"name": "mlp", "width": 24}, batch=30, optimizer="adam", lr=0.01),
    "cnn": dict(model={"name": "cnn", "width": 64, "depth": 2}, batch=13, optimizer="momentum", lr=0.01),
    "transformer": dict(
        model={"name": "transformer", "width": 16, "depth": 2}, data={"name": "docstrings", "context": 8}, batch=7,
        optimizer="adam", lr=0.01,
    ),
}  # fmt: skip
"""Odd batches on purpose: 4 workers get shares of different sizes.  Nor do their chunks of a layer."""


def split(zero: int = 0, microbatches: int = 1) -> dict:
    return {"kind": "data", "zero": zero, "microbatches": microbatches}


@cache
def alone(name: str) -> Trained:
    return trained(workers=1, **SMALL[name])


@cache
def on_four(name: str, zero: int) -> Trained:
    return trained(workers=4, split=split(zero), **SMALL[name])


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("name", SMALL)
def test_losses_and_weights_are_those_of_one_process(name, zero):
    assert alone(name).losses[-3:].mean() < alone(name).losses[:3].mean()  # it does learn
    for run in (trained(workers=2, split=split(zero), **SMALL[name]), on_four(name, zero)):
        assert apart(alone(name).losses, run.losses) < 1e-9
        assert (alone(name).weights - run.weights).abs().max() < 1e-8


@pytest.mark.parametrize("zero", [1, 3])
def test_float32_losses_stay_within_1e_4(zero):
    fields = {**SMALL["mlp"], "dtype": "float32", "optimizer": "sgd", "lr": 0.1}
    assert (
        apart(trained(workers=1, **fields).losses, trained(workers=4, split=split(zero), **fields).losses)
        < 1e-4
    )


VARIANTS = {
    "stage 1 overlapped, in small buckets": dict(split=split(1), sync={"overlap": True, "bucket_mb": 0.002}),
    "stage 1 by the library": dict(split=split(1), sync={"allreduce": "library"}),
    "stage 3 by the library": dict(split=split(3), sync={"allreduce": "library"}),
    "stage 3 overlapped": dict(split=split(3), sync={"overlap": True}),
    "stage 3 overlapped, by the library": dict(
        split=split(3), sync={"overlap": True, "allreduce": "library"}
    ),
    "stage 3 on one rank": dict(split=split(3), workers=1),
    "stage 3 with uneven shares": dict(split=split(3), shards="uneven", workers=3),
    "accumulated": dict(split=split(0, 4)),
    "accumulated, overlapped": dict(split=split(0, 4), sync={"overlap": True, "bucket_mb": 0.002}),
    "accumulated, stage 1 overlapped": dict(split=split(1, 4), sync={"overlap": True, "bucket_mb": 0.002}),
    "accumulated, stage 3": dict(split=split(3, 4)),
    "accumulated, stage 3 overlapped": dict(split=split(3, 4), sync={"overlap": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_no_way_to_share_out_or_to_accumulate_changes_the_losses(name):
    """A worker's share of 10 is cut into micro-batches of 3, 3, 2 and 2."""
    variant = {"workers": 3, **SMALL["mlp"], **VARIANTS[name]}
    one = (
        trained(workers=1, **SMALL["mlp"])
        if "uneven" not in name
        else trained(**{**variant, "split": split()})
    )
    assert apart(one.losses, trained(**variant).losses) < 1e-9


def test_synchronised_batch_normalisation_goes_with_stage_3():
    fields = {**SMALL["cnn"], "model": {**SMALL["cnn"]["model"], "norm": "sync_batch"}}
    assert (
        apart(trained(workers=1, **fields).losses, trained(workers=2, split=split(3), **fields).losses) < 1e-9
    )


def sent(run: Trained) -> tuple[list[int], list[int]]:
    """Bytes and messages of each rank in the last step."""
    last = [steps[-1] for steps in run.facts]
    return [r["bytes"] for r in last], [r["messages"] for r in last]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_stage_1_sends_what_an_allreduce_sends_and_stage_3_half_as_much_again(name):
    plain = sent(on_four(name, 0))
    assert [sorted(counts) for counts in sent(on_four(name, 1))] == [sorted(counts) for counts in plain]
    n = sum(p.numel() for p in alone(name).models[0].parameters())
    assert sum(plain[0]) == zero_bytes(n, 4, 1, itemsize=8)
    with pytest.raises(ValueError, match="zero: got 7, allowed is 0, 1, 2 or 3"):
        zero_bytes(n, 4, 7, itemsize=8)
    assert sum(sent(on_four(name, 3))[0]) == 1.5 * sum(plain[0]) == zero_bytes(n, 4, 3, itemsize=8)


def test_stage_3_sends_3_messages_a_neighbour_and_layer_and_again_for_every_microbatch():
    run = on_four("mlp", 3)
    assert sent(run)[1] == [3 * 3 * 3] * 4  # three halves, three neighbours, three layers
    again = trained(workers=4, split=split(3, 2), **{**SMALL["mlp"], "steps": 1})
    assert sent(again)[1] == [2 * 27] * 4 and sum(sent(again)[0]) == 2 * sum(sent(run)[0])
    # Tied weights are used by the first layer and by the last, but are gathered and added up once a pass.
    tied = sent(on_four("transformer", 3))[1]
    assert tied == [3 * 3 * 5] * 4  # they, positions, two blocks, the last normalisation


def test_gradients_that_accumulate_are_sent_once():
    """Hooks that announce finished buckets are silent until the last micro-batch."""
    fields = {**SMALL["mlp"], "workers": 3, "steps": 2, "sync": {"overlap": True, "bucket_mb": 0.002}}
    assert sent(trained(split=split(0, 5), **fields)) == sent(trained(split=split(0, 1), **fields))


def test_weights_that_are_not_gathered_cannot_be_read():
    models = on_four("mlp", 3).models
    assert [sum(p.numel() for p in model.parameters()) > 0 for model in models] == [True, False, False, False]


def test_stage_1_takes_the_same_time_with_values_and_with_sizes():
    slow = dict(cluster={"platform": "p100-1gbe"}, workers=4, split=split(1), steps=3, **SMALL["mlp"])
    values, sizes = trained(**slow), trained(**{**slow, "cluster": {**slow["cluster"], "messages": "sizes"}})
    assert sent(values) == sent(sizes)
    assert [[r["t"] for r in steps] for steps in values.facts] == [
        [r["t"] for r in steps] for steps in sizes.facts
    ]


def test_stage_3_takes_time_where_it_sends(tmp_path):
    """Three halves of an all-reduce instead of two; three quarters less is updated, all else is computed as ever."""
    slow = cluster(4, Link(1e-4, 1e6), device=Device(name="slow", flops=1e8))
    fields = dict(
        workers=4, steps=3, dtype="float64", optimizer="sgd", batch=32, model={"name": "mlp", "width": 32}
    )
    runs = [run_of(tmp_path / str(zero), slow, split=split(zero), **fields).steps for zero in (0, 3)]
    plain, stage3 = (steps[steps["step"] == 2][["compute", "comm", "wait"]].mean() for steps in runs)
    n = (64 * 32 + 32) + (32 * 32 + 32) + (32 * 10 + 10)
    assert stage3["compute"] == pytest.approx(plain["compute"] - 3 / 4 * 2 * n / 1e8, rel=1e-3)
    talking = [part["comm"] + part["wait"] for part in (plain, stage3)]
    assert talking[1] == pytest.approx(1.5 * talking[0], rel=0.1)


@pytest.mark.parametrize("link", [Link(1e-4, 1e7), Link(1e-5, 1e8)], ids=["sends longer", "computes longer"])
def test_stage_3_overlapped_hides_the_shorter_of_messages_and_computing(tmp_path, link):
    """Only the first layer's weights and the last gradient travel while nothing computes."""
    slow = cluster(4, link, device=Device(name="slow", flops=1e8))
    model = {"name": "mlp", "width": 64, "depth": 10}
    fields = dict(workers=4, steps=3, dtype="float64", optimizer="sgd", batch=32, model=model)
    plain, beside = (
        run_of(tmp_path / str(overlap), slow, split=split(3), sync={"overlap": overlap}, **fields)
        for overlap in (False, True)
    )
    last = plain.steps[plain.steps["step"] == 2][["compute", "comm", "wait"]].mean()
    shorter = min(last["compute"], last["comm"] + last["wait"])
    hidden = (plain.curve["seconds"] - beside.curve["seconds"]).diff().iloc[-1]
    assert 0.85 * shorter < hidden < shorter
    assert (plain.curve["loss"] == beside.curve["loss"]).all()
    for count in ("bytes", "messages"):
        assert (plain.steps[count] == beside.steps[count]).all()


def test_stage_3_overlapped_holds_two_layers_at_once():
    layer = 64 * 64 + 64  # all but the last, because a digit has 64 pixels
    fields = dict(
        workers=4, steps=3, model={"name": "mlp", "width": 64, "depth": 5}, batch=32, split=split(3)
    )
    for overlap, layers in ((False, 1), (True, 2)):
        for steps in trained(sync={"overlap": overlap}, **fields).facts:
            assert steps[-1]["memory"]["gathered"] == layers * 2 * layer * 8


@pytest.mark.parametrize("overlap", [False, True])
def test_accumulation_is_predicted_as_it_is_simulated(overlap):
    experiment = Experiment(
        workers=4,
        steps=6,
        scaling="weak",
        batch=15,
        split=split(0, 4),
        evaluate_every=1000,
        sync={"overlap": overlap, "bucket_mb": 0.01},
        cluster={"world": "simulated", "messages": "sizes", "platform": "p100-1gbe"},
    )
    fields = experiment.model_dump(
        include={"workers", "steps", "scaling", "batch", "split", "sync", "cluster"}
    )
    ends = [record["t"] for record in trained(**fields, dtype="float32").facts[0]]
    prediction = predict(experiment)
    assert prediction.kind == "exact"
    assert ends[-1] - ends[-2] == pytest.approx(prediction.seconds, rel=1e-9)
    assert predict(experiment.replace(split=split(1))) is None


REFUSED = {
    "sync.scheme: got 'ps', allowed with zero 1 is ring": dict(split=split(1), sync="ps"),
    "sync.scheme: got 'gossip', allowed with zero 3 is ring": dict(split=split(3), sync="gossip"),
    "sync.scheme: got 'mapreduce', allowed with zero 3 is ring": dict(split=split(3), sync="mapreduce"),
    "sync.scheme: got 'hogwild', allowed with zero 1 is ring": dict(split=split(1), sync="hogwild"),
    "sync.allreduce: got 'tree', allowed with zero 1 is ring or library": dict(
        split=split(1), sync={"allreduce": "tree"}
    ),
    "averaging.method: got 'local', allowed with zero 1 is none": dict(
        split=split(1), averaging={"method": "local"}
    ),
    "compression.codec: got 'topk', allowed with zero 3 is none": dict(split=split(3), compression="topk"),
    "cluster.messages: got 'sizes', allowed with zero 3 is values": dict(
        split=split(3), cluster={"world": "simulated", "messages": "sizes"}
    ),
    "split.microbatches: got 17, allowed with norm none and 16 samples of a worker is at most 16": dict(
        split=split(0, 17), batch=64
    ),
    "split.microbatches: got 9, allowed with norm batch and 16 samples of a worker is at most 8": dict(
        split=split(0, 9), batch=64, model={"norm": "batch"}
    ),
    "split.zero: got 2, allowed is one of 0, 1, 3": dict(split=split(2)),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_does_not_go_together_is_refused_in_one_sentence(sentence):
    with pytest.raises(BadExperiment) as error:
        Experiment(workers=4, **REFUSED[sentence])
    assert str(error.value).startswith(sentence) and "\n" not in str(error.value)


def test_the_stage_can_be_said_on_the_command_line():
    experiment = Experiment(split=split(3))
    assert flags.to_flags(experiment) == ["--zero", "3"]
    assert flags.read({"split_zero": "3"}) == experiment


@pytest.mark.slow
def test_real_and_paced_ranks_do_the_same():
    fields = dict(steps=20, evaluate_every=1000, dtype="float64", **SMALL["mlp"])
    jobs = [
        dlpar.launch(
            Experiment(workers=2, split=split(1), sync={"allreduce": "library", "overlap": True}, **fields)
        ),
        dlpar.launch(Experiment(workers=4, split=split(3, 2), **fields)),
        dlpar.launch(Experiment(workers=2, split=split(3), sync={"allreduce": "library"}, **fields)),
        dlpar.launch(Experiment(workers=2, split=split(3), sync={"overlap": True}, **fields)),
        dlpar.launch(Experiment(workers=2, split=split(3), cluster={"world": "paced"}, **fields)),
    ]
    for job in jobs:
        assert apart(alone("mlp").losses, job.wait(60).curve["loss"].to_numpy()) < 1e-9


@pytest.mark.slow
def test_a_gradient_is_handed_on_without_a_library_for_symbolic_mathematics():
    """torch's check of a gradient that it is given loads sympy: a fresh rank's first step would take seconds."""

    def hand_on(comm) -> tuple[list[float], bool]:
        x = torch.ones(2, requires_grad=True)
        propagate((2 * x).sum(), 0.5)
        backward(3 * x, torch.tensor([1.0, 2.0]))
        return x.grad.tolist(), "sympy" in sys.modules

    assert dlpar.spmd(hand_on, workers=1) == [([4.0, 7.0], False)]
