"""Throughput: rates over windows, lines of ranks and earlier runs, predictions, ratios, and sums of time and bytes."""

from contextlib import suppress

import numpy as np
import pytest

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import JobFailed
from dlpar.lab import captions, figures, predict, prediction, theme
from dlpar.lab.figures.throughput import Rate, Throughput, Waiting, per_rank
from dlpar.lab.plot import Series, drawn, shown
from lab.folders import finished
from lab.records import fed, step, take_steps

ONE, FOUR = Experiment(workers=1, steps=10), Experiment(workers=4, steps=10)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(prediction, "_answers", {})


def test_rate_loses_no_sample_however_long_the_run():
    series = Series(2, limit=50)
    rate, rng, now = Rate(series), np.random.default_rng(0), 0.0
    for _ in range(20_000):
        began, now = now, now + float(rng.uniform(0.001, 0.05))
        rate.add(now, 64, began)
    rate.close()
    ends, rates = series.rows.T
    assert len(series) <= 50 and (np.diff(ends) > 0).all()
    assert (rates * np.diff(ends, prepend=0.0)).sum() == pytest.approx(20_000 * 64)


def test_rate_of_slow_steps_is_taken_step_by_step():
    series = Series(2, limit=50)
    rate = Rate(series)
    for number in range(5):
        rate.add(number + 1.0, 100, float(number))
    assert series.rows.tolist() == [[float(t), 100.0] for t in range(1, 6)]
    assert rate.series.rows[-1, 1] == rate.mean == 100.0


def compared(asked=None):
    """One worker at 64 samples/s behind four that do 256 together: steps of a second."""
    plot = Throughput(asked)
    board = fed(plot, ONE)
    take_steps(board, 1, [1.0] * 4, compute=1.0, comm=0.0)
    board.settle(ended=True)
    board.begin(shown([ONE, FOUR], ["run0", "run1"])[1])
    plot.rename("run0", "1 worker")
    plot.rename("run1", "4 workers")
    take_steps(board, 4, [1.0] * 4, compute=1.0, comm=0.0)
    board.settle(ended=True)
    return plot


def test_axes_are_drawn_from_the_first_run_on():
    plot = Throughput()
    axes = lambda: [plot.static().layout[name] for name in ("xaxis", "yaxis")]
    assert not any(axis.visible for axis in axes())
    fed(plot, ONE)
    assert all(axis.visible and axis.title.text for axis in axes())


def test_the_sentence_of_several_runs_gives_ratios_to_the_first():
    plot = compared()
    assert plot.caption == "1 worker: 64 samples a second; 4 workers: 256, 4 times as many."
    names = [trace.name for trace in plot.static().data]
    assert names[0] == "1 worker" and "4 workers" in names
    assert {t.line.color for t in plot.static().data if t.name in ("1 worker", "4 workers")} == {
        *theme.RUNS[:2]
    }


def test_ranks_have_lines_only_while_their_run_is_alone():
    def ranks(plot):
        return [t.name for t in plot.static().data if t.name.startswith("rank")]

    fed(alone := Throughput(), FOUR)
    assert ranks(alone) == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert ranks(compared()) == [], "beside runs that are compared they would look like runs"


def test_the_axis_of_runs_that_are_compared_ends_with_the_longest():
    board = fed(plot := Throughput(), ONE)
    take_steps(board, 1, [1.0] * 4, compute=1.0, comm=0.0)
    board.settle(ended=True)
    board.begin(shown([ONE, FOUR], ["run0", "run1"])[1])
    take_steps(board, 4, [1.0] * 2, compute=1.0, comm=0.0)
    board.settle(ended=True)
    assert plot.looks["layout"]["xaxis"]["range"] == [0, 4]
    assert [t.meta for t in plot.static().data if t.meta] == [64, 256], "heights of their names"


def test_equal_speeds_are_not_one_times_as_many():
    rates = {"a": 8.0, "b": 8.0, "c": 8.8}
    assert captions.compared("samples a second", rates, ["paced", "simulated"]) == (
        "a: 8 samples a second; b: 8, as many; c: 8.8, 1.1 times as many."
    )


def test_rates_of_a_real_machine_and_of_a_platform_have_no_ratio_and_waits_name_both_clocks():
    runs = [finished(workers=4, steps=10, cluster={"world": world}) for world in ("real", "simulated")]
    assert "times as many" not in figures.caption(figures.throughput(runs))
    assert figures.waiting(runs).layout.xaxis.title.text == "time of a rank, wall and virtual clock (s)"


def test_a_students_prediction_is_a_dashed_line_and_part_of_the_sentence():
    asked = predict("speed", "How many times faster?", unit="times", low=1, high=16)
    asked.hear({"value": "3"})
    plot = compared(asked)
    line = next(t for t in plot.static().data if t.name == "you said 3 times")
    assert line.line.dash == "dash" and list(line.y) == [3 * 64, 3 * 64]
    assert plot.caption.endswith("4 times as many. You said 3 times.")


