"""Figures of memory: by kind, over the time of a step, and beside the closed form."""

import json

import pytest

from dlpar import Experiment, lab
from dlpar.jobs.run import Run
from dlpar.lab import figures
from dlpar.theory.pipeline import timeline
from lab.figures.pipelines import MLP3, run_ending_at, run_of
from lab.folders import new_folder


def memory_of(stage):
    held = {
        "weights": 2_000_000,
        "gradients": 2_000_000,
        "optimizer": 0,
        "activations": 1_000_000 * (4 - stage),
    }
    return {"memory": held | {"gathered": 0}, "in_flight": min(4 - stage, 4)}


def test_memory_is_stacked_by_kind_and_flights_follow_the_schedule():
    figure = lab.memory(run_of(timeline("1f1b", 4, 8), facts=memory_of))
    bars = {trace.name: list(trace.x) for trace in figure.data if trace.type == "bar"}
    assert bars == {"weights": [2] * 4, "gradients": [2] * 4, "activations": [4, 3, 2, 1]}
    flights = [max(trace.y) for trace in figure.data if trace.type == "scatter"]
    assert flights == [4, 3, 2, 1] and all(
        trace.y[-1] == 0 for trace in figure.data if trace.type == "scatter"
    )
    assert "rank 0 held 8 MB, 50% of it activations; rank 3 held the least, 5 MB" in figures.caption(figure)
    assert "at most 4 micro-batches were in flight" in figures.caption(figure)


def test_memory_of_sharded_runs_stands_beside_the_closed_form():
    runs = []
    for zero, parts in ((0, 1), (3, 2)):
        experiment = Experiment(workers=2, model=MLP3, split={"kind": "data", "zero": zero}, optimizer="adam")
        folder, n = new_folder(experiment), 3010 * 4 // parts
        held = {"weights": n, "gradients": n, "optimizer": 2 * n, "activations": 100, "gathered": 50}
        for rank in range(2):
            (folder / f"rank-{rank}.jsonl").write_text(
                json.dumps({"k": "step", "step": 0, "memory": held}) + "\n"
            )
        runs.append(Run(folder))
    figure = lab.memory(runs)
    (marks,) = [trace for trace in figure.data if trace.type == "scatter"]
    assert list(marks.x) == pytest.approx([48.16, 24.08])
    assert list(figure.layout.yaxis.ticktext) == ["split.zero=0", "split.zero=3"]
    assert list(lab.memory(runs, titles=["whole", "ZeRO 3"]).layout.yaxis.ticktext) == ["whole", "ZeRO 3"]
    assert "differ from the closed form by less than 0.1%" in figures.caption(figure)


def passes(*bars):
    return [[name, start, end, micro, 0] for name, start, end, micro in bars]


def test_what_is_held_over_time_is_drawn_under_what_is_in_flight():
    memory = {"weights": 2000, "gradients": 2000, "optimizer": 0, "activations": 3000, "gathered": 0}
    one = {
        "spans": passes(
            ("forward", 5.0, 6.0, 0),
            ("forward", 6.0, 7.0, 1),
            ("backward", 8.0, 9.0, 0),
            ("backward", 9.0, 10.0, 1),
        ),
        "memory": memory,
        "memory_over_time": [[5.5, 5500], [6.5, 7000], [8.5, 5500], [9.5, 4000]],
    }
    other = {
        "spans": passes(
            ("forward", 6.0, 7.0, 0),
            ("backward", 7.0, 8.0, 0),
            ("forward", 8.0, 9.0, 1),
            ("backward", 9.0, 10.0, 1),
        ),
        "memory": memory,
        "memory_over_time": [[6.5, 5500], [7.5, 4000], [8.5, 5500], [9.5, 4000]],
    }
    figure = lab.memory(run_ending_at([1.0, 5.0, 10.0], 2, rank0=one, rank1=other))
    by_axis = {axis: [t for t in figure.data if t.yaxis == axis] for axis in ("y2", "y3")}
    assert figure.layout.yaxis2.title.text == "in flight" and figure.layout.yaxis3.title.text == "held (kB)"
    assert [max(trace.y) for trace in by_axis["y2"]] == [2, 1]
    first, second = by_axis["y3"]
    assert list(first.y) == [5.5, 7.0, 5.5, 4.0, 4.0] and list(first.x) == [500, 1500, 3500, 4500, 5000]
    assert list(second.y) == [5.5, 4.0, 5.5, 4.0, 4.0]


def test_memory_over_time_of_any_other_split_stands_beside_the_bars():
    experiment = Experiment(workers=2, steps=3, model=MLP3)
    folder, n = new_folder(experiment), 3010 * 4
    memory = {"weights": n, "gradients": n, "optimizer": 0, "activations": 1000, "gathered": 0}
    for rank in range(2):
        over_time = [[2.0 + rank, 2 * n], [2.5 + rank, 2 * n + 1000], [3.0 + rank, 2 * n]]
        record = {"k": "step", "step": 2, "memory": memory, "memory_over_time": over_time}
        (folder / f"rank-{rank}.jsonl").write_text(json.dumps(record) + "\n")
    figure = lab.memory(Run(folder))
    lines = [trace for trace in figure.data if trace.yaxis == "y2"]
    assert figure.layout.yaxis2.title.text == "held (kB)" and "yaxis3" not in figure.layout
    assert [list(line.x) for line in lines] == [[0, 500, 1000], [1000, 1500, 2000]]
