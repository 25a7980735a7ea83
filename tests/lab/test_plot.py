"""Figures fed record by record, live and to the end with the same result; curves in bounded memory."""

import numpy as np
import pytest

from dlpar.config.experiment import Experiment
from dlpar.jobs.tail import rank_of
from dlpar.lab import figures, theme
from dlpar.lab.figures.consensus import Consensus
from dlpar.lab.figures.convergence import Convergence
from dlpar.lab.figures.staleness import Lead, Staleness
from dlpar.lab.figures.throughput import Throughput, Waiting
from dlpar.lab.figures.timeline import Lanes, Timeline
from dlpar.lab.plot import Board, Drawing, Series, drawn, shown
from dlpar.lab.watch import in_order
from lab.folders import finished
from lab.readers import Seen
from lab.records import evaluated, step

PLOTS = [Convergence, Throughput, Staleness, Lead, Lanes, Timeline, Waiting, Consensus]
ASP = {"scheme": "ps", "consistency": "asp"}
GOSSIP = {"scheme": "gossip", "topology": "exp2", "start": "random"}


@pytest.fixture(scope="module")
def compared():
    """Runs that all figures fit: one behind the other."""
    return {
        "asp": [finished(workers=n, steps=40, sync=ASP) for n in (2, 4)],
        "gossip": [finished(workers=n, steps=40, sync=GOSSIP) for n in (4, 8)],
    }


def followed(plot, runs, piece):
    """Feed a figure as a panel does: in the order of time, and drawn after every few records."""
    board, page = Board([plot]), Seen()
    page.take(*plot.snapshot())
    for run, look in zip(runs, shown([run.experiment for run in runs], [run.id for run in runs])):
        board.begin(look)
        for number, (_, source, record) in enumerate(in_order(run)):
            board.take(rank_of(source), record)
            if number % piece == 0:
                board.settle(ended=False)
                if change := plot.changes():
                    page.take(*change)
        board.settle(ended=True)
    if change := plot.changes():
        page.take(*change)
    page.assert_like(plot)
    return plot.static()


@pytest.mark.parametrize("number", [1, 2], ids=["one run", "two runs"])
@pytest.mark.parametrize("kind", PLOTS)
def test_a_live_figure_ends_as_the_static_one_and_so_does_the_page(kind, number, compared):
    runs = compared["gossip" if kind is Consensus else "asp"][:number]
    static = drawn(kind(), runs)
    for piece in (1, 7, 1000):
        live = followed(kind(), runs, piece)
        assert live.to_json() == static.to_json(), piece
        assert figures.caption(live).endswith(".")


@pytest.mark.parametrize("kind", PLOTS)
def test_every_earlier_run_stays_until_it_is_forgotten(kind, compared):
    runs = compared["gossip" if kind is Consensus else "asp"]
    plot = kind()
    drawn(plot, runs)
    assert list(plot.runs) == [run.id for run in runs] and plot.front.key == runs[1].id
    plot.forget(runs[0].id)
    assert list(plot.runs) == [runs[1].id]
    assert not [trace.name for trace in plot.static().data if "workers=2" in trace.name]


def test_a_run_that_begins_again_is_as_new(compared):
    (run,), plot = compared["asp"][:1], Convergence()
    board = Board([plot])
    for _ in range(2):
        board.begin(shown([run.experiment], [run.id])[0])
        for source, record in run.records():
            if source != "job":
                board.take(rank_of(source), record)
        board.settle(ended=True)
    assert plot.static().to_json() == drawn(Convergence(), run).to_json()


