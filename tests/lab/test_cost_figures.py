"""Figures of what messages cost: measured and predicted beside each other, and sentences that say who is first."""

from __future__ import annotations

import pytest

from dlpar import lab
from dlpar.costmodel import Link
from dlpar.lab import figures
from dlpar.lab.timing import PingPong, Timing

LINK = Link(latency=1e-3, bandwidth=1e6)
SIZES = (1_000, 100_000)


def measured() -> list[Timing]:
    """5 % slower than predicted."""
    return [t._replace(seconds=1.05 * t.seconds) for t in lab.predict_collectives(("star", "tree"), 8, SIZES, LINK)]


def test_a_fit_says_latency_bandwidth_and_where_they_are_equal():
    figure = figures.link_fit(PingPong(SIZES, tuple(LINK.seconds(size) for size in SIZES)))
    assert figures.say(figure) == "A message takes 1 ms and then a second for every 1 MB; at 1 kB the two are equal."
    solid, dashed = figure.data
    assert solid.mode == "markers" and dashed.line.dash == "dash"
    assert list(dashed.y) == pytest.approx([2.0, 101.0])


def test_predicted_is_dashed_and_measured_solid_in_one_colour_each():
    figure = figures.collective_times(measured(), lab.predict_collectives(("star", "tree"), 8, SIZES, LINK))
    by_name = {trace.name: trace for trace in figure.data}
    assert set(by_name) == {"star, measured", "tree, measured", "star, predicted", "tree, predicted"}
    for name in ("star", "tree"):
        solid, dashed = by_name[f"{name}, measured"], by_name[f"{name}, predicted"]
        assert solid.line.color == dashed.line.color and (solid.line.dash, dashed.line.dash) == (None, "dash")
    assert len({trace.line.color for trace in figure.data}) == 2


def test_the_sentence_says_who_is_first_at_both_ends_and_how_far_the_prediction_is():
    said = figures.say(figures.collective_times(measured(), lab.predict_collectives(("star", "tree"), 8, SIZES, LINK)))
    assert said.startswith("Measured at 1 kB: tree 12.6 ms and star 16.8 ms; at 100 kB: tree 636 ms and star 1.47 s.")
    assert said.endswith("Prediction and measurement are at most 5% apart.")


def test_over_ranks_there_is_a_line_a_size():
    figure = figures.collective_times(predicted=lab.predict_collectives(["ring"], (2, 4, 8), SIZES, LINK), over="ranks")
    assert [trace.name for trace in figure.data] == ["ring, 1 kB, predicted", "ring, 100 kB, predicted"]
    assert list(figure.data[0].x) == [2, 4, 8]
    assert list(figure.layout.xaxis.ticktext) == ["2", "4", "8"]


def test_nothing_and_an_unknown_axis_are_refused():
    with pytest.raises(ValueError, match="measured: got nothing"):
        figures.collective_times()
    with pytest.raises(ValueError, match="over: got 'time'"):
        figures.collective_times(measured(), over="time")
