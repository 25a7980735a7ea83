"""Loss and accuracy of one run and of several: curves, axes that grow, sentences, and the time to a goal."""

import json
import math
from itertools import pairwise

import plotly.graph_objects as go
import pytest

import dlpar
from dlpar import lab
from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.lab import figures, theme
from dlpar.lab.figures.convergence import Convergence
from dlpar.lab.plot import shown
from lab.folders import finished, new_folder
from lab.records import evaluated, fed, step, take_steps

TWO = Experiment(workers=2, steps=10)


@pytest.fixture(scope="module")
def rings():
    return [finished(workers=n, steps=40) for n in (1, 2, 4)]


def losses(figure):
    return {t.name: t for t in figure.data if t.yaxis != "y2"}


def rows(plot, key):
    return plot.series(key).rows.tolist()


# ---- while a run goes on ---------------------------------------------------------


def test_only_steps_all_ranks_finished_are_drawn():
    board = fed(plot := Convergence(), TWO)
    for number in range(3):
        board.take(0, step(number, loss=2.0))
    board.take(1, step(0, loss=4.0))
    board.settle(ended=False)
    assert rows(plot, "run0 loss") == [[0, 128, 1.0, 0.002, 3.0]]


def test_accuracy_is_drawn_over_what_was_done_before_the_test():
    board = fed(plot := Convergence(), TWO)
    board.take(0, evaluated(2, 2.5))
    for number in range(4):
        for rank in range(2):
            board.take(rank, step(number))
    board.take(0, evaluated(4, 4.5, 0.95))
    board.settle(ended=False)
    assert rows(plot, "run0 test") == [[2, 2 * 128, 2.5, 0.004, 0.9], [4, 4 * 128, 4.5, 0.008, 0.95]]


def test_a_test_of_a_straggler_is_drawn_over_what_the_quick_workers_did_meanwhile():
    for order in ((0, 1), (1, 0)):
        board = fed(plot := Convergence(), TWO.replace(sync={"scheme": "ps", "consistency": "asp"}))
        for rank in order:
            for number in range(3 if rank == 0 else 12):
                board.take(rank, step(number, rank, t=(number + 1) * (4.0 if rank == 0 else 1.0)))
                if (rank, number) == (0, 1):
                    board.take(0, evaluated(2, 8.0))
        board.settle(ended=True)
        assert rows(plot, "run0 test") == [[2, 10 * 64, 8.0, 0.01, 0.9]]


def test_vertical_axis_grows_but_never_shrinks_during_a_run():
    board, tops = fed(plot := Convergence(), TWO), []
    for number, loss in enumerate((0.5, 0.9, 2.3, 0.1, 9.0)):
        for rank in range(2):
            board.take(rank, step(number, loss=loss))
        board.settle(ended=False)
        tops.append(plot.looks["layout"]["yaxis"]["range"][1])
    assert tops == sorted(tops) and tops[:3] == [1.0, 1.0, 1.0]


def test_the_horizontal_axes_end_where_the_runs_do():
    board = fed(plot := Convergence(), TWO.replace(steps=5000))
    take_steps(board, 2, [1.0] * 3, t=900.0)
    board.settle(ended=True)
    board.begin(shown([TWO] * 2, ["run0", "later"])[1])
    ends = {name: axis["range"][1] for name, axis in plot.looks["x_axes"].items()}
    assert ends["step"] == 5000 and ends["seconds"] >= 900
    plot.forget("run0")
    ends = {name: axis["range"][1] for name, axis in plot.looks["x_axes"].items()}
    assert ends["step"] == 10 and ends["seconds"] < 900, "what is no longer shown needs no room"


# ---- a run that diverges -----------------------------------------------------------


@pytest.mark.parametrize("end, word", [(0.7, False), (1.4, True)])
def test_an_odd_batch_is_no_divergence_if_the_held_out_loss_falls(end, word):
    """Batches of one sample: the first was easy, the last is hard."""
    board = fed(
        plot := Convergence(), Experiment(workers=1, data="diabetes", model="linear", batch=1, steps=4)
    )
    board.take(0, {**evaluated(0, 0.0, None), "loss": 1.3})
    take_steps(board, 1, [0.01, 1.1, 0.8, 1.5])
    board.take(0, {**evaluated(4, 4.0, None), "loss": end})
    board.settle(ended=True)
    assert ("diverged" in plot.caption) == word