def test_a_run_is_shown_by_what_differs_in_its_own_colour_and_a_simulated_one_broad():
    ring, ps = Experiment(workers=2), Experiment(workers=2, sync="ps")
    simulated = ring.replace(cluster={"world": "simulated"})
    assert [run.name for run in shown([ring], ["a"])] == ["all workers"]
    by_scheme = shown([ring, ps], ["a", "b"])
    assert [(run.name, run.colour) for run in by_scheme] == [
        ("ring", theme.SCHEMES["ring"]),
        ("ps bsp", theme.SCHEMES["ps"]),
    ]
    same = shown([ring, ring.replace(workers=4), simulated], "abc")
    assert [run.colour for run in same] == list(theme.RUNS[:3])
    assert [run.line["line"]["width"] for run in same] == [2, 2, 5]
    assert len({(run.line["line"].get("dash"), run.line["marker"]["symbol"]) for run in same}) == 3
    assert same[2].name.endswith("world=simulated")


def test_a_renamed_run_has_its_new_name_in_every_trace():
    plot = Convergence()
    board = Board([plot])
    board.begin(shown([Experiment()], ["a"])[0])
    plot.rename("a", "workers=4")
    assert plot.static().data[0].name == "workers=4" and plot.runs["a"].name == "workers=4"


def test_a_board_knows_ranks_accuracy_and_slip_of_the_run_in_front_only():
    board, (one, two) = Board([Convergence()]), shown([Experiment(workers=2), Experiment(workers=3)], "ab")
    board.begin(one)
    board.take(1, {"k": "rank", "rank": 1, "host": "here"})
    board.take(0, evaluated(1, 1.0, 0.8))
    board.take(0, {**step(0), "slip": 0.02})
    board.take(0, {**step(1), "slip": 0.01})
    assert (board.ranks[1]["host"], board.accuracy, board.slip) == ("here", 0.8, 0.02)
    board.begin(two)
    assert (board.ranks, board.accuracy, board.slip) == ({}, None, None)


def test_a_board_notes_when_the_goal_was_first_reached():
    board, (one, two) = Board([], goal=0.9), shown([Experiment(), Experiment()], "ab")
    board.begin(one)
    for seconds, accuracy in enumerate((0.5, None, 0.9, 0.8, 0.95)):
        board.take(0, evaluated(seconds, float(seconds), accuracy))
    assert board.reached == 2.0
    board.begin(two)
    assert board.reached is None


def test_only_figures_that_fit_a_run_are_fed():
    board = Board([kind() for kind in PLOTS])
    board.begin(shown([Experiment(workers=1)], "a")[0])
    assert [plot.title for plot in board.fed] == ["Convergence", "Throughput", "Staleness", "Timeline"]


def test_names_that_do_not_match_the_runs_are_refused(compared):
    with pytest.raises(ValueError, match="titles: got 1, allowed is one for each of 2 runs"):
        drawn(Convergence(), compared["asp"], ["one"])


# ---- figures that grow -------------------------------------------------------------------


@pytest.fixture
def drawing():
    made = Drawing()
    made.relayout({"step": theme.axis("step", (0, 10))}, yaxis=theme.axis("y (1)", (0, 1)))
    made.add_trace("a", {"name": "a"}, ("step", "y"), {"x": "*", "y": "y"}, limit=100)
    return made


def seen(drawing):
    page = Seen()
    page.take(*drawing.snapshot())
    return page


def look(page, drawing):
    if (change := drawing.changes()) is not None:
        page.take(*change)
    return change


def test_changes_add_up_to_the_figure_through_many_thinnings(drawing):
    page = seen(drawing)
    for i in range(5000):
        drawing.series("a").add((i, i / 2))
        if i % 37 == 0:
            look(page, drawing)
    look(page, drawing)
    assert (page.curves["a"].T == drawing.series("a").rows).all()
    assert len(drawing.series("a")) <= 100


def test_after_a_snapshot_only_what_is_new_is_told(drawing):
    for i in range(10):
        drawing.series("a").add((i, i))
    drawing.set_caption("ten points")
    page = seen(drawing)
    assert drawing.changes() is None
    drawing.series("a").add((10, 10))
    change, (points,) = look(page, drawing)
    assert change["traces"] == [{"key": "a", "whole": False, "points": 1}] and len(points) == 2 * 8
    assert page.curves["a"][0].tolist() == list(range(11)) and page.caption == "ten points"


