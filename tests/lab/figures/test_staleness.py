"""Staleness and lead: lines of the run in front, histograms, and the means of earlier runs."""

import pytest

from dlpar import lab
from dlpar.config.experiment import Experiment
from dlpar.lab import captions, figures
from dlpar.lab.figures.staleness import Lead, Staleness, predicted_mean
from dlpar.lab.figures.throughput import Waiting
from dlpar.lab.plot import drawn
from lab.folders import finished
from lab.records import fed, step

RING = Experiment(workers=2, steps=10)
ASP = RING.replace(sync={"scheme": "ps", "consistency": "asp"})


def test_histograms_count_every_worker_step(runs, every_figure):
    steps = runs["asp"].steps
    every = [t for t in every_figure["staleness"].data if t.type == "bar"]
    assert len(every) == 4
    for rank, bars in enumerate(every):
        own = steps[steps["rank"] == rank]["staleness"]
        assert dict(zip(bars.x, bars.y)) == own.value_counts().to_dict()
        title = every_figure["staleness"].layout[f"xaxis{rank + 2}"].title.text
        assert title == f"rank {rank}<br>mean {own.mean():.3g}"


def test_the_predicted_mean_is_drawn_only_where_theory_gives_one(runs, every_figure):
    dashed = [t for t in every_figure["staleness"].data if t.type == "scatter" and t.line.dash == "dash"]
    assert [list(t.y) for t in dashed] == [[3, 3]]
    assert "N − 1 = 3" in figures.caption(every_figure["staleness"])
    assert "theory" not in figures.caption(lab.staleness(runs["ssp"]))


def test_lead_says_whether_the_bound_held(runs, every_figure):
    assert figures.caption(every_figure["lead"]).endswith("never above s = 3: yes.")
    assert figures.caption(lab.lead(runs["asp"])).endswith("nothing bounds it.")
    with pytest.raises(ValueError, match="runs: got none that 'Lead' can show"):
        lab.lead(runs["ring"])
    assert "NO, the bound was broken" in captions.lead([1, 4], 3)


def test_steps_of_a_spare_and_of_workers_that_a_resumed_run_has_added_end_no_figure():
    spare = RING.replace(deaths={"on_death": "spare", "die": {1: 0.5}})
    for plot in (Staleness(), Waiting()):
        board = fed(plot, spare)
        for rank in range(8):
            board.take(rank, step(0, rank, staleness=rank, of=8))
        board.settle(ended=True)
        assert board.steps.done == 1


def test_staleness_zero_says_why_and_other_values_are_told():
    board = fed(plot := Staleness(), RING)
    board.take(0, step(0))
    board.settle(ended=False)
    assert plot.caption.startswith("Staleness is 0") and "waits for the gradients" in plot.caption
    board.take(1, step(0, staleness=6))
    board.settle(ended=False)
    assert plot.caption.startswith("The weights behind a gradient were 3 updates old on average, 6 at most")


def test_between_two_exchanges_of_local_steps_nobody_waits():
    local = Experiment(workers=4, averaging={"method": "local", "period": 4})
    assert captions.staleness(0, 0.0, local).endswith("every worker updates only its own weights.")


def test_staleness_of_free_running_workers_is_counted_worker_by_worker():
    board, lead = fed(plot := Staleness(), ASP), fed(ahead := Lead(), ASP)
    for number, age in enumerate((0, 1, 1, 3)):
        for each in (board, lead):
            each.take(0, step(number, staleness=age, lead=number))
            each.take(1, step(number, 1, staleness=1, t=number + 1.2))
    board.settle(ended=True), lead.settle(ended=True)
    assert plot.series("histogram 0").rows.tolist() == [[0, 1], [1, 2], [3, 1]]
    assert plot.looks["layout"]["xaxis2"]["title"]["text"] == "rank 0<br>mean 1.25"
    assert plot.caption == (
        "The weights behind a gradient were 1.12 updates old on average, 3 at most; "
        "theory predicts N − 1 = 1 on average."
    )
    assert plot.series("predicted").rows[:, 1].tolist() == [1, 1]
    assert ahead.caption == "The largest lead over the slowest was 3 clocks (rank 0); nothing bounds it."


def test_an_earlier_run_is_left_as_its_mean_in_its_colour(runs):
    drawn(plot := Staleness(), [runs["asp"], runs["ssp"]])
    lines = {t.name: t for t in plot.static().data if t.type == "scatter"}
    colours = [run.colour for run in plot.runs.values()]
    first, second = (f"{run.name}, mean" for run in plot.runs.values())
    assert lines[first].visible and not lines[second].visible
    assert (lines[first].line.color, lines[second].line.color) == tuple(colours) and colours[0] != colours[1]
    curve = runs["asp"].curve
    assert list(lines[first].x) == list(curve["seconds"])
    assert sum(lines[first].y) / len(curve) == pytest.approx(runs["asp"].steps["staleness"].mean())
    assert sorted(name for name in lines if name.startswith("rank")) == [f"rank {r}" for r in range(4)]


def test_runs_in_lockstep_and_free_ones_share_an_axis_on_which_both_are_seen():
    board = fed(plot := Staleness(), RING, ASP)
    assert plot.static().layout.xaxis.title.text.endswith("(s)")
    board = fed(plot := Staleness(), RING)
    assert plot.static().layout.xaxis.title.text == "global step"
    for number in range(8):
        for rank in range(2):
            board.take(rank, step(number, rank, staleness=9, t=10.0 * number))
    board.settle(ended=True)
    board.begin(fed(Staleness(), RING, ASP).plots[0].front)
    board.take(0, step(0, t=1.0))
    board.settle(ended=True)
    figure = plot.static()
    mean = next(trace for trace in figure.data if trace.name.endswith("mean"))
    assert list(mean.x) == [10.0 * number for number in range(8)] and mean.visible
    assert figure.layout.xaxis.range[1] >= 70 and figure.layout.yaxis.range[1] >= 9


def test_histograms_of_many_workers_are_one():
    board = fed(plot := Staleness(), ASP.replace(workers=20, scaling="weak"))
    for rank in range(20):
        board.take(rank, step(0, rank, staleness=rank % 2))
    board.settle(ended=True)
    assert plot.names == ["all workers"] and plot.series("histogram 0").rows.tolist() == [[0, 10], [1, 10]]
    assert plot.caption.endswith("Drawn are the first 16 of 20 workers.")


def test_a_run_without_a_step_is_refused():
    with pytest.raises(ValueError, match="got 2 runs, allowed is one"):
        lab.staleness([finished(workers=2, steps=2), finished(workers=2, steps=2)])


def test_the_predicted_mean_counts_replicas():
    sync = {"scheme": "ps", "consistency": "asp", "servers": 2}
    split = Experiment(workers=4, sync=sync, split={"kind": "tensor", "tensor": 2})
    assert predicted_mean(split) == 1 and predicted_mean(Experiment(workers=4, sync=sync)) == 3
    for others in ({"fetch_every": 4}, {"servers": 2, "replicas": 1}):
        assert predicted_mean(Experiment(workers=4, sync=sync | others)) is None