@pytest.mark.parametrize(
    ("held_out", "word"), [((2.2, 1.4), False), ((5.4, 4.9), False), ((2.2, 40.0), True)]
)
def test_one_odd_batch_at_the_end_does_not_say_that_a_classifier_has_diverged(held_out, word):
    board = fed(plot := Convergence(), TWO.replace(workers=1, steps=4))
    for number, loss in enumerate(held_out, start=1):
        board.take(0, {**evaluated(2 * number, 2.0 * number), "loss": loss})
    take_steps(board, 1, [2.3, 0.1, 0.2, 9.0])
    board.settle(ended=True)
    assert ("diverged" in plot.caption) == word


def test_a_resumed_run_is_drawn_as_sparsely_as_before():
    board = fed(plot := Convergence(), TWO.replace(workers=1, steps=10_000))
    for number in range(9_000):
        board.take(0, step(number))
    board.settle(ended=False)
    board.take(0, {"k": "rank", "rank": 0, "attempt": 1, "resumed": 8_000})
    for number in range(8_000, 10_000):
        board.take(0, step(number, t=number + 2000.0))
    board.settle(ended=True)
    drawn = [row[0] for row in rows(plot, "run0 loss")]
    stride = plot.series("run0 loss").stride
    assert drawn == sorted(set(drawn)) and f"One step in {stride} is drawn" in plot.caption
    assert {b - a for a, b in pairwise(drawn)} - {stride} <= set(range(stride))


def test_a_run_that_stays_far_above_its_first_loss_has_diverged():
    board = fed(plot := Convergence(), TWO.replace(steps=60))
    take_steps(board, 2, [2.3, 50.0, *[1000.0] * 58])
    board.settle(ended=True)
    assert "diverged" in plot.caption


@pytest.mark.parametrize("last", [math.nan, math.inf, 400.0])
def test_a_run_that_diverges_is_said_to_and_does_not_stretch_the_axis(last):
    board = fed(plot := Convergence(), TWO, TWO.replace(lr=9.0))
    take_steps(board, 2, [2.3, 1.9, last])
    board.settle(ended=True)
    assert plot.looks["layout"]["yaxis"]["range"][1] <= 5
    assert "(diverged)" in plot.caption
    alone = fed(single := Convergence(), TWO)
    take_steps(alone, 2, [2.3, 1.9, last])
    alone.settle(ended=True)
    assert single.caption.endswith("the run diverged; a smaller lr may help.")
    assert single.looks["layout"]["yaxis"]["range"][1] <= 5


def test_a_loss_that_rises_a_little_has_not_diverged():
    board = fed(plot := Convergence(), TWO)
    take_steps(board, 2, [2.0, 3.0])
    assert "rose from 2 to 3" in plot.caption and "diverged" not in plot.caption


def rewritten(run, **changed):
    """The run with these values in every record that has them."""
    for path in run.path.glob("rank-*.jsonl"):
        records = [json.loads(line) for line in open(path)]
        changes = [{name: value for name, value in changed.items() if name in record} for record in records]
        path.write_text(
            "".join(json.dumps(record | change) + "\n" for record, change in zip(records, changes))
        )
    return run


def test_a_run_that_drew_no_sample_has_not_diverged():
    sync = {"scheme": "mapreduce", "fraction": 1e-6}
    empty = rewritten(finished(workers=2, steps=3, sync=sync), samples=0, loss=0.0)
    diverged = rewritten(finished(workers=2, steps=3), loss=None)  # as JSON tells a NaN
    said = figures.caption(lab.overlay(empty))
    assert said.startswith("In 3 of 3 steps no sample was drawn, so there is no loss.")
    assert "the run diverged" in figures.caption(lab.overlay(diverged))
    both = figures.caption(lab.overlay([empty, diverged], titles=["empty", "lost"]))
    assert "empty no sample, so no loss" in both and "lost loss not a number (diverged)" in both