def test_a_range_a_title_and_a_sentence_are_told_once(drawing):
    page = seen(drawing)
    drawing.set_axis("yaxis", range=[0, 2], dtick=1)
    drawing.grow("step", 11)
    drawing.set_axis("yaxis", title={"text": "other (1)"})
    drawing.set_caption("It grew.")
    change, _ = look(page, drawing)
    title = {"text": "other (1)"}
    assert change["axes"] == {
        "yaxis": {"range": [0, 2], "dtick": 1, "title": title},
        "step": {"range": [0, 20]},
    }
    page.assert_like(drawing)
    drawing.set_axis("yaxis", range=[0, 2], dtick=1, title=title)
    drawing.grow("step", 20)
    drawing.set_caption("It grew.")
    assert drawing.changes() is None


def test_a_removed_trace_is_gone_and_a_new_one_there(drawing):
    page = seen(drawing)
    drawing.remove("a")
    drawing.remove("never there")
    drawing.add_trace("b", {"name": "b"}, ("step", "y"), {"x": "*", "y": "y"}).add((1, 2))
    look(page, drawing)
    assert {key: points.tolist() for key, points in page.curves.items()} == {"b": [[1], [2]]}
    drawing.restyle("b", name="c")
    look(page, drawing)
    assert page.traces["b"]["style"]["name"] == "c"


def test_a_static_figure_has_the_curves_axes_and_sentence_at_the_chosen_axis():
    axes = {"step": {"range": [0, 9]}, "seconds": {"range": [0, 1]}}
    drawing = Drawing()
    drawing.relayout(axes, height=300, yaxis={"range": [0, 3]})
    series = drawing.add_trace("a", {"name": "loss"}, ("step", "seconds", "loss"), {"x": "*", "y": "loss"})
    series.add((1, 0.5, 2.0)), series.add((2, 0.9, 1.0))
    drawing.x = "seconds"
    drawing.set_caption("It fell.")
    figure = drawing.static()
    (curve,) = figure.data
    assert curve.name == "loss" and np.allclose([curve.x, curve.y], [[0.5, 0.9], [2.0, 1.0]])
    assert figure.layout.xaxis.range == (0, 1) and figure.layout.yaxis.range == (0, 3)
    assert figure.layout.height == 300 and figure.layout.meta["caption"] == "It fell."
    series.add((3, 1.0, 0.5))
    assert len(curve.x) == 2, "a static figure does not grow"


def test_an_axis_that_is_no_longer_offered_is_not_chosen(drawing):
    drawing.relayout({"seconds": theme.axis("s", (0, 1))})
    assert drawing.x == "seconds"
    drawing.relayout()
    assert drawing.x == ""


# ---- series ------------------------------------------------------------------------


def test_long_curve_keeps_measured_rows_at_a_stride_that_is_a_power_of_two():
    series = Series(2, limit=100)
    for i in range(20_001):
        series.add((i, i * i))
        assert len(series) <= 100
    steps = series.rows[:, 0]
    assert series.stride == 256
    assert (np.diff(steps) == 256).all() and steps[0] == 0
    assert (series.rows[:, 1] == steps**2).all()


def test_short_curve_keeps_every_row():
    series = Series(1, limit=100)
    for i in range(100):
        series.add((i,))
    assert series.rows[:, 0].tolist() == list(range(100)) and series.stride == 1


def test_curve_ends_on_its_last_row_once():
    series = Series(1, limit=4)
    for i in range(10):
        series.add((i,))
    series.finish((9,))
    series.finish((9,))
    assert series.rows[:, 0].tolist()[-1] == 9 and (np.diff(series.rows[:, 0]) > 0).all()
    assert len(series) <= 4
