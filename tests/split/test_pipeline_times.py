"""How long pipelines take: in the simulated and the paced world bubbles are what theory says."""

from __future__ import annotations

import json

import pytest
from simulations import trained

import dlpar
from dlpar import BadExperiment, Experiment, Run
from dlpar.split.schedules import SCHEDULES
from dlpar.theory import bubble
from dlpar.theory.pipeline import Bar, idle_share, timed, timeline
from dlpar.worlds.platforms import Device, Link, Platform

FREE = Platform(
    name="free", device=Device(name="one", flops=1e12), nodes=64, between=Link(latency=0.0, bandwidth=1e30)
)
"""Messages take no time."""

KINDS = {"forward": "F", "backward": "B", "weight": "W"}


def bars(run: Run, step: int) -> list[Bar]:
    """What stages computed in a step."""
    spans = run.spans.query("step == @step and name in @KINDS")
    return [
        Bar(s.rank, KINDS[s.name], s.micro, s.chunk, s.start, s.end) for s in spans.itertuples(index=False)
    ]


def simulated(folder, layers: int, platform: Platform = FREE, outputs: int = 1000, **fields) -> Run:
    """A pipeline of equal layers, of which only sizes are known, on a platform."""
    equal = [{"name": f"layer{i}", "parameters": 0, "flops": 1e9, "outputs": outputs} for i in range(layers)]
    workload = folder / "equal.json"
    workload.write_text(json.dumps({"name": "equal", "layers": equal}))
    cluster = {"messages": "sizes", "stand_in_for": str(workload)}
    return trained(folder / "run", platform, cluster=cluster, **{"batch": 64, "steps": 2, **fields})


def pipeline(schedule: str, microbatches: int, chunks: int = 2, **more) -> dict:
    return {"kind": "pipeline", "schedule": schedule, "microbatches": microbatches, "chunks": chunks, **more}


@pytest.mark.parametrize(
    "schedule, stages, microbatches, chunks",
    [
        ("gpipe", 4, 8, 1),
        ("1f1b", 4, 8, 1),
        ("1f1b", 8, 16, 1),
        ("interleaved", 4, 8, 2),
        ("interleaved", 4, 16, 4),
        ("zb-h1", 4, 8, 1),
        ("zb-h1", 8, 32, 1),
    ],
)
def test_simulated_bubbles_are_the_closed_form(schedule, stages, microbatches, chunks, tmp_path):
    run = simulated(tmp_path, stages * chunks, workers=stages, split=pipeline(schedule, microbatches, chunks))
    assert idle_share(bars(run, step=1)) == pytest.approx(
        bubble(schedule, stages, microbatches, chunks), rel=1e-9
    )


def test_a_pipeline_without_a_flush_has_no_bubble_once_it_is_full(tmp_path):
    run = simulated(tmp_path, 4, workers=4, steps=20, split=pipeline("pipedream", 1))
    ended = run.steps.query("rank == 0")["t"].to_numpy()
    assert ended[10:18] - ended[9:17] == pytest.approx(64 * 1e9 / 1e12)
    assert run.steps.query("step == 10").set_index("rank")["staleness"].tolist() == [3, 2, 1, 0]


def test_the_picture_of_a_schedule_is_what_a_simulation_does(tmp_path):
    latency = 0.001
    platform = FREE.model_copy(update={"between": Link(latency=latency, bandwidth=1e30)})
    run = simulated(tmp_path, 4, platform, workers=4, split=pipeline("zb-h1", 8))
    forward = 1e9 / 3 * 8 / 1e12  # eight samples of a layer
    ideal = timeline("zb-h1", 4, 8, forward=forward, backward=2 * forward, message=latency)
    found = sorted(bars(run, step=0), key=lambda bar: (bar.stage, bar.start))
    for one, other in zip(found, ideal, strict=True):
        assert one[:4] == other[:4]
        assert (one.start, one.end) == pytest.approx((other.start, other.end))


def test_a_message_travels_while_the_next_micro_batch_is_computed(tmp_path):
    # A boundary's message takes half as long as a forward pass: hidden, but where the pipeline fills and drains.
    seconds = 1e9 / 3 * 8 / 1e12
    link = Link(latency=0.0, bandwidth=8 * 1000 * 4 / (seconds / 2))
    run = simulated(
        tmp_path, 4, FREE.model_copy(update={"between": link}), workers=4, split=pipeline("gpipe", 8)
    )
    found = bars(run, step=0)
    window = max(bar.end for bar in found) - min(bar.start for bar in found)
    assert window == pytest.approx((8 + 3) * 3 * seconds + 2 * 3 * seconds / 2)


def test_recomputing_takes_a_forward_pass_more(tmp_path):
    run = simulated(tmp_path, 4, workers=4, split=pipeline("1f1b", 8, recompute=True))
    spans = run.spans.query("step == 1 and rank == 2")
    seconds = (spans["end"] - spans["start"]).groupby(spans["name"]).sum()
    assert seconds["recompute"] == pytest.approx(seconds["forward"])
    assert seconds["backward"] == pytest.approx(2 * seconds["forward"])


@pytest.mark.slow
def test_a_paced_bubble_is_within_three_points_of_ideal(tmp_path):
    link = Link(latency=1e-5, bandwidth=1e10)
    slow = Platform(name="slow", device=Device(name="one", flops=1e8), nodes=4, between=link)
    file = tmp_path / "slow.json"
    file.write_text(slow.model_dump_json())
    layers = [64 * 64, 64 * 64, 64 * 64, 64 * 10]
    job = dlpar.launch(
        Experiment(
            workers=4,
            batch=64,
            steps=4,
            evaluate_every=1000,
            model={"width": 64, "depth": 3},
            split=pipeline("1f1b", 8, partition="1,1,1,1"),
            cluster={"world": "paced", "platform": str(file)},
        )
    )
    run = job.wait(60)
    assert run.status == "done", run.log
    actions = [SCHEDULES["1f1b"](stage, 4, 8, 1) for stage in range(4)]
    ideal = idle_share(timed(actions, {"F": layers, "B": [2 * n for n in layers]}))
    assert idle_share(bars(run, step=2)) == pytest.approx(ideal, abs=0.03)


def test_a_workload_with_fewer_layers_than_stages_is_refused_before_anything_starts():
    cluster = {"world": "simulated", "messages": "sizes", "stand_in_for": "alexnet"}
    too_many = Experiment(workers=16, split="pipeline", cluster=cluster)
    with pytest.raises(BadExperiment) as error:
        dlpar.launch(too_many)
    assert str(error.value) == (
        "split.stages: got 16, allowed with model alexnet, which has 8 layers with weights, is at most 8"
    )