# ---- several runs --------------------------------------------------------------------


def test_curve_is_the_runs_own(rings):
    figure, curve = figures.convergence(rings[1]), rings[1].curve
    assert list(figure.data[0].x) == list(curve["step"])
    assert list(figure.data[0].y) == pytest.approx(list(curve["loss"]))
    assert list(figure.data[1].y) == list(rings[1].evals["accuracy"])
    assert figures.caption(figure).startswith("In 40 of 40 steps the training loss fell from 2.3")


@pytest.mark.slow
def test_long_curve_is_thinned_and_says_so():
    figure = figures.convergence(finished(workers=1, steps=4500))
    assert len(figure.data[0].x) <= 2000 and figures.caption(figure).endswith("One step in 4 is drawn.")


def test_compared_runs_have_a_colour_and_a_name_each_and_are_told_apart_without_colour(rings):
    drawn = losses(figures.convergence(rings))
    assert list(drawn) == ["workers=1", "workers=2", "workers=4"]
    assert len({(t.line.dash, t.marker.symbol) for t in drawn.values()}) == 3
    assert [t.line.color for t in drawn.values()] == list(theme.RUNS[:3])


def test_the_sentence_tells_the_end_of_every_run(rings):
    said = figures.caption(figures.convergence(rings))
    for run in rings:
        loss, accuracy = run.curve["loss"].iloc[-1], run.evals["accuracy"].iloc[-1]
        assert f"workers={run.experiment.workers} loss {loss:.3g}, accuracy {accuracy:.1%}" in said


def test_runs_of_different_worlds_are_on_one_axis_that_says_so():
    worlds = [finished(workers=2, steps=10, cluster={"world": world}) for world in ("real", "simulated")]
    figure = figures.convergence(worlds, x="seconds")
    assert figure.layout.xaxis.title.text == "time, each run on its own clock (s)"
    assert [t.line.width for t in losses(figure).values()] == [2, 5]


def test_over_bytes_what_all_workers_sent_is_counted(runs, every_figure):
    ring = every_figure["overlay"].data[0]
    assert list(ring.x) == pytest.approx([0.004 * (step + 1) for step in range(40)])
    assert every_figure["overlay"].layout.xaxis.title.text == "sent by all workers together (MB)"
    assert len({t.line.color for t in losses(every_figure["overlay"]).values()}) == len(runs)


def test_a_regression_has_no_accuracy_and_shares_no_figure_with_a_classification(runs):
    diabetes = finished(workers=2, steps=5, model="linear", data="diabetes")
    figure = figures.convergence(diabetes)
    assert figure.layout.yaxis.title.text == "loss (squared error)" and "yaxis2" not in figure.layout
    with pytest.raises(ValueError, match="runs: got classification and regression, allowed is one kind"):
        lab.overlay([runs["ring"], diabetes])