def test_the_axis_of_an_ended_run_ends_above_its_highest_line():
    board = fed(plot := Throughput(), ONE)
    take_steps(board, 1, [1.0] * 4, compute=1.0, comm=0.0)  # 64 samples a second
    board.settle(ended=True)
    assert plot.looks["layout"]["yaxis"]["range"] == [0, 80]


def test_a_prediction_in_samples_a_second_needs_no_second_run_and_one_in_times_does():
    rate = predict("rate", "How many?", unit="samples/s")
    rate.hear({"value": "100"})
    board = fed(plot := Throughput(rate), ONE)
    take_steps(board, 1, [1.0] * 4, compute=1.0, comm=0.0)
    assert plot.series("asked").rows[:, 1].tolist() == [100, 100]
    assert plot.looks["layout"]["yaxis"]["range"][1] >= 100
    times = predict("times", "How many times?", unit="times")
    times.hear({"value": "2"})
    board = fed(plot := Throughput(times), ONE)
    take_steps(board, 1, [1.0] * 4, compute=1.0, comm=0.0)
    assert not [t for t in plot.static().data if t.name.startswith("you said")]


def test_a_prediction_that_is_changed_or_withdrawn_is_drawn_as_it_is_now():
    asked = predict("rate", "How many?", unit="samples/s")
    asked.hear({"value": "100"})
    board = fed(plot := Throughput(asked), ONE)
    take_steps(board, 1, [1.0] * 4, compute=1.0, comm=0.0)
    asked.hear({"value": "200"})
    board.settle(ended=True)
    (line,) = [t for t in plot.static().data if t.name.startswith("you said")]
    assert line.name == "you said 200 samples/s" and list(line.y) == [200, 200]
    asked.hear({"unsure": True})
    board.settle(ended=True)
    assert not [t for t in plot.static().data if t.name.startswith("you said")]


def test_the_predicted_rate_is_a_dashed_line_of_its_run():
    simulated = Experiment(workers=4, steps=6, cluster={"world": "simulated", "platform": "k80-1gbe"})
    board = fed(plot := Throughput(), simulated)
    style = next(t for t in plot.static().data if t.name == "predicted")
    assert style.line.dash == "dash" and style.line.color == plot.front.colour
    board.begin(shown([simulated, FOUR], "ab")[1])  # of a machine that was not measured nothing is predicted
    assert "predicted" not in [t.name for t in plot.static().data]


def test_a_prediction_of_the_theory_says_how_exact_it_is():
    told = {
        kind: captions.throughput(100.0, {}, FOUR, 90.0, kind).rpartition("; ")[2] for kind in captions.BOUND
    }
    assert told == {
        "exact": "90 were predicted.",
        "upper bound": "at least 90 were predicted.",  # the time is bounded from above, so the rate from below
        "lower bound": "at most 90 were predicted.",
        "estimate": "about 90 were predicted.",
    }


def test_a_run_of_milliseconds_on_the_virtual_clock_has_a_curve_of_its_rate():
    board = fed(plot := Throughput(), Experiment(workers=2, steps=12, cluster={"world": "simulated"}))
    for number in range(12):
        for rank in range(2):
            board.take(rank, step(number, rank, t=1e-3 * (number + 1), samples=8, compute=1e-3, comm=0.0))
    board.settle(ended=True)
    rates = plot.series("run0 all").rows
    assert len(rates) == 12 and rates[:, 1] == pytest.approx([16_000] * 12)


def test_the_figure_of_several_runs_has_a_line_of_each():
    made = [finished(workers=n, steps=40) for n in (1, 2)]
    figure = figures.throughput(made)
    assert [t.name for t in figure.data if t.name.startswith("workers")] == ["workers=1", "workers=2"]
    assert figures.caption(figure).startswith("workers=1: ")


# ---- sums of time and bytes --------------------------------------------------------------


def test_times_add_up_to_what_was_recorded(runs, every_figure):
    steps = runs["asp"].steps.groupby("rank")[["compute", "comm", "wait"]].sum()
    for bars, part in zip(every_figure["waiting"].data, steps):
        assert list(bars.x)[:4] == pytest.approx(list(steps[part]))
    assert per_rank(runs["asp"])[:4, :3] == pytest.approx(steps.to_numpy())


def test_servers_have_a_row_of_bytes(runs, every_figure):
    bars = next(t for t in every_figure["waiting"].data if t.name == "sent")
    assert list(bars.x) == pytest.approx([0.04] * 4 + [0.16])
    assert every_figure["waiting"].layout.yaxis.ticktext[-1] == "server 4"
    assert "0.32 MB were sent in all." in figures.caption(every_figure["waiting"])


