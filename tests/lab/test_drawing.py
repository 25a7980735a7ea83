"""Curves in bounded memory, and what a page is told of a figure that changes."""

import numpy as np
import pytest

from dlpar.lab import theme
from dlpar.lab.drawing import Drawing, Series
from lab.readers import Seen


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