@pytest.mark.parametrize(
    "ask, complaint",
    [
        (lambda runs: lab.overlay(runs, x="hours"), "x: got 'hours', allowed is one of step"),
        (lambda runs: lab.overlay([]), "runs: got none"),
        (lambda runs: lab.overlay(runs, titles=["one"]), "titles: got 1, allowed is one for"),
        (lambda runs: lab.overlay(Run(new_folder(Experiment()))), "has no finished step"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(rings, ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask(rings)


def test_a_run_that_does_not_say_what_it_sent_is_not_drawn_over_bytes(runs):
    silent = finished(workers=2, steps=5, sync={"allreduce": "library"})
    with pytest.raises(ValueError, match="the library moved the data and does not report how much"):
        lab.overlay([runs["ring"], silent], x="bytes")


# ---- after training ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def ring_figures(rings):
    return {
        "convergence": figures.convergence(rings[1]),
        "compared": figures.convergence(rings, x="seconds"),
        "throughput": figures.throughput(rings[2]),
        "throughputs": figures.throughput(rings),
        "timeline": figures.timeline(rings[2]),
        "staleness": figures.staleness(rings[2]),
    }


def test_every_figure_says_what_it_shows_and_gives_its_data(ring_figures, every_figure):
    for name, figure in {**ring_figures, **every_figure}.items():
        assert isinstance(figure, go.Figure), name
        assert figures.caption(figure).endswith("."), name
        assert len(figures.table(figure)) == sum(len(trace.x) for trace in figure.data), name


def test_every_axis_has_a_label_and_a_unit(ring_figures):
    for name, figure in ring_figures.items():
        for axis in (figure.layout.xaxis, figure.layout.yaxis):
            assert axis.title.text or name == "timeline", name
        assert name == "timeline" or "(" in figure.layout.yaxis.title.text


def test_shown_figure_is_kept_with_sentence_and_table(rings, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    figures.convergence(rings[1])._ipython_display_()
    figure, below = shown
    assert json.dumps(figure["application/vnd.plotly.v1+json"])
    assert (
        "In 40 of 40 steps" in below["text/html"]
        and "<table" in below["text/html"]
        and "http" not in below["text/html"]
    )


@pytest.mark.parametrize(
    "ask, complaint",
    [
        (lambda run: figures.time_to_accuracy(run, goal=2), "goal: got 2"),
        (
            lambda run: figures.time_to_accuracy([run] * 2, titles=["one"]),
            "titles: got 1, allowed is one for",
        ),
        (lambda run: figures.lead(Run(new_folder(Experiment()))), "has no finished step"),
    ],
)
def test_other_runs_and_goals_are_refused_in_a_sentence(rings, ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask(rings[1])


def test_seconds_to_a_goal_are_steps_times_time_of_a_step(runs, every_figure):
    seconds, steps, ms = (trace.x[0] for trace in every_figure["time"].data[:3])
    assert seconds == pytest.approx(steps * ms / 1e3)
    good = runs["asp"].evals.query("accuracy >= 0.9").iloc[0]
    assert (seconds, steps) == (good["t"], good["step"])
    assert (
        figures.caption(lab.time_to_accuracy(runs["asp"], goal=1.0))
        == "No run reached 100% held-out accuracy."
    )
    assert figures.caption(lab.time_to_accuracy(runs["asp"], 0.9, ["mine"])).startswith("mine reached 90%")


def test_who_was_first_to_an_accuracy_is_said_of_each_clock_alone(runs):
    virtual = finished(workers=2, steps=40, cluster={"world": "simulated"})
    figure = lab.time_to_accuracy([virtual, runs["ring"]], 0.8, ["a", "b"])
    said = figures.caption(figure)
    for clock, name in {"virtual": "a, simulated", "wall": "b"}.items():
        assert f"n the {clock} clock {name} reached 80% first" in said
    assert (
        "a, simulated and b took the fewest steps" in said and "different clocks cannot be compared" in said
    )
    assert figure.layout.xaxis.title.text == "seconds to 80%<br>each on its own clock"


def test_a_regression_has_no_accuracy_to_reach():
    diabetes = finished(workers=2, steps=5, model="linear", data="diabetes")
    with pytest.raises(ValueError, match="got data diabetes, a regression, allowed is a task with classes"):
        lab.time_to_accuracy(diabetes)


@pytest.mark.slow
def test_a_resumed_run_keeps_the_tests_of_steps_that_were_done_again():
    cluster, deaths = {"world": "simulated"}, {"die": {1: 0.7}}
    fields = {"steps": 40, "evaluate_every": 2, "snapshot": {"every": 20}, "cluster": cluster}
    job = dlpar.launch(Experiment(workers=2, deaths=deaths, **fields))
    with pytest.raises(dlpar.JobFailed):
        job.wait(60)
    figure = lab.figures.convergence(dlpar.resume(job.run).wait(60))
    (tests,) = (trace for trace in figure.data if "accuracy" in (trace.name or ""))
    assert list(tests.x) == list(range(2, 41, 2))


def test_the_table_of_bars_names_their_rows(rings):
    table = figures.table(lab.time_to_accuracy(rings, goal=0.5))
    assert set(table["row"]) == {"workers=1", "workers=2", "workers=4"}
