"""A pipeline trains what one process trains, sends what the closed form says, and holds what its schedule allows."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from simulations import cluster
from simulations import trained as run_of
from trained_ranks import SMALL, Trained, apart, trained

import dlpar
from dlpar import BadExperiment, Experiment
from dlpar.worlds.platforms import Device

SCHEDULES = {
    "gpipe": dict(schedule="gpipe"),
    "1f1b": dict(schedule="1f1b"),
    "zb-h1": dict(schedule="zb-h1"),
    "recomputing": dict(schedule="1f1b", recompute=True),
    "zb-h1, recomputing": dict(schedule="zb-h1", recompute=True),
}


def pipeline(**split) -> dict:
    return {"kind": "pipeline", "microbatches": 5, **split}


@cache
def alone(model: str, dtype: str = "float64") -> Trained:
    return trained(workers=1, dtype=dtype, **SMALL[model])


def same(found: Trained, model: str) -> bool:
    """Whether a training is that of one process."""
    one = alone(model)
    return apart(one.losses, found.losses) < 1e-9 and (one.weights - found.weights).abs().max() < 1e-8


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("split", SCHEDULES.values(), ids=SCHEDULES.keys())
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_every_schedule_trains_what_one_process_trains(model, split, stages):
    assert same(trained(workers=stages, split=pipeline(**split), **SMALL[model]), model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "split", [SCHEDULES["zb-h1"], SCHEDULES["recomputing"]], ids=["zb-h1", "recomputing"]
)
@pytest.mark.parametrize("stages", [2, 4])
def test_a_transformer_s_first_and_last_stage_share_a_weight(split, stages):
    assert same(trained(workers=stages, split=pipeline(**split), **SMALL["transformer"]), "transformer")


@pytest.mark.slow
@pytest.mark.parametrize("model, chunks", [("mlp", 2), ("cnn", 2), ("transformer", 2)])
def test_interleaved_chunks_train_the_same(model, chunks):
    split = pipeline(schedule="interleaved", chunks=chunks, microbatches=4)
    assert same(trained(workers=2, split=split, **SMALL[model]), model)


@pytest.mark.slow
def test_float32_stays_within_rounding():
    one = alone("mlp", "float32").losses
    for split in SCHEDULES.values():
        assert (
            apart(one, trained(workers=4, dtype="float32", split=pipeline(**split), **SMALL["mlp"]).losses)
            < 1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        dict(workers=4, split=pipeline(stages=2), sync="ring"),
        dict(workers=4, split=pipeline(stages=2, order="pipeline,data"), sync={"scheme": "ps", "servers": 4}),
        dict(
            workers=4, split=pipeline(stages=2, partition="1,3"), sync="mapreduce", optimizer="adam", lr=0.01
        ),
    ],
    ids=["ring", "each stage its servers", "adam by map-reduce"],
)
def test_replicas_of_a_pipeline_agree_by_any_scheme(fields):
    small = {**SMALL["mlp"], **fields}
    one = trained(**{**small, "workers": 1, "split": "data", "sync": "ring"})
    several = trained(**small)
    assert apart(one.losses, several.losses) < 1e-9
    assert (one.weights - several.weights).abs().max() < 1e-8


def test_the_driver_of_a_map_reduce_between_pipelines_sees_the_loss_in_full():
    found = trained(workers=4, dtype="float64", split=pipeline(stages=2), sync="mapreduce", **SMALL["mlp"])
    assert apart(found.losses, np.array([step["driver_loss"] for step in found.facts[0]])) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_data_times_pipeline_times_tensor_is_one_process(model):
    fields = {**SMALL[model], "sync": {"scheme": "ps", "servers": 4} if model == "mlp" else "ring"}
    split = {"kind": "hybrid", "stages": 2, "tensor": 2, "microbatches": 3}
    assert same(trained(workers=8, split=split, **fields), model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, split",
    [
        ("mlp", dict(schedule="interleaved", microbatches=4, recompute=True)),
        ("transformer", dict(schedule="zb-h1", microbatches=3)),
        ("cnn", dict(schedule="zb-h1", microbatches=4, recompute=True)),
    ],
)
def test_a_hybrid_interleaves_recomputes_and_puts_off_its_weights_too(model, split):
    assert same(trained(workers=4, split={"kind": "hybrid", **split}, **SMALL[model]), model)  # two by two


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_rank_may_hold_none_of_the_outputs(schedule):
    """The one output of a regression is on the first of two ranks."""
    fields = dict(model={"name": "mlp", "width": 8, "depth": 1}, data="diabetes", batch=8, steps=3, lr=0.01)
    split = {"kind": "hybrid", "stages": 2, "tensor": 2, "schedule": schedule, "microbatches": 2}
    alone = trained(workers=1, **fields).losses
    assert trained(workers=4, split=split, **fields).losses == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_hybrid_s_spans_tell_computing_from_the_messages_of_cut_layers(tmp_path, schedule):
    device = Device(name="slow", flops=1e8)
    fields = dict(
        workers=2, steps=2, split={"kind": "hybrid", "stages": 1, "microbatches": 2, "schedule": schedule}
    )
    run = run_of(tmp_path / "run", cluster(device=device), **{**SMALL["mlp"], **fields, "lr": 0.0})
    spans = run.spans.query("step == 1 and rank == 0")
    layers = (
        30 * 2 * (64 * 32 + 2 * 32 * 32 + 32 * 10) / 2
    )  # FLOPs of half of each layer, forward, 30 samples
    seconds = (spans["end"] - spans["start"]).groupby(spans["name"]).sum()
    assert seconds["forward"] == pytest.approx(layers / 1e8)
    assert seconds["backward"] + seconds.get("weight", 0.0) == pytest.approx(2 * layers / 1e8)
    assert ("weight" in seconds) == (schedule == "zb-h1")
    # Of each micro-batch four all-reduces between two ranks, of two messages of 1 ms at least.
    assert seconds["reduce"] > 2 * 4 * 2 * 1e-3


# ---- what is sent, and what is held ---------------------------------------------------------------


def over_boundaries(elements: int, stages: int, samples: int, microbatches: int) -> list[tuple[int, int]]:
    """Messages and bytes of each stage that four parts dealt out over stages send a step.

    Over a boundary activations of so many elements a sample (float64) go one way, and as many gradients
    back (Narayanan et al., arXiv 2104.04473, 3.2).
    """
    ends = [part % stages for boundary in range(3) for part in (boundary, boundary + 1)]
    return [(ends.count(s) * microbatches, ends.count(s) * samples * elements * 8) for s in range(stages)]


@pytest.mark.parametrize(
    "schedule, stages, chunks, microbatches", [("1f1b", 4, 1, 3), ("interleaved", 2, 2, 4)]
)
def test_boundaries_carry_the_closed_form(schedule, stages, chunks, microbatches):
    split = pipeline(schedule=schedule, chunks=chunks, microbatches=microbatches, partition="1,1,1,1")
    found = trained(steps=2, workers=stages, split=split, **SMALL["mlp"])
    wanted = over_boundaries(32, stages, samples=30, microbatches=microbatches)
    for rank, facts in enumerate(found.facts):
        assert [(step["messages"], step["bytes"]) for step in facts] == [wanted[rank]] * 2


def test_between_blocks_of_a_transformer_go_b_s_h_elements_and_at_the_ends_the_shared_weight():
    split = pipeline(partition="1,1,1,2", microbatches=2)
    found = trained(steps=1, workers=4, split=split, **SMALL["transformer"])
    batch, tokens, width, characters = 10, 8, 16, 96
    inner = over_boundaries(tokens * width, 4, samples=batch, microbatches=2)
    shared = (1, characters * width * 8)
    for rank, (step,) in enumerate(found.facts):
        more = shared if rank in (0, 3) else (0, 0)
        messages, nbytes = inner[rank]
        assert (step["messages"], step["bytes"]) == (messages + more[0], nbytes + more[1])


def test_a_stage_holds_what_its_schedule_lets_be_in_flight():
    in_flight, activations = {}, {}
    for name, split in {**SCHEDULES, "gpipe, recomputing": dict(schedule="gpipe", recompute=True)}.items():
        facts = trained(
            steps=2, workers=4, split=pipeline(partition="1,1,1,1", **split), **SMALL["mlp"]
        ).facts
        in_flight[name] = [steps[1]["in_flight"] for steps in facts]
        activations[name] = [steps[1]["memory"]["activations"] for steps in facts]
    assert in_flight["gpipe"] == [5, 5, 5, 5]
    assert in_flight["1f1b"] == in_flight["recomputing"] == [4, 3, 2, 1]
    assert in_flight["zb-h1"] == [4, 4, 4, 4]
    # Of a middle stage: a Linear keeps its input, the ReLU behind it its output, 6 samples of 32 float64 each.
    one = 6 * 32 * 8
    assert activations["gpipe"][1] == 5 * 2 * one
    assert activations["1f1b"][1] == 3 * 2 * one
    assert activations["recomputing"][1] == (3 + 1) * one
    assert activations["gpipe, recomputing"][1] == (5 + 1) * one


def test_each_rank_has_its_layers_alone_and_partitions_by_hand_are_heeded():
    def weights(comm) -> int:
        from trained_ranks import Kept

        from dlpar.train import train

        record = Kept(comm)
        split = {"kind": "pipeline", "partition": "2,1,1", "microbatches": 2}
        train(
            comm,
            Experiment(workers=3, steps=1, batch=8, model={"width": 16, "depth": 3}, split=split),
            record,
        )
        return record.steps[0]["memory"]["weights"] // 4

    from simulations import run

    assert run(weights, 3) == [(64 * 16 + 16) + (16 * 16 + 16), 16 * 16 + 16, 16 * 10 + 10]


# ---- other worlds -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_ranks_do_the_same_with_messages_too_long_to_be_sent_at_once():
    jobs = {}
    for schedule in ("gpipe", "zb-h1", "pipedream"):
        fields = dict(
            workers=4,
            steps=12,
            batch=256,
            dtype="float64",
            model={"width": 128, "depth": 3},
            evaluate_every=1000,
            split=pipeline(schedule=schedule, microbatches=1 if schedule == "pipedream" else 4),
        )
        carrier = {"carrier": "gloo" if schedule == "zb-h1" else "mpi"}
        job = dlpar.launch(Experiment(cluster=carrier, **fields))
        jobs[schedule] = job, trained(**fields)  # the one goes on while the other does
    for schedule, (job, simulated) in jobs.items():
        real = job.wait(90)
        assert real.status == "done", real.log
        assert apart(simulated.losses, real.curve["loss"].to_numpy()) < 1e-12
        sent = real.steps.query("step == 7").set_index("rank")[["messages", "bytes"]]
        assert [tuple(sent.loc[rank]) for rank in range(4)] == [
            (facts[7]["messages"], facts[7]["bytes"]) for facts in simulated.facts
        ]
        spans = real.spans.query("step == 7 and name == 'forward' and rank == 1")
        assert spans["micro"].tolist() == ([7 + 2] if schedule == "pipedream" else [0, 1, 2, 3])
        assert set(spans["chunk"]) == {0}


# ---- what is refused --------------------------------------------------------------------------------

DEEP = {"depth": 7}


@pytest.mark.parametrize(
    "sentence, fields",
    [
        (
            "split.stages: got 4, allowed with model mlp, which has 3 layers with weights, is at most 3",
            dict(workers=4, split="pipeline"),
        ),
        (
            "split.chunks: got 2, allowed with model mlp, which has 4 layers with weights, and 4 stages is at most 1",
            dict(workers=4, model={"depth": 3}, split=pipeline(schedule="interleaved", microbatches=4)),
        ),
        (
            "split.microbatches: got 6, allowed with schedule interleaved and 4 stages is a multiple of 4: "
            "micro-batches go round in groups of as many as stages",
            dict(workers=4, model=DEEP, split=pipeline(schedule="interleaved", microbatches=6)),
        ),
        (
            "split.partition: got '2,2', allowed is balanced, measured, or 2 numbers from 1 that add up to 3, the "
            "model's layers with weights",
            dict(workers=2, split=pipeline(partition="2,2")),
        ),
        (
            "split.partition: got 'even', allowed is balanced, measured, or 2 numbers from 1 that add up to 3, the "
            "model's layers with weights",
            dict(workers=2, split=pipeline(partition="even")),
        ),
        (
            "split.microbatches: got 5, allowed with 4 samples a replica is at most 4",
            dict(workers=2, batch=4, split=pipeline()),
        ),
        (
            "split.microbatches: got 5, allowed with schedule pipedream is 1: each batch passes through undivided and "
            "updates the weights",
            dict(workers=2, split=pipeline(schedule="pipedream")),
        ),
        (
            "model.name: got 'transformer', allowed with schedule pipedream is linear, logistic, mlp or cnn: the "
            "first and last layer of a transformer share a weight, so that their stages would wait at every update",
            dict(
                workers=2,
                model="transformer",
                data="docstrings",
                split=pipeline(schedule="pipedream", microbatches=1),
            ),
        ),
        (
            "averaging.method: got 'local', allowed with schedule pipedream is none: stages hold weights of different "
            "steps",
            dict(workers=2, averaging="local", split=pipeline(schedule="pipedream", microbatches=1)),
        ),
        (
            "sync.consistency: got 'asp', allowed with schedule pipedream is bsp: batches are read ahead",
            dict(
                workers=4,
                sync={"scheme": "ps", "consistency": "asp", "servers": 2},
                split=pipeline(stages=2, schedule="pipedream", microbatches=1),
            ),
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(sentence, fields):
    with pytest.raises(BadExperiment) as error:
        Experiment(**fields)
    assert str(error.value) == sentence


@pytest.mark.parametrize("split", [pipeline(stages=2), {"zero": 3}], ids=["pipeline", "ZeRO 3"])
def test_slow_ranks_do_not_slow_down_each_other_s_waits(split):
    given = {**SMALL["mlp"], "cluster": {"platform": "cpu-10gbe"}, "split": split}
    found = trained(workers=2, **given, delays={"straggler": {0: 3.0, 1: 3.0}})
    ends = [max(facts["t"] for facts in step) for step in zip(*found.facts)]
    takes = np.diff(ends)
    assert max(takes) < 1.05 * min(takes)