def test_before_servers_report_their_bytes_only_the_workers_are_said_to_have_sent():
    seconds = np.ones((2, 3))
    assert captions.waiting(seconds, [1.0, 2.0, 0.0]).endswith("; 3 MB were sent by the workers.")
    assert captions.waiting(seconds, [1.0, 2.0, 3.0]).endswith("; 6 MB were sent in all.")
    assert captions.waiting(seconds, [1.0, 2.0]).endswith("; 3 MB were sent in all.")


def test_of_an_earlier_run_the_mean_worker_is_drawn_and_the_sentence_compares(runs):
    figure = drawn(plot := Waiting(), [runs["asp"], runs["ring"]])
    *own, earlier = figure.layout.yaxis.ticktext
    assert own == [f"rank {rank}" for rank in range(4)] and earlier == "ps asp, a worker"
    waited = next(t for t in figure.data if t.name == "wait")
    assert waited.x[-1] == pytest.approx(runs["asp"].steps["wait"].sum() / 4)
    caption = figures.caption(figure)
    assert caption.startswith("Share of its time that a worker waited: ps asp ") and " and ring " in caption
    plot.forget(runs["asp"].id)
    assert "ps asp, a worker" not in plot.static().layout.yaxis.ticktext


def test_bytes_that_a_library_moved_are_not_made_up(runs):
    board = fed(plot := Waiting(), runs["ring"].experiment)
    take_steps(board, 4, [1.0], bytes=None)
    board.settle(ended=True)
    assert plot.caption.endswith("the library does not report how much was sent.")


@pytest.mark.slow
def test_the_sentence_of_a_run_gives_the_rate_of_its_summary(tmp_path):
    def captioned(run):
        return figures.caption(figures.throughput(run)), captions.quantity(run.summary["samples_per_s"])

    averaging = {"method": "local", "period": 8}  # seven quick steps, and one with an exchange
    common = {"workers": 4, "steps": 40, "cluster": {"world": "simulated"}, "model": {"width": 16}}
    for changes in ({"averaging": averaging}, {"snapshot": {"every": 20}, "deaths": {"die": {2: 0.97}}}):
        job = dlpar.launch(Experiment(**common, **changes))
        with suppress(JobFailed):
            job.wait()
        run = job.run if "averaging" in changes else dlpar.resume(job.run).wait()
        sentence, rate = captioned(run)
        assert f"together train on {rate} samples a second" in sentence


def test_a_rank_whose_pushes_are_dropped_trains_on_nothing():
    backup = Experiment(workers=3, batch=64, sync={"scheme": "ps", "backup": 1})
    board = fed(plot := Throughput(), backup)
    for number in range(6):
        for rank in range(3):
            board.take(rank, step(number, rank, of=2, dropped=int(rank == 2)))
        board.settle(ended=False)
    assert [plot.by_rank[rank].mean is not None for rank in range(3)] == [True, True, False]


def test_ranks_that_share_a_model_have_no_rate_each():
    """Each rank of a replica works on every sample: half of the rate was told of each of two stages."""
    cut = Experiment(workers=2, model={"depth": 4}, split={"kind": "pipeline", "stages": 2})
    assert "each" not in captions.throughput(100.0, {0: 100.0}, cut, None, "exact")
    hybrid = Experiment(workers=4, model={"depth": 4}, split={"kind": "hybrid", "stages": 2, "tensor": 1})
    said = captions.throughput(100.0, {0: 60.0, 2: 40.0}, hybrid, None, "exact")
    assert said == "4 workers together train on 100 samples a second; rank 2 has the lowest rate, 40."
    assert ", 25 each on average" in captions.throughput(100.0, {}, FOUR, None, "exact")


def test_a_rank_that_has_died_is_not_said_to_be_slow():
    board = fed(plot := Throughput(), Experiment(workers=2, sync={"scheme": "ps", "consistency": "asp"}))
    for number in range(100):
        for rank in range(2 if number < 8 else 1):
            board.take(rank, step(number, rank, t=(number + 1) / 10, compute=0.1, comm=0.0))
    board.settle(ended=True)
    assert plot.by_rank[1].mean == pytest.approx(640) == plot.by_rank[0].mean


def test_of_ranks_that_live_the_slowest_is_named():
    """The others are quicker once a rank has died, because they share its core."""
    board = fed(plot := Throughput(), Experiment(workers=3, sync={"scheme": "ps", "consistency": "asp"}))
    paces = {0: [0.1] * 50, 1: [0.2] * 25, 2: [0.4] * 5}
    for rank, seconds in paces.items():
        for number, end in enumerate(np.cumsum(seconds)):
            board.take(rank, step(number, rank, t=float(end), compute=seconds[0], comm=0.0))
    board.take(0, {"k": "event", "name": "death", "dead": 2, "step": 40, "t": 2.0, "rank": 0})
    board.settle(ended=True)
    assert "; rank 1 has the lowest rate of those drawn, 320" in plot.caption
