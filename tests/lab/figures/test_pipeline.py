"""Figures of pipelines: passes and bubble of a run, schedules, numbers of micro-batches, and memory."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from dlpar import Experiment, lab
from dlpar.jobs.run import Run
from dlpar.lab import figures
from dlpar.split.schedules import SCHEDULES
from dlpar.theory import bubble
from dlpar.theory.pipeline import Stuck, timeline
from lab.figures.pipelines import MLP3, NAMES, run_ending_at, run_of, run_with
from lab.folders import new_folder


@pytest.mark.parametrize(
    ("schedule", "chunks", "weight"),
    [("gpipe", 1, None), ("1f1b", 1, None), ("interleaved", 2, None), ("zb-h1", 1, 1.0)],
)
def test_a_run_without_delays_is_drawn_as_its_ideal_and_has_the_bubble_of_the_closed_form(
    schedule, chunks, weight
):
    times = {"forward": 1.0, "backward": 2.0, "weight": weight}
    figure = lab.pipeline(run_of(timeline(schedule, 4, 8, chunks, **times), schedule, chunks))
    table = figures.table(figure)
    drawn = {way: rows[rows["phase"].isin(NAMES.values())] for way, rows in table.groupby("picture")}
    columns = ["rank", "phase", "micro-batch", "chunk", "start (ms)", "duration (ms)"]
    measured, ideal = (drawn[way].sort_values(columns[:4])[columns] for way in ("measured", "ideal"))
    assert (measured[columns[:4]].to_numpy() == ideal[columns[:4]].to_numpy()).all()
    assert measured["start (ms)"].to_numpy() == pytest.approx(ideal["start (ms)"].to_numpy())
    expected = f"{bubble(schedule, 4, 8, chunks):.1%}"
    assert [note.text for note in figure.layout.annotations] == [
        f"measured: bubble {expected} of computing time",
        f"ideal {schedule}: bubble {expected} of computing time",
    ]
    assert "1.00 times the ideal" in figures.caption(figure)


def test_a_stage_that_is_late_is_seen_in_the_measured_bubble_alone():
    on_time = timeline("gpipe", 2, 4)
    late = [
        bar if bar.kind == "F" else bar._replace(start=bar.start + 12, end=bar.end + 12) for bar in on_time
    ]
    measured, ideal = (note.text for note in lab.pipeline(run_of(late, "gpipe")).layout.annotations)
    assert "bubble 125% of" in measured and "bubble 25.0% of" in ideal  # 12 s more on 12 s of computing


@pytest.mark.parametrize("world, how", [("real", "measured"), ("paced", "paced"), ("simulated", "simulated")])
def test_what_was_not_measured_is_not_called_so(world, how):
    figure = lab.pipeline(run_of(timeline("gpipe", 2, 4), "gpipe", world=world))
    assert figure.layout.annotations[0].text.startswith(f"{how}: bubble ")
    assert set(figures.table(figure)["picture"]) == {how, "ideal"}


def test_passes_carry_their_micro_batch_chunks_differ_and_the_bubble_fills_what_is_left():
    figure = lab.pipeline(run_of(timeline("interleaved", 2, 4, 2), "interleaved"))
    named = defaultdict(list)
    for trace in figure.data:
        named[trace.name].append(trace)
    assert set(named) == {
        *(f"{p}, chunk {c}" for p in ("forward", "backward") for c in (0, 1)),
        "bubble: idle",
        "receive",
        "update",
    }
    assert sorted(named["forward, chunk 0"][0].text) == sorted(["0", "1", "2", "3"] * 2)
    assert len({named[f"forward, chunk {c}"][0].marker.color for c in (0, 1)}) == 2
    assert len({named[f"{p}, chunk 0"][0].marker.color for p in ("forward", "backward")}) == 2
    assert {t.name for t in figure.data if t.marker.pattern.shape} == {"bubble: idle"}, (
        "only idle time is hatched"
    )
    covered = sum(sum(named[name][0].x) for name in named if name not in ("receive", "update"))
    assert covered == pytest.approx(2 * 1e3 * max(bar.end for bar in timeline("interleaved", 2, 4, 2)))


def test_a_schedule_without_a_flush_is_drawn_over_several_steps():
    bars = timeline("pipedream", 2, 12)
    experiment = Experiment(
        workers=2,
        steps=12,
        model=MLP3,
        split={"kind": "pipeline", "schedule": "pipedream", "microbatches": 1},
    )
    folder = new_folder(experiment)
    for stage in (0, 1):
        of_step = defaultdict(list)
        for bar in bars:
            step = max(0, bar.micro - 1 + stage) if bar.kind == "F" and bar.stage == stage else bar.micro
            if bar.stage == stage:
                of_step[min(step, 11)].append([NAMES[bar.kind], bar.start, bar.end, bar.micro, 0])
        lines = [json.dumps({"k": "step", "step": step, "spans": of_step[step]}) for step in range(12)]
        (folder / f"rank-{stage}.jsonl").write_text("\n".join(lines) + "\n")
    figure = lab.pipeline(Run(folder))
    table = figures.table(figure)
    for way in ("measured", "ideal"):
        backward = table[(table["picture"] == way) & (table["phase"] == "backward")]
        assert sorted(set(backward["micro-batch"])) == [4, 5, 6, 7], way
    assert "bubble 0.0% of" in figure.layout.annotations[0].text


def test_what_cannot_be_drawn_is_refused_in_one_sentence():
    run = run_of(timeline("1f1b", 2, 2))
    with pytest.raises(ValueError, match="no memory was recorded, allowed is a run whose ranks compute"):
        lab.memory(run)
    data = Run(new_folder(Experiment(workers=2)))
    with pytest.raises(ValueError, match="got split data, allowed are two or more stages of a pipeline"):
        lab.pipeline(data)
    one = Run(new_folder(Experiment(workers=2, split={"kind": "pipeline", "stages": 1})))
    with pytest.raises(ValueError, match="got split pipeline, allowed are two or more stages"):
        lab.pipeline(one)
    with pytest.raises(
        ValueError, match="split: got data, allowed is one of tensor, spatial, pipeline, hybrid"
    ):
        lab.layer_bytes(data)
    with pytest.raises(ValueError, match="workers: got 128, allowed is at most 64"):
        lab.pieces(Experiment(workers=128, cluster={"world": "simulated"}))


@pytest.mark.parametrize(
    "name, end, idle, held",
    [
        ("gpipe", 33, "37.5%", 8),
        ("1f1b", 33, "37.5%", 4),
        ("interleaved", 28.5, "18.8%", 11),
        ("zb-h1", 27, "12.5%", 4),
    ],
)
def test_a_schedule_is_drawn_without_a_run(name, end, idle, held):
    figure = lab.schedule(name, stages=4, microbatches=8)
    said = figures.caption(figure)
    assert (
        f"{end:g} forward passes long, the bubble is {idle} of the computing time, and at most {held} micro-b"
        in said
    )
    assert figures.table(figure)["end"].max() == end


def test_a_schedule_of_one_s_own_is_drawn_from_its_actions():
    lists = [[("F", 0), ("F", 1), ("B", 0), ("B", 1)], [("F", 0), ("B", 0), ("F", 1), ("B", 1)]]
    drawn, known = lab.schedule(lists), lab.schedule("1f1b", stages=2, microbatches=2)
    assert figures.table(drawn).equals(figures.table(known))
    with pytest.raises(Stuck, match="stage 0 waits for stage 1 before action 1"):
        lab.schedule([[("F", 1), ("B", 0)], [("F", 0), ("B", 0)]])
    with pytest.raises(
        ValueError, match=f"which: got '2f2b', allowed is one of {', '.join(SCHEDULES)}, or a list"
    ):
        lab.schedule("2f2b")


def test_micro_batches_are_drawn_by_schedule_with_the_quickest_marked():
    runs = [
        run_ending_at([1.0, 1.0 + each, 1.0 + 2 * each], m) for m, each in ((1, 0.4), (4, 0.1), (16, 0.3))
    ]
    figure = lab.micro_batches(runs, predicted={"1f1b": {1: 0.4, 16: 0.2}})
    measured, predicted, quickest = figure.data
    assert list(measured.x) == [1, 4, 16] and list(measured.y) == pytest.approx([400, 100, 300])
    assert predicted.line.dash == "dash" and list(predicted.y) == [400, 200]
    assert list(quickest.x) == [4]
    said = "1f1b is fastest with 4 micro-batches, 100 ms a step, and takes 3.0 times as long with 16."
    assert figures.caption(figure) == said
    assert list(figures.table(figure)["how"]) == ["measured"] * 3 + ["predicted"] * 2


def test_what_has_no_micro_batches_to_compare_is_refused():
    with pytest.raises(ValueError, match="allowed is a pipeline of two steps or more in the real world"):
        lab.micro_batches([run_ending_at([1.0])])


# ---- memory ------------------------------------------------------------------------------


def memory_of(stage):
    held = {
        "weights": 2_000_000,
        "gradients": 2_000_000,
        "optimizer": 0,
        "activations": 1_000_000 * (4 - stage),
    }
    return {"memory": held | {"gathered": 0}, "in_flight": min(4 - stage, 4)}


def test_memory_is_stacked_by_kind_and_the_micro_batches_in_flight_are_said():
    figure = lab.memory(run_of(timeline("1f1b", 4, 8), facts=memory_of))
    bars = {trace.name: list(trace.x) for trace in figure.data if trace.type == "bar"}
    assert bars == {"weights": [2] * 4, "gradients": [2] * 4, "activations": [4, 3, 2, 1]}
    assert "rank 0 held 8 MB, 50% of it activations; rank 3 held the least, 5 MB" in figures.caption(figure)
    assert "at most 4 micro-batches in flight" in figures.caption(figure)


def test_memory_of_sharded_runs_stands_beside_the_closed_form():
    runs = []
    for zero, parts in ((0, 1), (3, 2)):
        n = 3010 * 4 // parts
        held = {"weights": n, "gradients": n, "optimizer": 2 * n, "activations": 100, "gathered": 50}
        split = {"kind": "data", "zero": zero}
        runs.append(run_with([1.0], [{"memory": held}] * 2, split=split, optimizer="adam"))
    figure = lab.memory(runs)
    (marks,) = [trace for trace in figure.data if trace.type == "scatter"]
    assert list(marks.x) == pytest.approx([48.16, 24.08])
    assert list(figure.layout.yaxis.ticktext) == ["zero=0", "zero=3"]
    assert list(lab.memory(runs, titles=["whole", "ZeRO 3"]).layout.yaxis.ticktext) == ["whole", "ZeRO 3"]
    assert "differ from the closed form by less than 0.1%" in figures.caption(figure)


def test_a_name_too_few_for_several_runs_is_refused():
    runs = [run_ending_at([1.0]), run_ending_at([2.0])]
    with pytest.raises(ValueError, match="titles: got 1, allowed is one for each of 2 runs"):
        lab.memory(runs, ["one"])


def test_what_the_stages_of_a_pipeline_hold_over_time_stands_beside_the_bars():
    memory = {"weights": 2000, "gradients": 2000, "optimizer": 0, "activations": 3000, "gathered": 0}
    over_time = (
        [[5.5, 5500], [6.5, 7000], [8.5, 5500], [9.5, 4000]],
        [[6.5, 5500], [7.5, 4000], [8.5, 5500], [9.5, 4000]],
    )
    one, other = ({"memory": memory, "memory_over_time": points} for points in over_time)
    figure = lab.memory(
        run_with([1.0, 5.0, 10.0], [one, other], split={"kind": "pipeline", "microbatches": 2})
    )
    assert figure.layout.yaxis2.title.text == "held (kB)" and figure.layout.xaxis2.range[1] == 4000
    first, second = (trace for trace in figure.data if trace.yaxis == "y2")
    assert list(first.y) == [5.5, 7.0, 5.5, 4.0] and list(first.x) == [0, 1000, 3000, 4000]
    assert list(second.y) == [5.5, 4.0, 5.5, 4.0] and list(second.x) == [1000, 2000, 3000, 4000]


def test_memory_over_time_of_any_other_split_stands_beside_the_bars():
    n, facts = 3010 * 4, []
    memory = {"weights": n, "gradients": n, "optimizer": 0, "activations": 1000, "gathered": 0}
    for rank in range(2):
        over_time = [[2.0 + rank, 2 * n], [2.5 + rank, 2 * n + 1000], [3.0 + rank, 2 * n]]
        facts.append({"memory": memory, "memory_over_time": over_time})
    figure = lab.memory(run_with([1.0, 2.0, 4.0], facts))
    lines = [trace for trace in figure.data if trace.yaxis == "y2"]
    assert figure.layout.yaxis2.title.text == "held (kB)" and "yaxis3" not in figure.layout
    assert [list(line.x) for line in lines] == [[0, 500, 1000], [1000, 1500, 2000]]
