"""Figures of pipelines: a schedule by itself, more and more micro-batches, and what is held over the time of a step."""

from __future__ import annotations

import json

import pytest

from dlpar import Experiment, lab
from dlpar.jobs.run import Run
from dlpar.lab import figures
from dlpar.split.schedules import SCHEDULES
from dlpar.theory.pipeline import Stuck
from lab.folders import new_folder

MLP3 = {"name": "mlp", "depth": 3, "width": 24}


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


def run_of(steps, microbatches=4, **records) -> Run:
    """A run of two stages whose steps end at these seconds; facts of a rank's last step as ``rank0={...}``."""
    split = {"kind": "pipeline", "microbatches": microbatches}
    folder = new_folder(Experiment(workers=2, steps=len(steps), model=MLP3, split=split))
    for rank in range(2):
        facts = {"samples": 8 * rank, "loss": 1.0, "bytes": 0, "spans": []}
        lines = [{"k": "step", "step": n, "t": t, **facts} for n, t in enumerate(steps)]
        lines[-1].update(records.get(f"rank{rank}", {}))
        (folder / f"rank-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Run(folder)


def test_micro_batches_are_drawn_by_schedule_with_the_quickest_marked():
    runs = [run_of([1.0, 1.0 + each, 1.0 + 2 * each], m) for m, each in ((1, 0.4), (4, 0.1), (16, 0.3))]
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
        lab.micro_batches([run_of([1.0])])


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
    figure = lab.memory(run_of([1.0, 5.0, 10.0], 2, rank0=one, rank1=other))
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
